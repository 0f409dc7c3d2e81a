"""Dispatch of queued runs: claims, slots, labels, pinned hosts and failing supervisors."""

import errno
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from corral.adapters import supervisor_process
from corral.adapters.processes import process
from corral.api import Corral
from corral.db.database import Database
from corral.domain.runs import dispatch
from corral.domain.runs.dispatch import CLAIM_MS
from corral.domain.runs.model import Run, RunState
from corral.kernel.clock import HOUR, ManualClock
from corral.kernel.errors import Conflict, CorralError, NoRoom
from corral.kernel.exit_status import ExitStatus
from corral.services.runs import dispatch as starter
from tests.support import run_factories
from tests.support.run_factories import held, running
from tests.support.store import read, unchanged, write
from tests.support.threads import Racer

Keep = Callable[[str], dict[str, Any]]


def queued(store: Corral, **fields: Any) -> Run:
    """Queue a run whose directory exists on this host."""
    return run_factories.queued(store, **{"cwd": "/"} | fields)


def claim(store: Corral, run: str, *, host: str) -> bool:
    return write(store, lambda tx: dispatch.claim(tx, run, host=host))


@pytest.fixture
def offered_runs(store: Corral, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace supervisors by fakes that acquire runs in this process; return the offered runs."""
    offered: list[str] = []

    class Supervisor:
        def start(self, *, run: str, **_: Any) -> dict[str, Any]:
            offered.append(run)
            assert len(offered) < 100, "the same run is offered repeatedly"
            holder = held(len(offered), host=process.host(), boot_id=process.boot_id())
            try:
                store.internal.runs.launch(store.internal.runs.acquire(run, holder))
            except NoRoom as error:
                return {"waits": error.message}
            except Conflict as error:
                return {"taken": error.message}
            except CorralError as error:
                store.internal.runs.fail(run, reason=error.message)
                return {"failed": error.message}
            return {"pid": holder.pid}

    monkeypatch.setattr(supervisor_process, "StartingSupervisor", Supervisor)
    return offered


def get_states(store: Corral, *runs: Run) -> list[RunState]:
    return [store.runs.get(run.id).state for run in runs]


def test_runs_are_started_while_slots_are_free(store: Corral, offered_runs: list[str]) -> None:
    store.settings.set("runs.max_concurrent", 2)
    first_run, second_run, third_run = (queued(store) for _ in range(3))
    assert [run.id for run in store.runs.start_queued()] == [first_run.id, second_run.id]
    assert store.runs.start_queued() == []
    store.internal.runs.record_end(store.runs.get(first_run.id), ExitStatus(exit_code=0))
    assert [run.id for run in store.runs.start_queued()] == [third_run.id]
    assert offered_runs == [first_run.id, second_run.id, third_run.id]


def test_end_of_a_run_starts_the_next_one(store: Corral, offered_runs: list[str]) -> None:
    store.settings.set("runs.max_concurrent", 1)
    first_run, second_run = queued(store), queued(store)
    store.runs.start_queued()
    ended = store.internal.runs.record_end(store.runs.get(first_run.id), ExitStatus(exit_code=0))
    store.internal.runs.clean_up(ended)
    assert get_states(store, first_run, second_run) == ["completed", "running"]


def test_parked_run_continues_when_it_is_due(
    store: Corral, clock: ManualClock, offered_runs: list[str]
) -> None:
    run = queued(store)
    store.runs.start_queued()
    store.internal.runs.park(store.runs.get(run.id), until=clock.now() + HOUR, reason="quota")
    assert store.runs.start_queued() == []
    clock.advance(HOUR)
    assert [dispatched.id for dispatched in store.runs.start_queued()] == [run.id]
    assert store.runs.get(run.id).attempts == 2


def test_refused_run_does_not_block_the_queue(store: Corral, offered_runs: list[str]) -> None:
    store.budgets.set("agent:agt_1", 0)
    refused = queued(store, agent_id="agt_1")
    other_run = queued(store)
    assert [run.id for run in store.runs.start_queued()] == [other_run.id]
    assert get_states(store, refused, other_run) == ["failed", "running"]
    failed = store.runs.get(refused.id)
    assert failed.reason
    assert (failed.exit_code, failed.started_at) == (None, None)


def test_lost_supervisor_does_not_block_the_queue(
    store: Corral, offered_runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost_run, other_run = queued(store), queued(store)
    fake_supervisor: Any = supervisor_process.StartingSupervisor

    class LostSupervisor(fake_supervisor):
        def start(self, *, run: str, **options: Any) -> dict[str, Any]:
            if run == lost_run.id:
                offered_runs.append(run)
                raise supervisor_process.SupervisorLost
            response: dict[str, Any] = super().start(run=run, **options)
            return response

    monkeypatch.setattr(supervisor_process, "StartingSupervisor", LostSupervisor)
    store.runs.start_queued()
    assert get_states(store, lost_run, other_run) == ["queued", "running"]


def test_run_taken_by_another_dispatcher_does_not_block_the_queue(
    store: Corral, offered_runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken_run, free_run = queued(store), queued(store)
    fake_supervisor: Any = supervisor_process.StartingSupervisor

    class LateSupervisor(fake_supervisor):
        def start(self, *, run: str, **options: Any) -> dict[str, Any]:
            if run == taken_run.id:  # another host acquires the run first
                store.internal.runs.acquire(taken_run.id, held(9))
            response: dict[str, Any] = super().start(run=run, **options)
            return response

    monkeypatch.setattr(supervisor_process, "StartingSupervisor", LateSupervisor)
    assert [run.id for run in store.runs.start_queued()] == [free_run.id]
    assert store.runs.get(taken_run.id).owner == "supervisor:9"


def test_two_dispatchers_start_one_run_for_one_slot(
    store: Corral, offered_runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.settings.set("runs.max_concurrent", 1)
    claimed_run, queued_run = queued(store), queued(store)
    fake_supervisor: Any = supervisor_process.StartingSupervisor

    class SlowSupervisor(fake_supervisor):
        def start(self, *, run: str, **options: Any) -> dict[str, Any]:
            if run == claimed_run.id:  # a second dispatcher runs while this supervisor starts
                assert store.runs.start_queued() == []
            response: dict[str, Any] = super().start(run=run, **options)
            return response

    monkeypatch.setattr(supervisor_process, "StartingSupervisor", SlowSupervisor)
    assert [run.id for run in store.runs.start_queued()] == [claimed_run.id]
    assert offered_runs == [claimed_run.id]
    assert get_states(store, claimed_run, queued_run) == ["running", "queued"]


def test_expired_claim_frees_its_slot(
    store: Corral, clock: ManualClock, offered_runs: list[str]
) -> None:
    store.settings.set("runs.max_concurrent", 1)
    claimed_run, queued_run = queued(store), queued(store)
    assert claim(store, claimed_run.id, host=process.host())  # the claimant crashes
    assert store.runs.start_queued() == []
    assert store.runs.next_due() == clock.now() + CLAIM_MS, "time of the next check"
    clock.advance(HOUR)
    assert [run.id for run in store.runs.start_queued()] == [claimed_run.id]
    assert get_states(store, claimed_run, queued_run) == ["running", "queued"]


def test_run_whose_supervisors_keep_failing_is_deferred(
    store: Corral, clock: ManualClock, offered_runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.settings.set("runs.max_concurrent", 1)
    lost_run, other_run = queued(store), queued(store)
    fake_supervisor: Any = supervisor_process.StartingSupervisor

    class LostSupervisor(fake_supervisor):
        def start(self, *, run: str, **options: Any) -> dict[str, Any]:
            if run == lost_run.id:
                raise supervisor_process.SupervisorLost
            response: dict[str, Any] = super().start(run=run, **options)
            return response

    monkeypatch.setattr(supervisor_process, "StartingSupervisor", LostSupervisor)
    assert [run.id for run in store.runs.start_queued()] == [other_run.id]
    deferred = store.runs.get(lost_run.id)
    assert (deferred.state, deferred.due_at) == ("queued", clock.now() + CLAIM_MS)
    assert "was lost" in (deferred.reason or "")
    assert store.runs.next_due() == deferred.due_at
    (options,) = [event for event in store.events.newest().items if event.verb == "defer"]
    assert options.subject == lost_run.id


def test_failed_fork_frees_the_slot(
    store: Corral, offered_runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.settings.set("runs.max_concurrent", 1)
    queued_run = queued(store)
    fake_supervisor: Any = supervisor_process.StartingSupervisor

    def fail_to_fork() -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(supervisor_process, "StartingSupervisor", fail_to_fork)
    with pytest.raises(OSError, match="temporarily"):
        store.runs.start_queued()
    monkeypatch.setattr(supervisor_process, "StartingSupervisor", fake_supervisor)
    assert [run.id for run in store.runs.start_queued()] == [queued_run.id]


def test_drain_queue_outlasts_a_claimant_that_crashed(
    store: Corral, clock: ManualClock, offered_runs: list[str]
) -> None:
    """Without a daemon, no other process would check the queue again."""
    store.settings.set("runs.max_concurrent", 1)
    claimed_run, queued_run = queued(store), queued(store)
    assert claim(store, claimed_run.id, host=process.host())
    racer = Racer(store.internal.runs.drain_queue)
    clock.advance(HOUR)
    racer.result()
    assert get_states(store, claimed_run, queued_run) == ["running", "queued"]


def test_claim_that_ends_after_the_check_is_noticed(
    store: Corral, clock: ManualClock, offered_runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.settings.set("runs.max_concurrent", 1)
    claimed_run, queued_run = queued(store), queued(store)
    assert claim(store, claimed_run.id, host=process.host())
    start_queued = starter.start_queued

    def start_then_expire_claim(database: Database) -> Sequence[Run]:
        started = start_queued(database)
        clock.advance(HOUR)
        return started

    monkeypatch.setattr(starter, "start_queued", start_then_expire_claim)
    store.internal.runs.drain_queue()
    assert get_states(store, claimed_run, queued_run) == ["running", "queued"]


def test_drain_queue_returns_when_no_claim_is_pending(
    store: Corral, offered_runs: list[str]
) -> None:
    store.settings.set("runs.max_concurrent", 1)
    store.internal.runs.drain_queue()  # the queue is empty
    first_run, _ = queued(store), queued(store, cwd="/srv/not/here")
    store.internal.runs.drain_queue()  # the second run waits for the slot of the first
    store.internal.runs.record_end(store.runs.get(first_run.id), ExitStatus(exit_code=0))
    store.internal.runs.drain_queue()  # the second run needs another host
    assert offered_runs == [first_run.id]


def test_only_a_queued_run_can_be_failed_and_only_once(store: Corral) -> None:
    queued_run, running_run = queued(store), running(store)
    failed = store.internal.runs.fail(queued_run.id, reason="no such directory")
    assert (failed.state, failed.reason, failed.exit_code) == ("failed", "no such directory", None)
    with unchanged(store):
        assert store.internal.runs.fail(queued_run.id, reason="again") == failed
        with pytest.raises(Conflict):  # only its supervisor may end it
            store.internal.runs.fail(running_run.id, reason="never")


def test_long_failure_reason_is_shortened(store: Corral) -> None:
    """Error messages have no length limit, and storing the reason must not fail."""
    failed = store.internal.runs.fail(queued(store).id, reason="The budget is spent. " * 40)
    assert failed.state == "failed"
    assert str(failed.reason).startswith("The budget is spent. ")
    lost_run = store.runs.lose(queued(store).id, reason="x" * 4_000)
    assert not lost_run.is_live


def test_runs_pinned_to_other_hosts_are_skipped(store: Corral, offered_runs: list[str]) -> None:
    remote = queued(store, host="other-host")
    local = queued(store, host=process.host())
    store.runs.start_queued()
    assert get_states(store, remote, local) == ["queued", "running"]
    assert offered_runs == [local.id]


def test_recovery_starts_queued_runs(
    store: Corral, clock: ManualClock, offered_runs: list[str]
) -> None:
    store.settings.set("runs.max_concurrent", 1)
    interrupted = running(store)
    queued_run = queued(store)
    assert store.runs.recover() == []
    clock.advance(HOUR)
    store.runs.recover()
    assert get_states(store, interrupted, queued_run) == ["interrupted", "running"]


# -- nodes, labels and slots -------------------------------------------------------------------


def join_node(store: Corral, name: str | None = None, **offers: Any) -> None:
    """Register a node with the store; by default this host."""
    store.internal.nodes.join(name or process.host(), "boot", owner="d", **{"slots": 10} | offers)


def test_run_waits_for_a_node_with_all_its_labels(store: Corral, offered_runs: list[str]) -> None:
    two_labels, one_label, no_labels = (
        queued(store, labels=["gpu", "big"]),
        queued(store, labels=["gpu"]),
        queued(store),
    )
    assert [run.id for run in store.runs.start_queued()] == [no_labels.id]
    join_node(store, "other-host", labels=["gpu", "big"])
    assert store.runs.start_queued() == []
    join_node(store, labels=["gpu", "x"])
    assert [run.id for run in store.runs.start_queued()] == [one_label.id]
    join_node(store, labels=["big", "gpu", "x"])
    assert [run.id for run in store.runs.start_queued()] == [two_labels.id]
    assert store.runs.get_launch(two_labels.id).labels == ["big", "gpu"]


def test_node_with_an_expired_lease_offers_no_labels(
    store: Corral, clock: ManualClock, offered_runs: list[str]
) -> None:
    queued(store, labels=["gpu"])
    join_node(store, labels=["gpu"])
    clock.advance(HOUR)
    assert store.runs.start_queued() == []


def test_node_starts_as_many_runs_as_it_has_slots(store: Corral, offered_runs: list[str]) -> None:
    join_node(store, slots=2)
    first_run, _, third_run = (queued(store) for _ in range(3))
    assert len(store.runs.start_queued()) == 2
    assert store.runs.get(third_run.id).state == "queued"
    with pytest.raises(NoRoom):
        store.internal.runs.acquire(third_run.id, held(9, host=process.host()))
    started = store.runs.get(first_run.id)
    assert started.node_id == store.nodes.list().items[0].id
    store.internal.runs.record_end(started, ExitStatus(exit_code=0))
    assert [run.id for run in store.runs.start_queued()] == [third_run.id]


def test_node_without_slots_starts_nothing(store: Corral, offered_runs: list[str]) -> None:
    join_node(store, slots=0)
    queued(store, host=process.host())
    assert store.runs.start_queued() == []
    assert offered_runs == []


def test_claims_of_other_hosts_use_no_local_slots(store: Corral, offered_runs: list[str]) -> None:
    join_node(store, slots=1)
    join_node(store, "other-host", slots=10)
    remote = [queued(store), queued(store, host="other-host")]
    for run in remote:
        assert claim(store, run.id, host="other-host")
    local, waiting = queued(store), queued(store)
    assert [run.id for run in store.runs.start_queued()] == [local.id]
    assert get_states(store, *remote, waiting) == ["queued"] * 3


def test_claims_of_this_host_use_local_slots(store: Corral, offered_runs: list[str]) -> None:
    join_node(store, slots=2)
    join_node(store, "other-host", slots=10)
    unpinned, pinned = queued(store), queued(store, host=process.host())
    for run in (unpinned, pinned):
        assert claim(store, run.id, host=process.host())
    waiting = queued(store)
    assert not read(store, lambda tx: dispatch.can_claim(tx, host=process.host()))
    assert claim(store, waiting.id, host="other-host")


def test_all_claims_count_toward_max_concurrent(store: Corral, offered_runs: list[str]) -> None:
    store.settings.set("runs.max_concurrent", 2)
    join_node(store)
    join_node(store, "other-host")
    claimed, local, _ = (queued(store) for _ in range(3))
    assert claim(store, claimed.id, host="other-host")
    assert [run.id for run in store.runs.start_queued()] == [local.id]


def test_runs_on_other_hosts_use_no_local_slots(store: Corral, offered_runs: list[str]) -> None:
    join_node(store, slots=1)
    running(store)
    queued_run = queued(store)
    assert [run.id for run in store.runs.start_queued()] == [queued_run.id]


def test_run_is_left_to_a_host_that_has_its_directory(
    store: Corral, offered_runs: list[str]
) -> None:
    project_runs = [queued(store, cwd="/srv/not/here", project_id="prj_1") for _ in range(3)]
    run_without_project = queued(store, cwd="/srv/not/here")
    local = queued(store)
    assert [run.id for run in store.runs.start_queued()] == [local.id]
    assert get_states(store, *project_runs, run_without_project) == ["queued"] * 4
    assert offered_runs == [local.id], "the directory is checked before a supervisor starts"


def test_pinned_run_is_started_although_its_directory_is_missing(
    store: Corral, offered_runs: list[str]
) -> None:
    queued(store, cwd="/srv/not/here", project_id="prj_1")
    pinned = queued(store, cwd="/srv/not/here", project_id="prj_1", host=process.host())
    store.runs.start_queued()
    assert offered_runs == [pinned.id]


def test_no_supervisor_is_started_for_an_agent_at_its_limit(
    store: Corral, offered_runs: list[str]
) -> None:
    agent = store.agents.create("ada", provider="scripted", limits={"max_runs": 1})
    waiting = [queued(store, agent_id=agent.id) for _ in range(3)]
    other_run = queued(store)
    assert [run.id for run in store.runs.start_queued()] == [waiting[0].id, other_run.id]
    assert offered_runs == [waiting[0].id, other_run.id]


def test_one_of_two_dispatchers_claims_a_run(store: Corral, clock: ManualClock) -> None:
    run = queued(store)
    assert claim(store, run.id, host="host")
    assert not claim(store, run.id, host="host")
    store.internal.runs.release_claim(run.id)
    assert claim(store, run.id, host="host")
    clock.advance(HOUR)
    assert claim(store, run.id, host="host"), "an expired claim can be taken over"
