"""The outcome of a run: stop reason, exit status and the agent's own report."""

import itertools
import signal

from corral.domain.runs import outcome
from corral.domain.runs.model import ACTIVE, TRANSITIONS, RunState, StopKind
from corral.kernel.exit_status import ExitStatus
from tests.support.grouped_cases import each_case

STOPS = (None, *StopKind)
CODES = (None, 0, 1, 3, 127, 255)
SIGNALS = (None, signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV)
WAYS = [
    ExitStatus(exit_code=code, signal=number)
    for code, number in itertools.product(CODES, SIGNALS)
    if code is None or number is None
]


def state_after(end: ExitStatus, stop: StopKind | None) -> RunState:
    return RunState(TRANSITIONS[outcome.end_verb(end, stop)].to)


@each_case(
    ("end", "state"),
    [
        (ExitStatus(exit_code=0), "completed"),
        (ExitStatus(exit_code=1), "failed"),
        (ExitStatus(exit_code=3), "failed"),
        (ExitStatus(exit_code=127), "failed"),
        (ExitStatus(signal=9), "crashed"),
        (ExitStatus(signal=15), "crashed"),
        (ExitStatus(signal=11), "crashed"),
        (ExitStatus(), "crashed"),
        (ExitStatus(exit_code=0, reason="the agent reported a failure"), "failed"),
        (ExitStatus(exit_code=143, finished_work=True), "completed"),
        (ExitStatus(signal=15, finished_work=True), "completed"),
    ],
)
def test_unrequested_end(end: ExitStatus, state: str) -> None:
    assert state_after(end, None) == state


@each_case("end", WAYS, ids=str)
@each_case(
    ("stop", "state"),
    [
        (StopKind.REQUESTED, "cancelled"),
        (StopKind.OVER_BUDGET, "cancelled"),
        (StopKind.TIMED_OUT, "timed_out"),
        (StopKind.INTERRUPTED, "interrupted"),
    ],
)
def test_stop_reason_takes_precedence_over_exit_status(
    end: ExitStatus, stop: StopKind, state: str
) -> None:
    assert state_after(end, stop) == state


@each_case("end", WAYS, ids=str)
def test_stopped_run_is_never_completed(end: ExitStatus) -> None:
    for stop in StopKind:
        assert state_after(end, stop) is not RunState.COMPLETED
        assert (
            outcome.end_reason(end, outcome.DEFAULT_STOP_REASONS[stop])
            == outcome.DEFAULT_STOP_REASONS[stop]
        )


@each_case("finished_work", [False, True])
@each_case("end", WAYS, ids=str)
def test_every_end_is_a_legal_transition(end: ExitStatus, finished_work: bool) -> None:
    """A run is stopping exactly if it has a stop reason."""
    for stop in STOPS:
        sources = TRANSITIONS[
            outcome.end_verb(end._replace(finished_work=finished_work), stop)
        ].sources
        expected = {RunState.STOPPING} if stop else {*ACTIVE} - {RunState.STOPPING}
        assert expected <= {*sources}, stop


@each_case(
    ("end", "reason"),
    [
        (ExitStatus(exit_code=0), None),
        (ExitStatus(exit_code=4), "exit code 4"),
        (ExitStatus(signal=9), "signal 9"),
        (ExitStatus(), "gone"),
        (ExitStatus(exit_code=127, reason="nothing: no such file"), "nothing: no such file"),
        (
            ExitStatus(exit_code=1, finished_work=True, reason=outcome.IDLE_REASON),
            outcome.IDLE_REASON,
        ),
        (ExitStatus(signal=15, finished_work=True), None),
    ],
)
def test_outcome_has_a_short_reason(end: ExitStatus, reason: str | None) -> None:
    assert outcome.end_reason(end, None) == reason


def test_only_consecutive_failures_within_three_seconds_are_quick() -> None:
    failed, killed, well = ExitStatus(exit_code=1), ExitStatus(signal=9), ExitStatus(exit_code=0)
    assert outcome.count_quick_failures(0, failed, 2_999) == 1
    assert outcome.count_quick_failures(1, killed, 0) == 2
    assert outcome.count_quick_failures(2, failed, 3_000) == 0
    assert outcome.count_quick_failures(2, well, 5) == 0


def test_third_quick_failure_is_the_last_attempt() -> None:
    def can_restart(quick: int) -> bool:
        return outcome.should_restart(
            ExitStatus(exit_code=1),
            stop_reason=None,
            attempts=3,
            max_restarts=100,
            quick_failures=quick,
        )

    assert [can_restart(quick) for quick in range(5)] == [True, True, True, False, False]


def test_run_restarts_at_most_as_often_as_allowed() -> None:
    def can_restart(attempts: int, max_restarts: int) -> bool:
        return outcome.should_restart(
            ExitStatus(signal=9),
            stop_reason=None,
            attempts=attempts,
            max_restarts=max_restarts,
            quick_failures=0,
        )

    assert not can_restart(1, 0)
    assert [can_restart(attempts, 2) for attempts in (1, 2, 3)] == [True, True, False]


@each_case("stop_reason", outcome.DEFAULT_STOP_REASONS.values())
def test_stopped_run_does_not_restart(stop_reason: str) -> None:
    assert not outcome.should_restart(
        ExitStatus(exit_code=1),
        stop_reason=stop_reason,
        attempts=1,
        max_restarts=9,
        quick_failures=0,
    )


def test_successful_run_does_not_restart() -> None:
    assert not outcome.should_restart(
        ExitStatus(exit_code=0), stop_reason=None, attempts=1, max_restarts=9, quick_failures=0
    )


def test_people_are_notified_of_unrequested_ends() -> None:
    values = {state: outcome.choose_alert_kind(state, None) for state in RunState}
    assert values == {
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
    assert outcome.choose_alert_kind(RunState.CANCELLED, StopKind.OVER_BUDGET) == "budget"
    assert outcome.choose_alert_kind(RunState.CANCELLED, StopKind.REQUESTED) is None
