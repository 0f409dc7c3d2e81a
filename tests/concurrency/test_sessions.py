"""Concurrent writers of one session: no gaps, no lost turns, idempotent keys."""

import os
from functools import partial
from itertools import pairwise

import corral
from corral.api import Corral
from corral.domain.sessions.model import NewTurn
from tests.support.invariants import check_store
from tests.support.processes import run_concurrently
from tests.support.store import walk
from tests.support.threads import race

THREADS, PROCESSES, APPENDS = 16, 3, 12


def list_turns(store: Corral, id: str) -> list[tuple[int, str]]:
    turns = walk(lambda **page: store.sessions.turns(id, **page), limit=1_000)
    return [(turn.number, turn.content) for turn in turns]


def test_concurrent_threads_append_to_one_session(store: Corral) -> None:
    session = store.sessions.open()

    def work(name: int) -> list[int]:
        return [
            store.sessions.append(session.id, "user", f"{name}/{n}").number for n in range(APPENDS)
        ]

    racers = race([partial(work, name) for name in range(THREADS)])
    numbers = sorted(number for racer in racers for number in racer.result())
    assert numbers == list(range(1, THREADS * APPENDS + 1))
    turns = list_turns(store, session.id)
    assert [number for number, _ in turns] == numbers
    assert {content for _, content in turns} == {
        f"{name}/{n}" for name in range(THREADS) for n in range(APPENDS)
    }


def test_processes_append_while_others_read(url: str) -> None:
    with corral.open(url) as store:
        id = store.sessions.open().id

    def write() -> int:
        with corral.open(url) as store:
            for n in range(APPENDS):
                store.sessions.append(id, "user", f"{os.getpid()}/{n}")
                store.sessions.append_many(id, [NewTurn("tool", "x"), NewTurn("tool", "y")])
        return 0

    def read() -> int:
        count = 0
        with corral.open(url) as store:
            while count < PROCESSES * APPENDS * 3:
                page = store.sessions.turns(id, after=count, limit=1_000)
                numbers = [turn.number for turn in page.items]
                # A page has no gaps, so a reader that continues after it misses no turn.
                assert numbers == list(range(count + 1, count + 1 + len(numbers)))
                count += len(numbers)
        return count

    run_concurrently([write] * PROCESSES + [read])
    with corral.open(url) as store:
        turns = list_turns(store, id)
        assert [number for number, _ in turns] == list(range(1, PROCESSES * APPENDS * 3 + 1))
        pairs = [content for _, content in turns if content in "xy"]
        assert pairs == ["x", "y"] * (PROCESSES * APPENDS), "a batch of turns is not interleaved"
        check_store(store)


def test_concurrent_appends_are_idempotent_by_key(url: str) -> None:
    with corral.open(url) as store:
        id = store.sessions.open().id

    def work() -> list[str]:
        with corral.open(url) as store:
            single = [store.sessions.append(id, "user", str(n), key=str(n)) for n in range(APPENDS)]
            batch = store.sessions.append_many(
                id, [NewTurn("user", str(n), key=str(n)) for n in range(APPENDS)]
            )
        return [turn.id for turn in single + batch]

    results = run_concurrently([work] * PROCESSES)
    assert len({*map(tuple, results)}) == 1, "all processes got the same turns"
    with corral.open(url) as store:
        assert len(list_turns(store, id)) == APPENDS


def test_concurrent_searches_index_every_turn_once(url: str) -> None:
    with corral.open(url) as store:
        id = store.sessions.open().id

    def write() -> int:
        with corral.open(url) as store:
            for n in range(25):
                store.sessions.append(id, "user", f"fox {n}")
        return 0

    def search() -> int:
        with corral.open(url) as store:
            while len(store.search.find("fox", limit=1_000).items) < 50:
                pass
        return 0

    run_concurrently([write, write, search, search])
    with corral.open(url) as store:
        hits = store.search.find("fox", limit=1_000).items
        assert sorted(hit.location for hit in hits) == list(range(1, 51))


def test_concurrent_handoffs_form_one_chain(url: str) -> None:
    names = [f"agent{n}" for n in range(PROCESSES)]
    with corral.open(url) as store:
        for name in names:
            store.agents.create(name)
        id = store.sessions.open(names[0]).id

    def work(name: str) -> int:
        with corral.open(url) as store:
            for _ in range(5):
                store.sessions.append(id, "user", name)
                store.sessions.handoff(id, name, "last", last=1)
        return 0

    run_concurrently([partial(work, name) for name in names])
    with corral.open(url) as store:
        handoffs = store.sessions.handoffs(id).items
        assert [handoff.number for handoff in handoffs] == list(range(1, 5 * PROCESSES + 1))
        for before, after in pairwise(handoffs):
            assert before.to_agent_id == after.from_agent_id
        assert store.sessions.get(id).agent_id == handoffs[-1].to_agent_id


def test_concurrent_edits_create_every_version(url: str) -> None:
    with corral.open(url) as store:
        store.agents.create("ada")

    def work(name: str) -> int:
        with corral.open(url) as store:
            for n in range(5):
                store.agents.edit("ada", model=f"{name}/{n}")
                store.agents.grant("ada", "Read")
        return 0

    run_concurrently([partial(work, str(n)) for n in range(PROCESSES)])
    with corral.open(url) as store:
        numbers = [version.number for version in store.agents.versions("ada").items]
        assert numbers == list(range(5 * PROCESSES + 1, 0, -1))
        assert len(store.agents.grants("ada").items) == 1
        check_store(store)
