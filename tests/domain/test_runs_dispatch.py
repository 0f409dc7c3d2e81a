"""Who is started next, by whoever sees to it that queued runs begin."""

import errno
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from corral.adapters import process, supervisor_process
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
from tests.support.store import unchanged
from tests.support.threads import Racer

Keep = Callable[[str], dict[str, Any]]


def queued(store: Corral, **wanted: Any) -> Run:
    """A run that waits, in a directory that is here."""
    return run_factories.queued(store, **{"cwd": "/"} | wanted)


def claim(store: Corral, run: str, *, host: str) -> bool:
    return store._database.write(lambda tx: dispatch.claim(tx, run, host=host))


@pytest.fixture
def keep(store: Corral, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Supervisors that only take their runs, in this process; gives the runs that were offered."""
    offered: list[str] = []

    class Supervisor:
        def start(self, *, run: str, **_: Any) -> dict[str, Any]:
            offered.append(run)
            assert len(offered) < 100, "the same run is offered for ever"
            me = held(len(offered), host=process.host(), boot_id=process.boot_id())
            try:
                store.internal.runs.launch(store.internal.runs.acquire(run, me))
            except NoRoom as error:
                return {"waits": error.message}
            except Conflict as error:
                return {"taken": error.message}
            except CorralError as error:
                store.internal.runs.fail(run, reason=error.message)
                return {"failed": error.message}
            return {"pid": me.pid}

    monkeypatch.setattr(supervisor_process, "StartingSupervisor", Supervisor)
    return offered


def states(store: Corral, *runs: Run) -> list[RunState]:
    return [store.runs.get(run.id).state for run in runs]


def test_runs_are_started_while_slots_are_free(store: Corral, keep: list[str]) -> None:
    store.settings.set("runs.max_concurrent", 2)
    first, second, third = (queued(store) for _ in range(3))
    assert [run.id for run in store.runs.start_queued()] == [first.id, second.id]
    assert store.runs.start_queued() == []
    store.internal.runs.end(store.runs.get(first.id), ExitStatus(exit_code=0))
    assert [run.id for run in store.runs.start_queued()] == [third.id]
    assert keep == [first.id, second.id, third.id]


def test_end_of_a_run_starts_the_next_one(store: Corral, keep: list[str]) -> None:
    store.settings.set("runs.max_concurrent", 1)
    first, second = queued(store), queued(store)
    store.runs.start_queued()
    over = store.internal.runs.end(store.runs.get(first.id), ExitStatus(exit_code=0))
    store.internal.runs.clean_up(over)
    assert states(store, first, second) == ["completed", "running"]


def test_parked_run_continues_when_it_is_due(
    store: Corral, clock: ManualClock, keep: list[str]
) -> None:
    run = queued(store)
    store.runs.start_queued()
    store.internal.runs.park(store.runs.get(run.id), until=clock.now() + HOUR, reason="quota")
    assert store.runs.start_queued() == []
    clock.advance(HOUR)
    assert [one.id for one in store.runs.start_queued()] == [run.id]
    assert store.runs.get(run.id).attempts == 2


def test_refused_run_does_not_block_the_queue(store: Corral, keep: list[str]) -> None:
    store.budgets.set("agent:agt_1", 0)
    poor = queued(store, agent_id="agt_1")
    other = queued(store)
    assert [run.id for run in store.runs.start_queued()] == [other.id]
    assert states(store, poor, other) == ["failed", "running"]
    over = store.runs.get(poor.id)
    assert over.reason
    assert (over.exit_code, over.started_at) == (None, None)


def test_lost_supervisor_does_not_block_the_queue(
    store: Corral, keep: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = queued(store), queued(store)
    taking: Any = supervisor_process.StartingSupervisor

    class Lost(taking):
        def start(self, *, run: str, **told: Any) -> dict[str, Any]:
            if run == bad.id:
                keep.append(run)
                raise supervisor_process.SupervisorLost
            answer: dict[str, Any] = super().start(run=run, **told)
            return answer

    monkeypatch.setattr(supervisor_process, "StartingSupervisor", Lost)
    store.runs.start_queued()
    assert states(store, bad, good) == ["queued", "running"]


def test_run_taken_by_another_dispatcher_does_not_block_the_queue(
    store: Corral, keep: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = queued(store), queued(store)
    taking: Any = supervisor_process.StartingSupervisor

    class Late(taking):
        def start(self, *, run: str, **told: Any) -> dict[str, Any]:
            if run == first.id:  # another machine was quicker by a moment
                store.internal.runs.acquire(first.id, held(9))
            answer: dict[str, Any] = super().start(run=run, **told)
            return answer

    monkeypatch.setattr(supervisor_process, "StartingSupervisor", Late)
    assert [run.id for run in store.runs.start_queued()] == [second.id]
    assert store.runs.get(first.id).owner == "supervisor:9"


def test_two_dispatchers_start_one_run_for_one_slot(
    store: Corral, keep: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.settings.set("runs.max_concurrent", 1)
    first, second = queued(store), queued(store)
    taking: Any = supervisor_process.StartingSupervisor

    class Slow(taking):
        def start(self, *, run: str, **told: Any) -> dict[str, Any]:
            if run == first.id:  # its supervisor is on its way while another one looks
                assert store.runs.start_queued() == []
            answer: dict[str, Any] = super().start(run=run, **told)
            return answer

    monkeypatch.setattr(supervisor_process, "StartingSupervisor", Slow)
    assert [run.id for run in store.runs.start_queued()] == [first.id]
    assert keep == [first.id]
    assert states(store, first, second) == ["running", "queued"]


def test_expired_claim_frees_its_slot(store: Corral, clock: ManualClock, keep: list[str]) -> None:
    store.settings.set("runs.max_concurrent", 1)
    bad, good = queued(store), queued(store)
    assert claim(store, bad.id, host=process.host())  # by one who is then killed
    assert store.runs.start_queued() == []
    assert store.runs.next_due() == clock.now() + CLAIM_MS, "when to look again"
    clock.advance(HOUR)
    assert [run.id for run in store.runs.start_queued()] == [bad.id]
    assert states(store, bad, good) == ["running", "queued"]


def test_run_whose_supervisors_keep_failing_is_deferred(
    store: Corral, clock: ManualClock, keep: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.settings.set("runs.max_concurrent", 1)
    bad, good = queued(store), queued(store)
    taking: Any = supervisor_process.StartingSupervisor

    class Lost(taking):
        def start(self, *, run: str, **told: Any) -> dict[str, Any]:
            if run == bad.id:
                raise supervisor_process.SupervisorLost
            answer: dict[str, Any] = super().start(run=run, **told)
            return answer

    monkeypatch.setattr(supervisor_process, "StartingSupervisor", Lost)
    assert [run.id for run in store.runs.start_queued()] == [good.id]
    waits = store.runs.get(bad.id)
    assert (waits.state, waits.due_at) == ("queued", clock.now() + CLAIM_MS)
    assert "was lost" in (waits.reason or "")
    assert store.runs.next_due() == waits.due_at
    (told,) = [event for event in store.events.newest().items if event.verb == "defer"]
    assert told.subject == bad.id


def test_failed_fork_frees_the_slot(
    store: Corral, keep: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.settings.set("runs.max_concurrent", 1)
    waits = queued(store)
    taking: Any = supervisor_process.StartingSupervisor

    def none_can_be_made() -> None:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(supervisor_process, "StartingSupervisor", none_can_be_made)
    with pytest.raises(OSError, match="temporarily"):
        store.runs.start_queued()
    monkeypatch.setattr(supervisor_process, "StartingSupervisor", taking)
    assert [run.id for run in store.runs.start_queued()] == [waits.id]


def test_drain_queue_outlasts_a_claimant_that_crashed(
    store: Corral, clock: ManualClock, keep: list[str]
) -> None:
    """Without a daemon nobody else would ever look again."""
    store.settings.set("runs.max_concurrent", 1)
    claimed, waits = queued(store), queued(store)
    assert claim(store, claimed.id, host=process.host())
    seeing = Racer(store.internal.runs.drain_queue)
    clock.advance(HOUR)
    seeing.result()
    assert states(store, claimed, waits) == ["running", "queued"]


def test_claim_that_ends_after_the_check_is_noticed(
    store: Corral, clock: ManualClock, keep: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.settings.set("runs.max_concurrent", 1)
    claimed, waits = queued(store), queued(store)
    assert claim(store, claimed.id, host=process.host())
    look = starter.start_queued

    def look_in_vain_once(database: Database) -> Sequence[Run]:
        found = look(database)
        clock.advance(HOUR)
        return found

    monkeypatch.setattr(starter, "start_queued", look_in_vain_once)
    store.internal.runs.drain_queue()
    assert states(store, claimed, waits) == ["running", "queued"]


def test_drain_queue_returns_when_no_claim_is_pending(store: Corral, keep: list[str]) -> None:
    store.settings.set("runs.max_concurrent", 1)
    store.internal.runs.drain_queue()  # nobody is in line
    first, _ = queued(store), queued(store, cwd="/srv/not/here")
    store.internal.runs.drain_queue()  # the second waits for the first
    store.internal.runs.end(store.runs.get(first.id), ExitStatus(exit_code=0))
    store.internal.runs.drain_queue()  # it fits another machine
    assert keep == [first.id]


def test_only_a_queued_run_can_be_failed_and_only_once(store: Corral) -> None:
    waits, goes = queued(store), running(store)
    over = store.internal.runs.fail(waits.id, reason="no such directory")
    assert (over.state, over.reason, over.exit_code) == ("failed", "no such directory", None)
    with unchanged(store):
        assert store.internal.runs.fail(waits.id, reason="again") == over
        with pytest.raises(Conflict):  # its supervisor ends it
            store.internal.runs.fail(goes.id, reason="never")


def test_long_failure_reason_is_shortened(store: Corral) -> None:
    """The sentence of an error has no limit; the run must not stay queued for that."""
    over = store.internal.runs.fail(queued(store).id, reason="The budget is spent. " * 40)
    assert over.state == "failed"
    assert str(over.reason).startswith("The budget is spent. ")
    gone = store.runs.lose(queued(store).id, reason="x" * 4_000)
    assert not gone.is_live


def test_runs_pinned_to_other_hosts_are_skipped(store: Corral, keep: list[str]) -> None:
    theirs = queued(store, host="there")
    mine = queued(store, host=process.host())
    store.runs.start_queued()
    assert states(store, theirs, mine) == ["queued", "running"]
    assert keep == [mine.id]


def test_recovery_starts_queued_runs(store: Corral, clock: ManualClock, keep: list[str]) -> None:
    store.settings.set("runs.max_concurrent", 1)
    gone = running(store)
    waiting = queued(store)
    assert store.runs.recover() == []
    clock.advance(HOUR)
    store.runs.recover()
    assert states(store, gone, waiting) == ["interrupted", "running"]


# -- which machine -----------------------------------------------------------------------------


def serve(store: Corral, name: str | None = None, **offers: Any) -> None:
    """A daemon serves the store on a machine, on this one unless it is named."""
    store.internal.nodes.join(name or process.host(), "boot", owner="d", **{"slots": 10} | offers)


def test_run_waits_for_a_node_with_all_its_labels(store: Corral, keep: list[str]) -> None:
    both, one, none = (
        queued(store, labels=["gpu", "big"]),
        queued(store, labels=["gpu"]),
        queued(store),
    )
    assert [run.id for run in store.runs.start_queued()] == [none.id]
    serve(store, "there", labels=["gpu", "big"])
    assert store.runs.start_queued() == []
    serve(store, labels=["gpu", "x"])
    assert [run.id for run in store.runs.start_queued()] == [one.id]
    serve(store, labels=["big", "gpu", "x"])
    assert [run.id for run in store.runs.start_queued()] == [both.id]
    assert store.runs.get_launch(both.id).labels == ["big", "gpu"]


def test_node_with_an_expired_lease_offers_no_labels(
    store: Corral, clock: ManualClock, keep: list[str]
) -> None:
    queued(store, labels=["gpu"])
    serve(store, labels=["gpu"])
    clock.advance(HOUR)
    assert store.runs.start_queued() == []


def test_node_starts_as_many_runs_as_it_has_slots(store: Corral, keep: list[str]) -> None:
    serve(store, slots=2)
    first, _, third = (queued(store) for _ in range(3))
    assert len(store.runs.start_queued()) == 2
    assert store.runs.get(third.id).state == "queued"
    with pytest.raises(NoRoom):
        store.internal.runs.acquire(third.id, held(9, host=process.host()))
    started = store.runs.get(first.id)
    assert started.node_id == store.nodes.list().items[0].id
    store.internal.runs.end(started, ExitStatus(exit_code=0))
    assert [run.id for run in store.runs.start_queued()] == [third.id]


def test_node_without_slots_starts_nothing(store: Corral, keep: list[str]) -> None:
    serve(store, slots=0)
    queued(store, host=process.host())
    assert store.runs.start_queued() == []
    assert keep == []


def test_claims_of_other_hosts_use_no_local_slots(store: Corral, keep: list[str]) -> None:
    serve(store, slots=1)
    serve(store, "there", slots=10)
    theirs = [queued(store), queued(store, host="there")]
    for run in theirs:
        assert claim(store, run.id, host="there")
    mine, next_one = queued(store), queued(store)
    assert [run.id for run in store.runs.start_queued()] == [mine.id]
    assert states(store, *theirs, next_one) == ["queued"] * 3


def test_claims_of_this_host_use_local_slots(store: Corral, keep: list[str]) -> None:
    serve(store, slots=2)
    serve(store, "there", slots=10)
    anywhere, bound = queued(store), queued(store, host=process.host())
    for run in (anywhere, bound):
        assert claim(store, run.id, host=process.host())
    waits = queued(store)
    assert not store._database.read(lambda tx: dispatch.can_claim(tx, host=process.host()))
    assert claim(store, waits.id, host="there")


def test_all_claims_count_toward_max_concurrent(store: Corral, keep: list[str]) -> None:
    store.settings.set("runs.max_concurrent", 2)
    serve(store)
    serve(store, "there")
    first, second, _ = (queued(store) for _ in range(3))
    assert claim(store, first.id, host="there")
    assert [run.id for run in store.runs.start_queued()] == [second.id]


def test_runs_on_other_hosts_use_no_local_slots(store: Corral, keep: list[str]) -> None:
    serve(store, slots=1)
    running(store)
    waits = queued(store)
    assert [run.id for run in store.runs.start_queued()] == [waits.id]


def test_run_is_left_to_a_host_that_has_its_directory(store: Corral, keep: list[str]) -> None:
    theirs = [queued(store, cwd="/srv/not/here", project_id="prj_1") for _ in range(3)]
    alone = queued(store, cwd="/srv/not/here")
    mine = queued(store)
    assert [run.id for run in store.runs.start_queued()] == [mine.id]
    assert states(store, *theirs, alone) == ["queued"] * 4
    assert keep == [mine.id], "no supervisor is started to find that out"


def test_pinned_run_is_started_although_its_directory_is_missing(
    store: Corral, keep: list[str]
) -> None:
    queued(store, cwd="/srv/not/here", project_id="prj_1")
    bound = queued(store, cwd="/srv/not/here", project_id="prj_1", host=process.host())
    store.runs.start_queued()
    assert keep == [bound.id]


def test_no_supervisor_is_started_for_an_agent_at_its_limit(store: Corral, keep: list[str]) -> None:
    busy = store.agents.create("ada", provider="scripted", limits={"max_runs": 1})
    waiting = [queued(store, agent_id=busy.id) for _ in range(3)]
    other = queued(store)
    assert [run.id for run in store.runs.start_queued()] == [waiting[0].id, other.id]
    assert keep == [waiting[0].id, other.id]


def test_one_of_two_dispatchers_claims_a_run(store: Corral, clock: ManualClock) -> None:
    run = queued(store)
    assert claim(store, run.id, host="here")
    assert not claim(store, run.id, host="here")
    store.internal.runs.release_claim(run.id)
    assert claim(store, run.id, host="here")
    clock.advance(HOUR)
    assert claim(store, run.id, host="here"), "who claimed it and died is not waited for"
