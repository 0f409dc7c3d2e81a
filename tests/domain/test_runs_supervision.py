"""What supervisors say of their runs, and which of them is listened to."""

from pathlib import Path

import pytest

from corral.api import Corral
from corral.domain.runs.model import Attention, ResourceSample, RunState
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
from tests.support.store import record, refuses, rows, unchanged


@pytest.fixture(autouse=True)
def _no_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    without_supervisors(monkeypatch)


def test_supervisor_acquires_a_run_with_its_process_identity(
    store: Corral, clock: ManualClock
) -> None:
    asked = queued(store)
    clock.advance(SECOND)
    run = store.internal.runs.acquire(asked.id, held(1))
    assert (run.state, run.owner, run.fence, run.attempts) == ("starting", "supervisor:1", 1, 1)
    assert (run.host, run.boot_id, run.pid, run.start_token) == (ELSEWHERE, "boot", 10_001, "100")
    assert (run.supervisor_pid, run.supervisor_token) == (20_001, "101")
    assert (run.started_at, run.seen_at) == (clock.now(), clock.now())
    assert run.lease_until == clock.now() + LEASE_MS
    assert store.outputs.get(run.id).host == ELSEWHERE
    assert [verb for verb in record(store, run.id) if verb.startswith("run.")] == [
        "run.queue",
        "run.start",
    ]


def test_acquired_run_cannot_be_acquired_again(store: Corral) -> None:
    run = starting(store)
    for supervisor in (1, 2):
        with refuses(store, IllegalMove):
            store.internal.runs.acquire(run.id, held(supervisor))


def test_ended_run_cannot_be_acquired(store: Corral) -> None:
    run = ended(store)
    with refuses(store, IllegalMove):
        store.internal.runs.acquire(run.id, held(2))
    with refuses(store, NotFound):
        store.internal.runs.acquire("run_" + "0" * 26, held(2))


def test_launch_is_allowed_once(store: Corral, clock: ManualClock) -> None:
    run = starting(store)
    clock.advance(5)
    launched = store.internal.runs.launch(run)
    assert (launched.state, launched.seen_at) == ("running", clock.now())
    assert launched.started_at == clock.now() - 5
    with refuses(store, IllegalMove):
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
    asked = queued(store)
    with refuses(store, Invalid):
        store.internal.runs.acquire(asked.id, held(), lease_ms=lease_ms)
    run = running(store)
    with refuses(store, Invalid):
        store.internal.runs.heartbeat(run, output_bytes=0, lease_ms=lease_ms)


# -- going on ----------------------------------------------------------------------------------


def test_heartbeat_renews_the_lease_and_writes_no_event(store: Corral, clock: ManualClock) -> None:
    run = running(store)
    before = record(store)
    clock.advance(30 * SECOND)
    beaten = store.internal.runs.heartbeat(run, output_bytes=7, cpu_ms=5, peak_bytes=9)
    assert (beaten.lease_until, beaten.seen_at) == (clock.now() + LEASE_MS, clock.now())
    assert (beaten.output_bytes, beaten.cpu_ms, beaten.peak_bytes) == (7, 5, 9)
    assert beaten.fence == run.fence
    quiet = store.internal.runs.heartbeat(run, output_bytes=8)
    assert (quiet.output_bytes, quiet.cpu_ms, quiet.peak_bytes) == (8, 5, 9)
    assert record(store) == before


def test_heartbeat_returns_a_pending_stop(store: Corral) -> None:
    run = running(store)
    store.internal.runs.request_stop(run.id, reason="enough")
    heard = store.internal.runs.heartbeat(run, output_bytes=0)
    assert (heard.state, heard.stop_reason) == (RunState.STOPPING, "enough")


def test_late_heartbeat_is_accepted_while_the_fence_is_current(
    store: Corral, clock: ManualClock
) -> None:
    run = running(store)
    clock.advance(HOUR)
    assert store.internal.runs.heartbeat(run, output_bytes=0).lease_until == clock.now() + LEASE_MS


def test_queued_or_ended_run_rejects_heartbeats(store: Corral) -> None:
    for run in (queued(store), ended(store)):
        with refuses(store, Conflict):
            store.internal.runs.heartbeat(run, output_bytes=0)


def test_restart_is_the_same_run_with_another_process(store: Corral, clock: ManualClock) -> None:
    run = running(store)
    store.internal.runs.set_attention(run, Attention.NEEDS_INPUT)
    clock.advance(SECOND)
    again = store.internal.runs.restart(
        run, held(1, pid=77, start_token="7"), ExitStatus(exit_code=3), quick_failures=1
    )
    assert (again.id, again.state, again.attempts) == (run.id, RunState.STARTING, 2)
    assert (again.pid, again.start_token, again.quick_failures) == (77, "7", 1)
    assert (again.fence, again.started_at, again.attention) == (run.fence + 1, run.started_at, None)
    assert again.exit_code is None
    assert store.internal.runs.launch(again).state is RunState.RUNNING
    ((data,),) = rows(store, "SELECT CAST(data AS TEXT) FROM events WHERE verb = 'restart'")
    assert '"exit_code":3' in data.replace(" ", "")


def test_writes_about_the_last_attempt_are_rejected(store: Corral) -> None:
    """A recovery reads the first attempt, its supervisor begins the second and is killed: the first
    one's end, which is written down, must not become the second one's."""
    seen = running(store)
    store.internal.runs.restart(
        seen, held(1, pid=77, start_token="7"), ExitStatus(signal=11), quick_failures=1
    )
    with refuses(store, Held):
        store.internal.runs.end(seen, ExitStatus(signal=11))
    with refuses(store, Held):
        store.internal.runs.end_orphaned(seen, verb="crash", reason="gone")


def test_stopping_run_is_not_restarted(store: Corral) -> None:
    run = stopping(store)
    with refuses(store, IllegalMove):
        store.internal.runs.restart(run, held(), ExitStatus(exit_code=1), quick_failures=1)
    with refuses(store, IllegalMove):
        store.internal.runs.park(run, until=1, reason="quota")


# -- being taken over --------------------------------------------------------------------------


@each_case("state", ["starting", "running", "stopping"])
def test_new_supervisor_can_take_over_any_active_run(store: Corral, state: str) -> None:
    run = {"starting": starting, "running": running, "stopping": stopping}[state](store)
    taken = store.internal.runs.take_over(
        run, owner="supervisor:2", supervisor_pid=5, supervisor_token="5"
    )
    assert (taken.owner, taken.supervisor_pid, taken.supervisor_token) == ("supervisor:2", 5, "5")
    assert (taken.state, taken.fence) == (state, run.fence + 1)
    assert (taken.pid, taken.start_token, taken.attempts) == (run.pid, run.start_token, 1)
    assert record(store, run.id)[-1] == "run.take_over"


def test_run_without_a_process_is_not_taken_over(store: Corral) -> None:
    for run in (queued(store), ended(store)):
        with refuses(store, Conflict):
            store.internal.runs.take_over(run, owner="k", supervisor_pid=5, supervisor_token="5")


def test_one_of_two_new_supervisors_takes_over(store: Corral) -> None:
    run = running(store)
    store.internal.runs.take_over(run, owner="supervisor:2", supervisor_pid=5, supervisor_token="5")
    with refuses(store, Held):
        store.internal.runs.take_over(
            run, owner="supervisor:3", supervisor_pid=6, supervisor_token="6"
        )


def test_every_write_of_a_replaced_supervisor_is_rejected(
    store: Corral, clock: ManualClock
) -> None:
    late = running(store)
    store.internal.runs.take_over(
        late, owner="supervisor:2", supervisor_pid=5, supervisor_token="5"
    )
    said = {
        "heartbeat": lambda: store.internal.runs.heartbeat(late, output_bytes=9),
        "launch": lambda: store.internal.runs.launch(late),
        "restart": lambda: store.internal.runs.restart(
            late, held(), ExitStatus(exit_code=1), quick_failures=1
        ),
        "park": lambda: store.internal.runs.park(late, until=clock.now() + 1, reason="quota"),
        "end": lambda: store.internal.runs.end(late, ExitStatus(exit_code=0), output_bytes=5),
        "take_over": lambda: store.internal.runs.take_over(
            late, owner="supervisor:1", supervisor_pid=1, supervisor_token="1"
        ),
    }
    for what, say in said.items():
        with refuses(store, Held) as caught:
            say()
        assert "supervisor:2" in caught.value.message, what


def test_replaced_supervisor_cannot_set_attention(store: Corral) -> None:
    late = running(store)
    store.internal.runs.take_over(
        late, owner="supervisor:2", supervisor_pid=5, supervisor_token="5"
    )
    with unchanged(store), pytest.raises(Held):
        store.internal.runs.set_attention(late, Attention.STUCK)


def test_supervisor_of_a_requeued_and_restarted_run_is_rejected(
    store: Corral, clock: ManualClock
) -> None:
    late = running(store, max_restarts=1)
    clock.advance(HOUR)
    (found,) = store.runs.recover()
    assert (found.state, found.reason) == ("queued", "lease expired")
    new = store.internal.runs.acquire(late.id, held(2, host=ELSEWHERE))
    with refuses(store, Held):
        store.internal.runs.end(late, ExitStatus(exit_code=0))
    with refuses(store, Held):
        store.internal.runs.heartbeat(late, output_bytes=1)
    assert (
        store.internal.runs.end(store.internal.runs.launch(new), ExitStatus(exit_code=4)).exit_code
        == 4
    )


# -- what is told ------------------------------------------------------------------------------


def test_details_of_the_agent_are_merged(store: Corral) -> None:
    run = running(store)
    store.internal.runs.update_details(run, model="m-1", provider_version="1.2")
    told = store.internal.runs.update_details(run, tokens=10)
    assert (told.model, told.provider_version, told.tokens) == ("m-1", "1.2", 10)
    assert told.cost_micros is None
    assert store.internal.runs.update_details(run, cost_micros=0).cost_micros == 0
    assert store.internal.runs.update_details(run).tokens == 10


@each_case("name", ["model", "provider_version"])
@each_case("text", ["a\0b", "a\ud800b", "x" * 100_000, "\0", ""], ids=lambda text: repr(text)[:12])
def test_details_of_the_agent_are_sanitized(store: Corral, name: str, text: str) -> None:
    run = running(store)
    told = store.internal.runs.update_details(run, **{name: text})
    kept = getattr(told, name) or ""
    assert "\0" not in kept
    assert len(kept) <= 200
    assert store.runs.get(run.id) == told


@each_case("figure", [1 << 70, -1, 1.5])
@each_case("name", ["tokens", "cost_micros"])
def test_invalid_usage_figures_are_rejected(store: Corral, figure: float, name: str) -> None:
    run = running(store)
    with refuses(store, Invalid):
        store.internal.runs.update_details(run, **{name: figure})


def test_environment_of_a_run_is_recorded(store: Corral) -> None:
    run = running(store)
    store.internal.runs.record_environment(run, {"commit": "abc", "dirty": True})
    store.internal.runs.record_environment(run, {"commit": "def"})
    assert store.runs.get_launch(run.id).environment == {"commit": "def"}
    with refuses(store, Invalid):
        store.internal.runs.record_environment(run, {"commit": "\0"})
    with refuses(store, Invalid):
        store.internal.runs.record_environment(run, {"commit": "x" * (1 << 21)})


def test_samples_are_ordered_and_unique_by_time(store: Corral, clock: ManualClock) -> None:
    run, other = running(store), running(store)
    for at, cpu in ((30, 3), (10, 1), (20, 2), (10, 9)):
        store.internal.runs.add_sample(run, ResourceSample(at, cpu, 100, 2))
    store.internal.runs.add_sample(other, ResourceSample(15, 1, 1, 1))
    assert [(one.at, one.cpu_ms) for one in store.runs.samples(run.id)] == [
        (10, 1),
        (20, 2),
        (30, 3),
    ]
    assert store.runs.samples(queued(store).id) == []


# -- waiting for quota -------------------------------------------------------------------------


def test_parked_run_continues_as_the_same_run_when_due(store: Corral, clock: ManualClock) -> None:
    run = running(store)
    until = clock.now() + HOUR
    parked = store.internal.runs.park(run, until=until, reason="quota until noon")
    assert (parked.state, parked.due_at, parked.attention) == ("queued", until, "parked")
    assert (parked.reason, parked.lease_until, parked.fence) == (
        "quota until noon",
        None,
        run.fence + 1,
    )
    assert next_queued(store, host=ELSEWHERE) is None
    clock.at = until
    assert next_queued(store, host=ELSEWHERE) == parked
    again = store.internal.runs.acquire(run.id, held(2))
    assert (again.attempts, again.attention, again.reason) == (2, None, None)
    assert again.started_at == run.started_at
    with refuses(store, Held):
        store.internal.runs.end(run, ExitStatus(exit_code=1))


def test_quota_reset_in_the_past_means_now(store: Corral, clock: ManualClock) -> None:
    parked = store.internal.runs.park(running(store), until=5, reason="quota")
    assert parked.due_at == clock.now()


@each_case("reason", ["", "x" * 100_000, "a\0b", "half \ud800 a pair"])
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
    beaten = store.internal.runs.heartbeat(run, output_bytes=1)
    assert beaten.lease_until == clock.now() + LEASE_MS
    over = store.internal.runs.end(run, ExitStatus(exit_code=0))
    assert over.started_at is not None
    assert over.ended_at is not None
    assert over.ended_at >= over.started_at


def test_cancelled_queued_run_never_ends_before_its_creation(
    store: Corral, clock: ManualClock
) -> None:
    asked = queued(store)
    clock.advance(-HOUR)
    over = store.runs.stop(asked.id)
    assert over.ended_at is not None
    assert over.ended_at >= over.created_at


def test_newest_run_is_first_when_the_clock_jumps_back(store: Corral, clock: ManualClock) -> None:
    first = queued(store)
    clock.advance(-HOUR)
    second = queued(store)
    assert [run.id for run in store.runs.list().items] == [second.id, first.id]
    assert next_queued(store, host="h") == second  # due already, by the clock that counts


def test_denied_calls_are_counted_by_attempt_and_tool(store: Corral) -> None:
    run = running(store)
    assert (run.denials, run.denied, run.denied_text) == (None, {}, None)
    for _ in range(2):  # told again, they are the same
        run = store.runs.record_denials(run, {"Bash": 1, "Edit": 2})
    assert run.denied == {"Edit": 2, "Bash": 1}
    assert run.denied_text == "3 denied (Edit ×2, Bash)"  # noqa: RUF001
    assert run.retry_command is None, "it goes on"
    again = store.internal.runs.restart(run, held(2), ExitStatus(exit_code=1), quick_failures=0)
    again = store.runs.record_denials(again, {"Edit": 1})
    assert again.denied == {"Edit": 3, "Bash": 1}
    assert store.runs.get(run.id).denied == again.denied


def test_run_is_linked_to_the_session_of_its_cli(store: Corral) -> None:
    run = running(store)
    session = store.sessions.open(provider="claude", provider_session="abc")
    linked = store.runs.link_session(run, session.id)
    assert linked.session_id == session.id
    with unchanged(store):
        assert store.runs.link_session(linked, session.id) == linked
