"""Who is started next, by whoever sees to it that queued runs begin."""

from collections.abc import Callable
from typing import Any

import pytest

from corral.adapters import keepers, process
from corral.kernel.clock import HOUR, SetClock
from corral.kernel.end import End
from corral.kernel.errors import Conflict, CorralError, NoRoom
from corral.library import Corral
from corral.rooms.runs.model import Run, RunState
from tests.support.runs import held, queued, running
from tests.support.store import unchanged

Keep = Callable[[str], dict[str, Any]]


@pytest.fixture
def keep(store: Corral, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keepers that only take their runs, in this process; gives the runs that were offered."""
    offered: list[str] = []

    class Keeper:
        def keep(self, *, run: str, **_: Any) -> dict[str, Any]:
            offered.append(run)
            assert len(offered) < 100, "the same run is offered for ever"
            me = held(len(offered), host=process.host(), boot_id=process.boot_id())
            try:
                store.runs.launch(store.runs.start(run, me))
            except NoRoom as error:
                return {"waits": error.message}
            except Conflict as error:
                return {"taken": error.message}
            except CorralError as error:
                store.runs.fail(run, reason=error.message)
                return {"failed": error.message}
            return {"pid": me.pid}

    monkeypatch.setattr(keepers, "StartingKeeper", Keeper)
    return offered


def states(store: Corral, *runs: Run) -> list[RunState]:
    return [store.runs.get(run.id).state for run in runs]


def test_as_many_are_started_as_there_is_room_for(store: Corral, keep: list[str]) -> None:
    store.settings.set("runs.max_at_once", 2)
    first, second, third = (queued(store) for _ in range(3))
    assert [run.id for run in store.runs.start_queued()] == [first.id, second.id]
    assert store.runs.start_queued() == []
    store.runs.end(store.runs.get(first.id), End(exit_code=0))
    assert [run.id for run in store.runs.start_queued()] == [third.id]
    assert keep == [first.id, second.id, third.id]


def test_an_end_lets_the_next_one_in(store: Corral, keep: list[str]) -> None:
    store.settings.set("runs.max_at_once", 1)
    first, second = queued(store), queued(store)
    store.runs.start_queued()
    over = store.runs.end(store.runs.get(first.id), End(exit_code=0))
    store.runs.after_end(over)
    assert states(store, first, second) == ["completed", "running"]


def test_a_parked_run_goes_on_once_it_is_due(
    store: Corral, clock: SetClock, keep: list[str]
) -> None:
    run = queued(store)
    store.runs.start_queued()
    store.runs.park(store.runs.get(run.id), until=clock.now() + HOUR, reason="quota")
    assert store.runs.start_queued() == []
    clock.advance(HOUR)
    assert [one.id for one in store.runs.start_queued()] == [run.id]
    assert store.runs.get(run.id).attempts == 2


def test_a_run_that_may_not_start_does_not_hold_up_those_behind_it(
    store: Corral, keep: list[str]
) -> None:
    store.budgets.set("agent:agt_1", 0)
    poor = queued(store, agent_id="agt_1")
    other = queued(store)
    assert [run.id for run in store.runs.start_queued()] == [other.id]
    assert states(store, poor, other) == ["failed", "running"]
    over = store.runs.get(poor.id)
    assert "budget" in (over.reason or "")
    assert (over.exit_code, over.started_at) == (None, None)


def test_a_keeper_that_is_lost_does_not_hold_up_those_behind_it(
    store: Corral, keep: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = queued(store), queued(store)
    taking: Any = keepers.StartingKeeper

    class Lost(taking):  # type: ignore[misc]
        def keep(self, *, run: str, **told: Any) -> dict[str, Any]:
            if run == bad.id:
                keep.append(run)
                raise keepers.KeeperLost
            answer: dict[str, Any] = super().keep(run=run, **told)
            return answer

    monkeypatch.setattr(keepers, "StartingKeeper", Lost)
    store.runs.start_queued()
    assert states(store, bad, good) == ["queued", "running"]


def test_a_run_that_somebody_else_took_does_not_hold_up_those_behind_it(
    store: Corral, keep: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = queued(store), queued(store)
    taking: Any = keepers.StartingKeeper

    class Late(taking):  # type: ignore[misc]
        def keep(self, *, run: str, **told: Any) -> dict[str, Any]:
            if run == first.id:  # another machine was quicker by a moment
                store.runs.start(first.id, held(9))
            answer: dict[str, Any] = super().keep(run=run, **told)
            return answer

    monkeypatch.setattr(keepers, "StartingKeeper", Late)
    assert [run.id for run in store.runs.start_queued()] == [second.id]
    assert store.runs.get(first.id).owner == "keeper:9"


def test_a_run_fails_once_and_only_while_it_waits(store: Corral) -> None:
    waits, goes = queued(store), running(store)
    over = store.runs.fail(waits.id, reason="no such directory")
    assert (over.state, over.reason, over.exit_code) == ("failed", "no such directory", None)
    with unchanged(store):
        assert store.runs.fail(waits.id, reason="again") == over
        assert store.runs.fail(goes.id, reason="never") == goes


def test_runs_of_other_machines_are_left_to_them(store: Corral, keep: list[str]) -> None:
    theirs = queued(store, host="there")
    mine = queued(store, host=process.host())
    store.runs.start_queued()
    assert states(store, theirs, mine) == ["queued", "running"]
    assert keep == [mine.id]


def test_a_recovery_starts_whoever_waits(store: Corral, clock: SetClock, keep: list[str]) -> None:
    store.settings.set("runs.max_at_once", 1)
    gone = running(store)
    waiting = queued(store)
    assert store.runs.recover() == []
    clock.advance(HOUR)
    store.runs.recover()
    assert states(store, gone, waiting) == ["interrupted", "running"]
