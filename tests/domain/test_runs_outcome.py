"""Outcomes of runs: exit status, stop requests, budget release and alerts."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from corral.adapters.providers.facts import UsageFact
from corral.api import Corral
from corral.domain.runs import ops, outcome
from corral.domain.runs.model import Attention, Run, RunState, StopKind
from corral.kernel.clock import DAY, HOUR, SECOND, ManualClock
from corral.kernel.errors import Conflict, Held, IllegalMove, Invalid, NotFound, Refused
from corral.kernel.exit_status import ExitStatus
from tests.support.grouped_cases import each_case
from tests.support.run_factories import (
    ELSEWHERE,
    ended,
    held,
    queued,
    recorded,
    running,
    starting,
    stopping,
    without_supervisors,
)
from tests.support.store import list_events, raises_without_change, rows, unchanged

OUTCOMES = [
    (None, ExitStatus(exit_code=0), "completed", None),
    (None, ExitStatus(exit_code=3), "failed", "exit code 3"),
    (None, ExitStatus(signal=9), "crashed", "signal 9"),
    (None, ExitStatus(), "crashed", "gone"),
    (None, ExitStatus(exit_code=0, reason="agent refused"), "failed", "agent refused"),
    (None, ExitStatus(signal=15, finished_work=True), "completed", None),
    (StopKind.REQUESTED, ExitStatus(exit_code=0), "cancelled", "stopped"),
    (StopKind.REQUESTED, ExitStatus(signal=9), "cancelled", "stopped"),
    (
        StopKind.TIMED_OUT,
        ExitStatus(signal=15),
        "timed_out",
        outcome.DEFAULT_STOP_REASONS[StopKind.TIMED_OUT],
    ),
    (
        StopKind.TIMED_OUT,
        ExitStatus(exit_code=0),
        "timed_out",
        outcome.DEFAULT_STOP_REASONS[StopKind.TIMED_OUT],
    ),
    (
        StopKind.INTERRUPTED,
        ExitStatus(signal=15),
        "interrupted",
        outcome.DEFAULT_STOP_REASONS[StopKind.INTERRUPTED],
    ),
    (
        StopKind.OVER_BUDGET,
        ExitStatus(exit_code=1),
        "cancelled",
        outcome.DEFAULT_STOP_REASONS[StopKind.OVER_BUDGET],
    ),
]


@pytest.fixture(autouse=True)
def _no_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    without_supervisors(monkeypatch)


@each_case(("stop", "status", "state", "reason"), OUTCOMES)
def test_end_is_recorded_with_exit_status_and_reason(
    store: Corral,
    clock: ManualClock,
    stop: StopKind | None,
    status: ExitStatus,
    state: str,
    reason: str | None,
) -> None:
    run = running(store)
    if stop:
        store.internal.runs.request_stop(run.id, kind=stop)
    clock.advance(90 * SECOND)
    ended_run = store.internal.runs.record_end(run, status, output_bytes=12)
    assert (ended_run.state, ended_run.exit_code, ended_run.signal) == (
        state,
        status.exit_code,
        status.signal,
    )
    assert (ended_run.reason, ended_run.output_bytes, ended_run.ended_at) == (
        reason,
        12,
        clock.now(),
    )
    assert (ended_run.lease_until, ended_run.attention) == (None, None)
    assert not ended_run.is_live


@each_case("reason", [*outcome.DEFAULT_STOP_REASONS.values(), outcome.IDLE_REASON])
def test_stop_with_any_reason_cancels_the_run(store: Corral, reason: str) -> None:
    run = running(store)
    store.internal.runs.request_stop(run.id, reason=reason)
    ended_run = store.internal.runs.record_end(run, ExitStatus(signal=15))
    assert (ended_run.state, ended_run.stop_kind, ended_run.reason) == (
        "cancelled",
        "requested",
        reason,
    )


def test_run_that_exits_while_stopping_ends_as_stopped(
    store: Corral,
) -> None:
    run = running(store)
    store.internal.runs.request_stop(run.id)
    ended_run = store.internal.runs.record_end(run, ExitStatus(exit_code=0, finished_work=True))
    assert ended_run.state is RunState.CANCELLED


@pytest.mark.parametrize(
    "status", [ExitStatus(exit_code=127, reason="x: not found"), ExitStatus(signal=9)]
)
def test_run_may_end_before_its_program_was_executed(store: Corral, status: ExitStatus) -> None:
    assert not store.internal.runs.record_end(starting(store), status).is_live


@each_case("reason", ["a\0b", "lone \ud800 surrogate", "x" * 100_000, ""])
def test_any_final_text_of_an_agent_ends_the_run(store: Corral, reason: str) -> None:
    ended_run = store.internal.runs.record_end(
        running(store), ExitStatus(exit_code=1, reason=reason)
    )
    assert ended_run.state is RunState.FAILED
    assert ended_run.exit_code == 1
    assert len(ended_run.reason or "") <= 500


# -- the first end is kept ---------------------------------------------------------------------

SECOND_ENDS: dict[str, Callable[[Corral, Run], Run]] = {
    "end": lambda store, run: store.internal.runs.record_end(
        run, ExitStatus(exit_code=7), output_bytes=1
    ),
    "end unknown": lambda store, run: store.internal.runs.record_end(run, ExitStatus()),
    "finish": lambda store, run: store.runs.finish(run.id, exit_code=8),
    "lose": lambda store, run: store.runs.lose(run.id),
}


@each_case("second_end", SECOND_ENDS)
@each_case(
    "first_end",
    [ExitStatus(exit_code=0), ExitStatus(exit_code=3), ExitStatus(signal=9), ExitStatus()],
    ids=str,
)
def test_first_end_is_kept(
    store: Corral, clock: ManualClock, first_end: ExitStatus, second_end: str
) -> None:
    run = running(store)
    clock.advance(90 * SECOND)
    ended_run = store.internal.runs.record_end(run, first_end)
    clock.advance(HOUR)
    with unchanged(store):
        assert SECOND_ENDS[second_end](store, run) == ended_run
    assert ended_run.ended_at == (ended_run.started_at or 0) + 90 * SECOND


def test_ended_run_cannot_be_stopped(store: Corral) -> None:
    ended_run = ended(store, ExitStatus(exit_code=3))
    for stop in (store.runs.stop, store.internal.runs.request_stop):
        with raises_without_change(store, IllegalMove):
            stop(ended_run.id)
    assert store.runs.get(ended_run.id).exit_code == 3


def test_ending_a_run_with_a_stale_fence_is_rejected(store: Corral) -> None:
    run = running(store)
    taken_over = store.internal.runs.take_over(
        run, owner="supervisor:2", supervisor_pid=5, supervisor_token="5"
    )
    with raises_without_change(store, Held):
        store.internal.runs.record_end(run, ExitStatus(exit_code=0))
    assert store.internal.runs.record_end(taken_over, ExitStatus(exit_code=4)).exit_code == 4
    with unchanged(store):  # a late call gets the recorded end
        assert store.internal.runs.record_end(run, ExitStatus(exit_code=0)).exit_code == 4


def test_no_earlier_fence_is_valid_after_the_end(store: Corral) -> None:
    run = running(store)
    ended_run = store.internal.runs.record_end(run, ExitStatus(exit_code=0))
    assert ended_run.fence > run.fence
    with raises_without_change(store, Held):
        store.internal.runs.heartbeat(run, output_bytes=1)


# -- stopping ----------------------------------------------------------------------------------


def test_queued_run_is_cancelled_at_once(store: Corral, clock: ManualClock) -> None:
    run = queued(store)
    cancelled = store.runs.stop(run.id, reason="not needed")
    assert (cancelled.state, cancelled.reason, cancelled.ended_at) == (
        "cancelled",
        "not needed",
        clock.now(),
    )
    assert (cancelled.started_at, cancelled.exit_code, cancelled.signal) == (None, None, None)
    with raises_without_change(store, IllegalMove):
        store.internal.runs.acquire(run.id, held())


@pytest.mark.parametrize("create_run", [starting, running])
def test_active_run_is_stopping_until_its_process_exits(
    store: Corral, create_run: Callable[[Corral], Run]
) -> None:
    run = create_run(store)
    stopping_run = store.runs.stop(run.id, reason="enough")
    assert (stopping_run.state, stopping_run.stop_reason, stopping_run.fence) == (
        "stopping",
        "enough",
        run.fence,
    )
    with unchanged(store):
        assert store.runs.stop(run.id, reason="again") == stopping_run
    ended_run = store.internal.runs.record_end(run, ExitStatus(signal=15))
    assert (ended_run.state, ended_run.signal, ended_run.reason) == ("cancelled", 15, "enough")


@each_case("reason", ["", "a\0b", "\ud800", "x" * 2_001])
def test_invalid_stop_reason_is_rejected(store: Corral, reason: str) -> None:
    run = running(store)
    with raises_without_change(store, Invalid):
        store.runs.stop(run.id, reason=reason)


@each_case("grace_period_ms", [-1, 2 * DAY, 1.5, True])
def test_invalid_grace_period_is_rejected(store: Corral, grace_period_ms: Any) -> None:
    run = running(store)
    with raises_without_change(store, Invalid):
        store.runs.stop(run.id, grace_period_ms=grace_period_ms)


def test_stopping_a_missing_run_raises_not_found(store: Corral) -> None:
    with raises_without_change(store, NotFound):
        store.runs.stop("run_0")
    with raises_without_change(store, NotFound):
        store.runs.stop("no such run")


# -- recorded and vanished processes -----------------------------------------------------------


@each_case(("code", "state"), [(0, "completed"), (3, "failed"), (-9, "failed")])
def test_finish_records_the_exit_code(store: Corral, code: int, state: str) -> None:
    ended_run = store.runs.finish(recorded(store).id, exit_code=code)
    assert (ended_run.state, ended_run.exit_code) == (state, code)


def test_finishing_a_stopping_run_cancels_it(store: Corral) -> None:
    run = store.internal.runs.request_stop(recorded(store).id)
    ended_run = store.runs.finish(run.id, exit_code=0)
    assert (ended_run.state, ended_run.exit_code) == ("cancelled", 0)


@each_case("code", [1 << 70, "0", 1.0, None, True])
def test_non_integer_exit_code_is_rejected(store: Corral, code: object) -> None:
    run = recorded(store)
    with raises_without_change(store, Invalid):
        store.runs.finish(run.id, exit_code=code)


def test_queued_run_cannot_be_finished(store: Corral) -> None:
    run = queued(store)
    with raises_without_change(store, IllegalMove):
        store.runs.finish(run.id, exit_code=0)


def test_vanished_run_crashed_without_an_exit_code(store: Corral) -> None:
    crashed = store.runs.lose(recorded(store).id)
    assert (crashed.state, crashed.reason, crashed.exit_code) == ("crashed", "gone", None)
    cancelled = store.runs.lose(queued(store).id, reason="not needed")
    assert (cancelled.state, cancelled.reason) == ("cancelled", "not needed")


def test_stopping_run_that_vanished_is_cancelled(store: Corral) -> None:
    run = store.internal.runs.request_stop(recorded(store).id)
    cancelled = store.runs.lose(run.id)
    assert (cancelled.state, cancelled.reason) == ("cancelled", "stopped")


UNOBSERVED_ENDS: dict[str, Callable[[Corral, Run], Run]] = {
    "finish": lambda store, run: store.runs.finish(run.id, exit_code=0),
    "lose": lambda store, run: store.runs.lose(run.id),
    "fail": lambda store, run: store.internal.runs.fail(run.id, reason="x"),
}


@each_case("create_run", [starting, running, stopping])
@each_case("operation", UNOBSERVED_ENDS)
def test_only_the_supervisor_ends_a_supervised_run(
    store: Corral, create_run: Callable[[Corral], Run], operation: str
) -> None:
    run = create_run(store)
    with raises_without_change(store, Conflict) as refused:
        UNOBSERVED_ENDS[operation](store, run)
    assert refused.value.details["reason"] == "run_active"
    assert store.internal.runs.record_end(run, ExitStatus(exit_code=4)).exit_code == 4


@each_case("diagnosis", ["crash", "interrupt"])
def test_orphaned_run_with_possible_survivors_has_crashed(store: Corral, diagnosis: str) -> None:
    ended_run = store.internal.runs.end_orphaned(
        running(store), verb=diagnosis, reason="gone", may_have_survivors=True
    )
    assert ended_run.state == "crashed"


def test_end_of_an_orphaned_run_keeps_or_sets_the_size_of_its_output(store: Corral) -> None:
    for size, expected in ((None, 5), (9, 9)):
        run = store.internal.runs.heartbeat(running(store), output_bytes=5)
        ended_run = store.internal.runs.end_orphaned(
            run, verb="crash", reason="gone", output_bytes=size
        )
        assert ended_run.output_bytes == expected


# -- budgets -----------------------------------------------------------------------------------


def test_budget_is_reserved_at_the_start_and_released_at_the_end(store: Corral) -> None:
    store.budgets.set("all", 100)
    run = queued(store, budget_micros=60)
    assert store.budgets.get("all").reserved_micros == 0
    run = store.internal.runs.launch(store.internal.runs.acquire(run.id, held()))
    assert store.budgets.get("all").reserved_micros == 60
    store.charges.add(UsageFact(model="m", output=1, cost_micros=25), run_id=run.id)
    assert store.budgets.get("all").reserved_micros == 35
    store.internal.runs.record_end(run, ExitStatus(exit_code=0))
    budget = store.budgets.get("all")
    assert (budget.spent_micros, budget.reserved_micros) == (25, 0)
    assert [listed.scope for listed in store.budgets.list().items] == ["all"]


def test_run_whose_budget_does_not_fit_is_not_started_and_waits(store: Corral) -> None:
    store.budgets.set("all", 100)
    running(store, budget_micros=60)
    waiting = queued(store, budget_micros=60)
    with raises_without_change(store, Refused):
        store.internal.runs.acquire(waiting.id, held(2))
    assert store.runs.get(waiting.id).state is RunState.QUEUED


@each_case("operation", ["end", "end_orphaned", "recover"])
def test_every_end_releases_the_reservation(
    store: Corral, clock: ManualClock, operation: str
) -> None:
    store.budgets.set("all", 100)
    run = running(store, budget_micros=60)
    clock.advance(HOUR)
    match operation:
        case "end":
            store.internal.runs.record_end(run, ExitStatus(signal=9))
        case "end_orphaned":
            store.internal.runs.end_orphaned(run, verb="crash", reason="gone")
        case "recover":
            (result,) = store.runs.recover()
            assert result.state == "interrupted"
    assert store.budgets.get("all").reserved_micros == 0


def test_restart_reserves_nothing_twice(store: Corral, clock: ManualClock) -> None:
    store.budgets.set("all", 100)
    run = running(store, budget_micros=60)
    run = store.internal.runs.restart(run, held(), ExitStatus(exit_code=1), quick_failures=1)
    parked = store.internal.runs.park(
        store.internal.runs.launch(run), until=clock.now(), reason="quota"
    )
    store.internal.runs.acquire(parked.id, held(2))
    assert store.budgets.get("all").reserved_micros == 60


# -- alerts and attention ----------------------------------------------------------------------


def list_alerts(store: Corral) -> list[tuple[str, str]]:
    letters = store.mail.list(mailbox="agent:lead", limit=100).items
    return [(letter.body["event"], letter.body["subject"]) for letter in letters]


ALL_KINDS = ["crashed", "failed", "stuck", "needs_input", "budget", "finished"]


@pytest.fixture
def alerts(store: Corral) -> None:
    store.alerts.add(ALL_KINDS, target_kind="mailbox", target="agent:lead")


@pytest.mark.usefixtures("alerts")
def test_end_raises_one_alert(store: Corral) -> None:
    run = running(store)
    for _ in range(3):
        store.internal.runs.record_end(run, ExitStatus(exit_code=1))
    store.runs.lose(run.id)
    assert list_alerts(store) == [("failed", run.id)]


@pytest.mark.usefixtures("alerts")
@pytest.mark.parametrize(
    ("stop", "status", "kind"),
    [
        (None, ExitStatus(exit_code=0), "finished"),
        (None, ExitStatus(exit_code=2), "failed"),
        (None, ExitStatus(signal=11), "crashed"),
        (StopKind.TIMED_OUT, ExitStatus(signal=15), "failed"),
        (StopKind.INTERRUPTED, ExitStatus(signal=15), "crashed"),
        (StopKind.OVER_BUDGET, ExitStatus(signal=15), "budget"),
        (StopKind.REQUESTED, ExitStatus(signal=15), None),
    ],
)
def test_each_end_raises_the_alert_of_its_kind(
    store: Corral, stop: StopKind | None, status: ExitStatus, kind: str | None
) -> None:
    run = running(store)
    if stop:
        store.internal.runs.request_stop(run.id, kind=stop)
    store.internal.runs.record_end(run, status)
    assert list_alerts(store) == ([(kind, run.id)] if kind else [])


@pytest.mark.usefixtures("alerts")
def test_attention_raises_one_alert_for_each_change(store: Corral, clock: ManualClock) -> None:
    run = running(store)
    for _ in range(3):
        clock.advance(SECOND)
        assert (
            store.internal.runs.set_attention(run, Attention.NEEDS_INPUT).attention == "needs_input"
        )
    assert store.runs.get(run.id).attention_at == clock.now() - 2 * SECOND
    assert store.internal.runs.set_attention(run, None).attention is None
    with unchanged(store):
        store.internal.runs.set_attention(run, None)
    clock.advance(SECOND)
    store.internal.runs.set_attention(run, Attention.NEEDS_INPUT)
    store.internal.runs.set_attention(run, Attention.STUCK)
    assert list_alerts(store) == [
        ("needs_input", run.id),
        ("needs_input", run.id),
        ("stuck", run.id),
    ]
    assert list_events(store, run.id)[-4:] == [
        "run.set_attention",
        "run.clear_attention",
        "run.set_attention",
        "run.set_attention",
    ]


@pytest.mark.usefixtures("alerts")
def test_ended_run_needs_no_attention(store: Corral) -> None:
    run = running(store)
    store.internal.runs.record_end(run, ExitStatus(signal=15, finished_work=True))
    with unchanged(store), pytest.raises(Held):
        store.internal.runs.set_attention(run, Attention.STUCK)


@pytest.mark.usefixtures("alerts")
def test_alert_contains_the_run_and_its_outcome(store: Corral, tmp_path: Path) -> None:
    project = store.projects.register(tmp_path).id
    run = ended(
        store, ExitStatus(exit_code=3), name="nightly", project_id=project, agent_id="agt_1"
    )
    (letter,) = store.mail.list(mailbox="agent:lead").items
    body = letter.body
    assert (body["project_id"], body["agent_id"]) == (project, "agt_1")
    assert body["data"] == {
        "state": "failed",
        "name": "nightly",
        "command": run.command,
        "exit_code": 3,
        "reason": "exit code 3",
    }


def test_end_event_and_budget_release_are_atomic(store: Corral) -> None:
    store.budgets.set("all", 100)
    run = running(store, budget_micros=60)
    event_count = rows(store, "SELECT count(*) FROM events")
    with suppress(RuntimeError), store.transaction() as tx:
        ops.record_end(tx, run, ExitStatus(exit_code=0))
        raise RuntimeError
    assert store.runs.get(run.id) == run
    assert rows(store, "SELECT count(*) FROM events") == event_count
    assert store.budgets.get("all").reserved_micros == 60


def test_cleanup_of_a_remote_run_is_left_to_its_host(store: Corral) -> None:
    run = running(store)
    assert run.host == ELSEWHERE
    assert store.runs.stop(run.id, grace_period_ms=5).state is RunState.STOPPING
    assert store.runs.recover() == []
    with pytest.raises(Conflict):
        store.runs.delete(run.id)
