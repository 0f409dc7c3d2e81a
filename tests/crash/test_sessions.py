"""Crashes of session operations: turns, hand-offs and agent versions are atomic."""

from pathlib import Path

from corral.api import Corral
from corral.domain.sessions.model import NewTurn
from tests.crash.harness import FreshUrl, Scenario, World, crash_at_every_commit, do_nothing


def get_session(store: Corral) -> str:
    (session,) = store.sessions.list(all=True).items
    return session.id


def prepare(store: Corral, world: World) -> None:
    for name in ("ada", "ben"):
        store.agents.create(name)
    store.sessions.open("ada")


def test_acknowledged_turns_exist_once_after_a_crash(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def append_turns(store: Corral, world: World) -> None:
        id = get_session(store)
        for n in range(3):
            world.record(str(store.sessions.append(id, "user", str(n), key=str(n)).number))
        turns = store.sessions.append_many(
            id, [NewTurn("user", "3", "3"), NewTurn("user", "4", "4")]
        )
        world.record(str(turns[-1].number))

    def append_again(store: Corral, world: World) -> None:
        # Repeat all appends: the keys deduplicate them.
        for n in range(5):
            store.sessions.append(get_session(store), "user", str(n), key=str(n))

    def check(store: Corral, world: World) -> None:
        turns = store.sessions.turns(get_session(store)).items
        assert [(turn.number, turn.content) for turn in turns] == [
            (n + 1, str(n)) for n in range(5)
        ]
        assert world.records == ["1", "2", "3", "5"][: len(world.records)]

    crash_at_every_commit(fresh_url, tmp_path, Scenario(append_turns, append_again, check, prepare))


def test_handoff_and_its_record_are_atomic(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def hand_off(store: Corral, world: World) -> None:
        id = get_session(store)
        store.sessions.append(id, "user", "1")
        world.record(str(store.sessions.handoff(id, "ben", "last", "n", last=1).number))
        store.sessions.append(id, "user", "2")
        store.sessions.clear(id)
        world.record(str(store.sessions.handoff(id, "ada", "all").number))

    def check(store: Corral, world: World) -> None:
        session = store.sessions.get(get_session(store))
        handoffs = store.sessions.handoffs(session.id).items
        assert len(handoffs) in (len(world.records), len(world.records) + 1)
        owners = ["ada", "ben", "ada"]
        assert session.agent_id == store.agents.get(owners[len(handoffs)]).id
        numbers = [turn.number for turn in store.sessions.context(session.id).turns]
        assert numbers == list(range(numbers[0], session.turns + 1)) if numbers else True
        if session.cleared_turn:
            assert (session.cleared_turn, numbers) == (2, [])
        else:
            assert session.handoff == (1 if handoffs else None)

    crash_at_every_commit(fresh_url, tmp_path, Scenario(hand_off, do_nothing, check, prepare))


def test_agent_and_version_are_atomic(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def edit(store: Corral, world: World) -> None:
        for n in range(3):
            world.record(str(store.agents.edit("ada", model=str(n)).version))
        store.agents.grant("ada", "Read")

    def check(store: Corral, world: World) -> None:
        ada = store.agents.get("ada")
        assert ada.version in (len(world.records) + 1, len(world.records) + 2)
        numbers = [version.number for version in store.agents.versions("ada").items]
        assert numbers == list(range(ada.version, 0, -1))

    crash_at_every_commit(fresh_url, tmp_path, Scenario(edit, do_nothing, check, prepare))


def test_search_index_has_every_turn_once_after_a_crash(
    fresh_url: FreshUrl, tmp_path: Path
) -> None:
    def append_turns(store: Corral, world: World) -> None:
        id = get_session(store)
        for n in range(3):
            store.sessions.append(id, "user", f"fox {n}")
            store.internal.search.index_turns(limit=2)

    def check(store: Corral, world: World) -> None:
        turns = store.sessions.turns(get_session(store)).items
        places = [hit.location for hit in store.search.find("fox").items]
        assert places == [turn.number for turn in turns][::-1]

    crash_at_every_commit(fresh_url, tmp_path, Scenario(append_turns, do_nothing, check, prepare))
