"""Supervision of runs: acquire, heartbeat, restart, take-over, details and parking."""

from collections.abc import Callable
from pathlib import Path

import pytest

from corral.api import Corral
from corral.domain.runs.model import Attention, ResourceSample, Run, RunState
from corral.domain.runs.supervision import LEASE_MS
from corral.kernel.clock import DAY, HOUR, MINUTE, SECOND, ManualClock
from corral.kernel.errors import Conflict, Held, IllegalMove, Invalid, NotFound
from corral.kernel.exit_status import ExitStatus
from tests.support.grouped_cases import each_case
from tests.support.run_factories import (
    ELSEWHERE,
    ended,
    held,
    next_queued,
    queued,
    running,
    starting,
    stopping,
    without_supervisors,
)
from tests.support.store import list_events, raises_without_change, rows, unchanged


@pytest.fixture(autouse=True)
def _no_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    without_supervisors(monkeypatch)


def test_supervisor_acquires_a_run_with_its_process_identity(
    store: Corral, clock: ManualClock
) -> None:
    queued_run = queued(store)
    clock.advance(SECOND)
    run = store.internal.runs.acquire(queued_run.id, held(1))
    assert (run.state, run.owner, run.fence, run.attempts) == ("starting", "supervisor:1", 1, 1)
    assert (run.host, run.boot_id, run.pid, run.start_token) == (ELSEWHERE, "boot", 10_001, "100")
    assert (run.supervisor_pid, run.supervisor_token) == (20_001, "101")
    assert (run.started_at, run.seen_at) == (clock.now(), clock.now())
    assert run.lease_until == clock.now() + LEASE_MS
    assert store.outputs.get(run.id).host == ELSEWHERE
    assert [verb for verb in list_events(store, run.id) if verb.startswith("run.")] == [
        "run.queue",
        "run.start",
    ]


def test_acquired_run_cannot_be_acquired_again(store: Corral) -> None:
    run = starting(store)
    for supervisor in (1, 2):
        with raises_without_change(store, IllegalMove):
            store.internal.runs.acquire(run.id, held(supervisor))


def test_ended_run_cannot_be_acquired(store: Corral) -> None:
    run = ended(store)
    with raises_without_change(store, IllegalMove):
        store.internal.runs.acquire(run.id, held(2))
    with raises_without_change(store, NotFound):
        store.internal.runs.acquire("run_" + "0" * 26, held(2))


def test_launch_is_allowed_once(store: Corral, clock: ManualClock) -> None:
    run = starting(store)
    clock.advance(5)
    launched = store.internal.runs.launch(run)
    assert (launched.state, launched.seen_at) == ("running", clock.now())
    assert launched.started_at == clock.now() - 5
    with raises_without_change(store, IllegalMove):
        store.internal.runs.launch(run)


def test_acquiring_a_run_touches_its_project(
    store: Corral, clock: ManualClock, tmp_path: Path
) -> None:
    project = store.projects.register(tmp_path)
    clock.advance(MINUTE)
    starting(store, project_id=project.id)
    assert store.projects.get(project.id).last_run_at == clock.now()


@each_case("lease_ms", [0, 999, DAY + 1])
def test_invalid_lease_duration_is_rejected(store: Corral, lease_ms: int) -> None:
    queued_run = queued(store)
    with raises_without_change(store, Invalid):
        store.internal.runs.acquire(queued_run.id, held(), lease_ms=lease_ms)
    run = running(store)
    with raises_without_change(store, Invalid):
        store.internal.runs.heartbeat(run, output_bytes=0, lease_ms=lease_ms)


# -- heartbeats and restarts -------------------------------------------------------------------


def test_heartbeat_renews_the_lease_and_writes_no_event(store: Corral, clock: ManualClock) -> None:
    run = running(store)
    events = list_events(store)
    clock.advance(30 * SECOND)
    renewed = store.internal.runs.heartbeat(run, output_bytes=7, cpu_ms=5, peak_bytes=9)
    assert (renewed.lease_until, renewed.seen_at) == (clock.now() + LEASE_MS, clock.now())
    assert (renewed.output_bytes, renewed.cpu_ms, renewed.peak_bytes) == (7, 5, 9)
    assert renewed.fence == run.fence
    renewed_again = store.internal.runs.heartbeat(run, output_bytes=8)
    assert (renewed_again.output_bytes, renewed_again.cpu_ms, renewed_again.peak_bytes) == (8, 5, 9)
    assert list_events(store) == events


def test_heartbeat_returns_a_pending_stop(store: Corral) -> None:
    run = running(store)
    store.internal.runs.request_stop(run.id, reason="enough")
    renewed = store.internal.runs.heartbeat(run, output_bytes=0)
    assert (renewed.state, renewed.stop_reason) == (RunState.STOPPING, "enough")


def test_late_heartbeat_is_accepted_while_the_fence_is_current(
    store: Corral, clock: ManualClock
) -> None:
    run = running(store)
    clock.advance(HOUR)
    assert store.internal.runs.heartbeat(run, output_bytes=0).lease_until == clock.now() + LEASE_MS


def test_queued_or_ended_run_rejects_heartbeats(store: Corral) -> None:
    for run in (queued(store), ended(store)):
        with raises_without_change(store, Conflict):
            store.internal.runs.heartbeat(run, output_bytes=0)


def test_restart_is_the_same_run_with_another_process(store: Corral, clock: ManualClock) -> None:
    run = running(store)
    store.internal.runs.set_attention(run, Attention.NEEDS_INPUT)
    clock.advance(SECOND)
    restarted = store.internal.runs.restart(
        run, held(1, pid=77, start_token="7"), ExitStatus(exit_code=3), quick_failures=1
    )
    assert (restarted.id, restarted.state, restarted.attempts) == (run.id, RunState.STARTING, 2)
    assert (restarted.pid, restarted.start_token, restarted.quick_failures) == (77, "7", 1)
    assert (restarted.fence, restarted.started_at, restarted.attention) == (
        run.fence + 1,
        run.started_at,
        None,
    )
    assert restarted.exit_code is None
    assert store.internal.runs.launch(restarted).state is RunState.RUNNING
    ((data,),) = rows(store, "SELECT CAST(data AS TEXT) FROM events WHERE verb = 'restart'")
    assert '"exit_code":3' in data.replace(" ", "")


def test_writes_about_the_last_attempt_are_rejected(store: Corral) -> None:
    """A recovery that read the first attempt must not record its end for the second attempt."""
    first_attempt = running(store)
    store.internal.runs.restart(
        first_attempt, held(1, pid=77, start_token="7"), ExitStatus(signal=11), quick_failures=1
    )
    with raises_without_change(store, Held):
        store.internal.runs.record_end(first_attempt, ExitStatus(signal=11))
    with raises_without_change(store, Held):
        store.internal.runs.end_orphaned(first_attempt, verb="crash", reason="gone")


def test_stopping_run_is_not_restarted(store: Corral) -> None:
    run = stopping(store)
    with raises_without_change(store, IllegalMove):
        store.internal.runs.restart(run, held(), ExitStatus(exit_code=1), quick_failures=1)
    with raises_without_change(store, IllegalMove):
        store.internal.runs.park(run, until=1, reason="quota")


# -- take-over ---------------------------------------------------------------------------------


@each_case("state", ["starting", "running", "stopping"])
def test_new_supervisor_can_take_over_any_active_run(store: Corral, state: str) -> None:
    run = {"starting": starting, "running": running, "stopping": stopping}[state](store)
    taken_over = store.internal.runs.take_over(
        run, owner="supervisor:2", supervisor_pid=5, supervisor_token="5"
    )
    assert (taken_over.owner, taken_over.supervisor_pid, taken_over.supervisor_token) == (
        "supervisor:2",
        5,
        "5",
    )
    assert (taken_over.state, taken_over.fence) == (state, run.fence + 1)
    assert (taken_over.pid, taken_over.start_token, taken_over.attempts) == (
        run.pid,
        run.start_token,
        1,
    )
    assert list_events(store, run.id)[-1] == "run.take_over"


def test_run_without_a_process_is_not_taken_over(store: Corral) -> None:
    for run in (queued(store), ended(store)):
        with raises_without_change(store, Conflict):
            store.internal.runs.take_over(run, owner="k", supervisor_pid=5, supervisor_token="5")


def test_one_of_two_new_supervisors_takes_over(store: Corral) -> None:
    run = running(store)
    store.internal.runs.take_over(run, owner="supervisor:2", supervisor_pid=5, supervisor_token="5")
    with raises_without_change(store, Held):
        store.internal.runs.take_over(
            run, owner="supervisor:3", supervisor_pid=6, supervisor_token="6"
        )


def test_every_write_of_a_replaced_supervisor_is_rejected(
    store: Corral, clock: ManualClock
) -> None:
    replaced = running(store)
    store.internal.runs.take_over(
        replaced, owner="supervisor:2", supervisor_pid=5, supervisor_token="5"
    )
    writes = {
        "heartbeat": lambda: store.internal.runs.heartbeat(replaced, output_bytes=9),
        "launch": lambda: store.internal.runs.launch(replaced),
        "request_stop": lambda: store.internal.runs.request_stop(replaced.id, fence=replaced.fence),
        "restart": lambda: store.internal.runs.restart(
            replaced, held(), ExitStatus(exit_code=1), quick_failures=1
        ),
        "park": lambda: store.internal.runs.park(replaced, until=clock.now() + 1, reason="quota"),
        "end": lambda: store.internal.runs.record_end(
            replaced, ExitStatus(exit_code=0), output_bytes=5
        ),
        "take_over": lambda: store.internal.runs.take_over(
            replaced, owner="supervisor:1", supervisor_pid=1, supervisor_token="1"
        ),
    }
    for name, write in writes.items():
        with raises_without_change(store, Held) as caught:
            write()
        assert "supervisor:2" in caught.value.message, name


def test_replaced_supervisor_cannot_set_attention(store: Corral) -> None:
    replaced = running(store)
    store.internal.runs.take_over(
        replaced, owner="supervisor:2", supervisor_pid=5, supervisor_token="5"
    )
    with unchanged(store), pytest.raises(Held):
        store.internal.runs.set_attention(replaced, Attention.STUCK)


def test_supervisor_of_a_requeued_and_restarted_run_is_rejected(
    store: Corral, clock: ManualClock
) -> None:
    replaced = running(store, max_restarts=1)
    clock.advance(HOUR)
    (result,) = store.runs.recover()
    assert (result.state, result.reason) == ("queued", "lease expired")
    acquired = store.internal.runs.acquire(replaced.id, held(2, host=ELSEWHERE))
    with raises_without_change(store, Held):
        store.internal.runs.record_end(replaced, ExitStatus(exit_code=0))
    with raises_without_change(store, Held):
        store.internal.runs.heartbeat(replaced, output_bytes=1)
    assert (
        store.internal.runs.record_end(
            store.internal.runs.launch(acquired), ExitStatus(exit_code=4)
        ).exit_code
        == 4
    )


# -- details of the agent ----------------------------------------------------------------------


def test_details_of_the_agent_are_merged(store: Corral) -> None:
    run = running(store)
    store.internal.runs.update_details(run, model="m-1", provider_version="1.2")
    updated = store.internal.runs.update_details(run, tokens=10)
    assert (updated.model, updated.provider_version, updated.tokens) == ("m-1", "1.2", 10)
    assert updated.cost_micros is None
    assert store.internal.runs.update_details(run, cost_micros=0).cost_micros == 0
    assert store.internal.runs.update_details(run).tokens == 10


@each_case("name", ["model", "provider_version"])
@each_case("text", ["a\0b", "a\ud800b", "x" * 100_000, "\0", ""], ids=lambda text: repr(text)[:12])
def test_details_of_the_agent_are_sanitized(store: Corral, name: str, text: str) -> None:
    run = running(store)
    updated = store.internal.runs.update_details(run, **{name: text})
    value = getattr(updated, name) or ""
    assert "\0" not in value
    assert len(value) <= 200
    assert store.runs.get(run.id) == updated


@each_case("figure", [1 << 70, -1, 1.5])
@each_case("name", ["tokens", "cost_micros"])
def test_invalid_usage_figures_are_rejected(store: Corral, figure: float, name: str) -> None:
    run = running(store)
    with raises_without_change(store, Invalid):
        store.internal.runs.update_details(run, **{name: figure})


def test_environment_of_a_run_is_recorded(store: Corral) -> None:
    run = running(store)
    store.internal.runs.record_environment(run, {"commit": "abc", "dirty": True})
    store.internal.runs.record_environment(run, {"commit": "def"})
    assert store.runs.get_launch(run.id).environment == {"commit": "def"}
    with raises_without_change(store, Invalid):
        store.internal.runs.record_environment(run, {"commit": "\0"})
    with raises_without_change(store, Invalid):
        store.internal.runs.record_environment(run, {"commit": "x" * (1 << 21)})


def test_samples_are_ordered_and_unique_by_time(store: Corral, clock: ManualClock) -> None:
    run, other_run = running(store), running(store)
    for at, cpu in ((30, 3), (10, 1), (20, 2), (10, 9)):
        store.internal.runs.add_sample(run, ResourceSample(at, cpu, 100, 2))
    store.internal.runs.add_sample(other_run, ResourceSample(15, 1, 1, 1))
    assert [(sample.at, sample.cpu_ms) for sample in store.runs.samples(run.id)] == [
        (10, 1),
        (20, 2),
        (30, 3),
    ]
    assert store.runs.samples(queued(store).id) == []


LATE_WRITES: dict[str, Callable[[Corral, Run], object]] = {
    "update_details": lambda store, run: store.internal.runs.update_details(run, tokens=7),
    "record_denials": lambda store, run: store.runs.record_denials(run, {"Edit": 1}),
    "link_session": lambda store, run: store.runs.link_session(run, store.sessions.open().id),
    "add_sample": lambda store, run: store.internal.runs.add_sample(
        run, ResourceSample(1, 1, 1, 1)
    ),
    "record_environment": lambda store, run: store.internal.runs.record_environment(
        run, {"commit": "old"}
    ),
}


@each_case("operation", LATE_WRITES)
def test_late_report_of_a_replaced_supervisor_is_rejected(store: Corral, operation: str) -> None:
    run = running(store)
    taken_over = store.internal.runs.take_over(
        run, owner="supervisor:2", supervisor_pid=5, supervisor_token="5"
    )
    with pytest.raises(Held):
        LATE_WRITES[operation](store, run)
    current = store.runs.get(run.id)
    assert (current.tokens, current.denials, current.session_id) == (None, None, None)
    assert store.runs.samples(run.id) == []
    assert store.runs.get_launch(run.id).environment == {}
    LATE_WRITES[operation](store, taken_over)
    store.internal.runs.record_end(taken_over, ExitStatus(exit_code=0))
    with pytest.raises(Held):
        LATE_WRITES[operation](store, taken_over)


# -- waiting for quota -------------------------------------------------------------------------


def test_parked_run_continues_as_the_same_run_when_due(store: Corral, clock: ManualClock) -> None:
    run = running(store)
    until = clock.now() + HOUR
    parked = store.internal.runs.park(run, until=until, reason="quota exceeded")
    assert (parked.state, parked.due_at, parked.attention) == ("queued", until, "parked")
    assert (parked.reason, parked.lease_until, parked.fence) == (
        "quota exceeded",
        None,
        run.fence + 1,
    )
    assert next_queued(store, host=ELSEWHERE) is None
    clock.at = until
    assert next_queued(store, host=ELSEWHERE) == parked
    acquired = store.internal.runs.acquire(run.id, held(2))
    assert (acquired.attempts, acquired.attention, acquired.reason) == (2, None, None)
    assert acquired.started_at == run.started_at
    with raises_without_change(store, Held):
        store.internal.runs.record_end(run, ExitStatus(exit_code=1))


def test_quota_reset_in_the_past_means_now(store: Corral, clock: ManualClock) -> None:
    parked = store.internal.runs.park(running(store), until=5, reason="quota")
    assert parked.due_at == clock.now()


@each_case("reason", ["", "x" * 100_000, "a\0b", "lone \ud800 surrogate"])
def test_any_quota_reason_parks_the_run(store: Corral, clock: ManualClock, reason: str) -> None:
    parked = store.internal.runs.park(running(store), until=clock.now() + 1, reason=reason)
    assert parked.state is RunState.QUEUED
    assert len(parked.reason or "") <= 200


def test_stopping_a_parked_run_releases_its_budget(store: Corral, clock: ManualClock) -> None:
    store.budgets.set("all", 100)
    run = running(store, budget_micros=60)
    store.internal.runs.park(run, until=clock.now() + DAY, reason="quota")
    stopped = store.runs.stop(run.id, reason="enough")
    assert (stopped.state, stopped.reason, stopped.attention) == ("cancelled", "enough", None)
    assert store.budgets.get("all").reserved_micros == 0


# -- a clock that jumps back -------------------------------------------------------------------


def test_run_never_ends_before_its_start_when_the_clock_jumps_back(
    store: Corral, clock: ManualClock
) -> None:
    run = running(store)
    clock.advance(-HOUR)
    renewed = store.internal.runs.heartbeat(run, output_bytes=1)
    assert renewed.lease_until == clock.now() + LEASE_MS
    ended_run = store.internal.runs.record_end(run, ExitStatus(exit_code=0))
    assert ended_run.started_at is not None
    assert ended_run.ended_at is not None
    assert ended_run.ended_at >= ended_run.started_at


def test_cancelled_queued_run_never_ends_before_its_creation(
    store: Corral, clock: ManualClock
) -> None:
    queued_run = queued(store)
    clock.advance(-HOUR)
    cancelled = store.runs.stop(queued_run.id)
    assert cancelled.ended_at is not None
    assert cancelled.ended_at >= cancelled.created_at


def test_newest_run_is_first_when_the_clock_jumps_back(store: Corral, clock: ManualClock) -> None:
    older = queued(store)
    clock.advance(-HOUR)
    newer = queued(store)
    assert [run.id for run in store.runs.list().items] == [newer.id, older.id]
    assert next_queued(store, host="h") == newer  # already due by the current clock


def test_denied_calls_are_counted_by_attempt_and_tool(store: Corral) -> None:
    run = running(store)
    assert (run.denials, run.denied, run.denied_text) == (None, {}, None)
    for _ in range(2):  # a repeated report replaces the first one
        run = store.runs.record_denials(run, {"Bash": 1, "Edit": 2})
    assert run.denied == {"Edit": 2, "Bash": 1}
    assert run.denied_text == "3 denied (Edit ×2, Bash)"  # noqa: RUF001
    assert run.retry_command is None, "the run is still active"
    restarted = store.internal.runs.restart(run, held(2), ExitStatus(exit_code=1), quick_failures=0)
    restarted = store.runs.record_denials(restarted, {"Edit": 1})
    assert restarted.denied == {"Edit": 3, "Bash": 1}
    assert store.runs.get(run.id).denied == restarted.denied


def test_run_is_linked_to_the_session_of_its_cli(store: Corral) -> None:
    run = running(store)
    session = store.sessions.open(provider="claude", provider_session="abc")
    linked = store.runs.link_session(run, session.id)
    assert linked.session_id == session.id
    with unchanged(store):
        assert store.runs.link_session(linked, session.id) == linked
