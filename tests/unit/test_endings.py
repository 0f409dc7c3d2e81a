"""How the end of a run is named: why it was stopped, what its process returned, what it said."""

import itertools
import signal

from corral.domain.runs import outcome
from corral.domain.runs.model import ACTIVE, MOVES, RunState, Stop
from corral.kernel.exit_status import End
from tests.support.cases import each_case

STOPS = (None, *Stop)
CODES = (None, 0, 1, 3, 127, 255)
SIGNALS = (None, signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV)
WAYS = [
    End(exit_code=code, signal=number)
    for code, number in itertools.product(CODES, SIGNALS)
    if code is None or number is None
]


def state_after(end: End, stop: Stop | None) -> RunState:
    return RunState(MOVES[outcome.verb_of(end, stop)].to)


@each_case(
    ("end", "state"),
    [
        (End(exit_code=0), "completed"),
        (End(exit_code=1), "failed"),
        (End(exit_code=3), "failed"),
        (End(exit_code=127), "failed"),
        (End(signal=9), "crashed"),
        (End(signal=15), "crashed"),
        (End(signal=11), "crashed"),
        (End(), "crashed"),
        (End(exit_code=0, reason="the agent said that it failed"), "failed"),
        (End(exit_code=143, well=True), "completed"),
        (End(signal=15, well=True), "completed"),
    ],
)
def test_an_end_that_nobody_asked_for(end: End, state: str) -> None:
    assert state_after(end, None) == state


@each_case("end", WAYS, ids=str)
@each_case(
    ("stop", "state"),
    [
        (Stop.ASKED, "cancelled"),
        (Stop.OVER_BUDGET, "cancelled"),
        (Stop.TIMED_OUT, "timed_out"),
        (Stop.INTERRUPTED, "interrupted"),
    ],
)
def test_why_it_was_stopped_counts_before_how_it_ended(end: End, stop: Stop, state: str) -> None:
    assert state_after(end, stop) == state


@each_case("end", WAYS, ids=str)
def test_a_run_that_was_stopped_is_never_shown_as_completed(end: End) -> None:
    for stop in Stop:
        assert state_after(end, stop) is not RunState.COMPLETED
        assert outcome.reason_of(end, outcome.REASONS[stop]) == outcome.REASONS[stop]


@each_case("well", [False, True])
@each_case("end", WAYS, ids=str)
def test_every_end_is_a_legal_move_of_the_state_in_which_it_may_come(end: End, well: bool) -> None:
    """A run is stopping exactly when there is a reason to stop it."""
    for stop in STOPS:
        sources = MOVES[outcome.verb_of(end._replace(well=well), stop)].sources
        wanted = {RunState.STOPPING} if stop else {*ACTIVE} - {RunState.STOPPING}
        assert wanted <= {*sources}, stop


@each_case(
    ("end", "reason"),
    [
        (End(exit_code=0), None),
        (End(exit_code=4), "exit code 4"),
        (End(signal=9), "signal 9"),
        (End(), "gone"),
        (End(exit_code=127, reason="nothing: no such file"), "nothing: no such file"),
        (End(exit_code=1, well=True, reason=outcome.IDLE), outcome.IDLE),
        (End(signal=15, well=True), None),
    ],
)
def test_the_reason_says_why_in_a_few_words(end: End, reason: str | None) -> None:
    assert outcome.reason_of(end, None) == reason


def test_failures_are_quick_within_three_seconds_and_only_in_a_row() -> None:
    failed, killed, well = End(exit_code=1), End(signal=9), End(exit_code=0)
    assert outcome.quick_failures(0, failed, 2_999) == 1
    assert outcome.quick_failures(1, killed, 0) == 2
    assert outcome.quick_failures(2, failed, 3_000) == 0
    assert outcome.quick_failures(2, well, 5) == 0


def test_the_third_quick_failure_is_the_last_attempt() -> None:
    def goes_on(quick: int) -> bool:
        return outcome.goes_on(
            End(exit_code=1), stop_reason=None, attempts=3, restarts=100, quick=quick
        )

    assert [goes_on(quick) for quick in range(5)] == [True, True, True, False, False]


def test_a_run_goes_on_as_often_as_it_may_and_no_more() -> None:
    def goes_on(attempts: int, restarts: int) -> bool:
        return outcome.goes_on(
            End(signal=9), stop_reason=None, attempts=attempts, restarts=restarts, quick=0
        )

    assert not goes_on(1, 0)
    assert [goes_on(attempts, 2) for attempts in (1, 2, 3)] == [True, True, False]


@each_case("stop_reason", outcome.REASONS.values())
def test_what_was_stopped_does_not_go_on(stop_reason: str) -> None:
    assert not outcome.goes_on(
        End(exit_code=1), stop_reason=stop_reason, attempts=1, restarts=9, quick=0
    )


def test_what_ended_by_itself_with_nothing_wrong_does_not_go_on() -> None:
    assert not outcome.goes_on(End(exit_code=0), stop_reason=None, attempts=1, restarts=9, quick=0)


def test_people_are_told_of_ends_that_they_did_not_ask_for() -> None:
    told = {state: outcome.alert_of(state, None) for state in RunState}
    assert told == {
        RunState.COMPLETED: "finished",
        RunState.FAILED: "failed",
        RunState.TIMED_OUT: "failed",
        RunState.CRASHED: "crashed",
        RunState.INTERRUPTED: "crashed",
        RunState.CANCELLED: None,
        RunState.QUEUED: None,
        RunState.STARTING: None,
        RunState.RUNNING: None,
        RunState.STOPPING: None,
    }
    assert outcome.alert_of(RunState.CANCELLED, Stop.OVER_BUDGET) == "budget"
    assert outcome.alert_of(RunState.CANCELLED, Stop.ASKED) is None
