"""Crashes of note operations: notes and the search index stay consistent."""

from pathlib import Path

from corral.api import Corral
from tests.crash.harness import FreshUrl, Scenario, World, crash_at_every_commit

VERSIONS = ("port is 1", "port is 2", "port is 3")


def add_all(store: Corral, world: World) -> None:
    for text in VERSIONS:
        world.record(store.notes.add(text, key="port", source="user:ann").text)


def search_notes(store: Corral, query: str) -> list[str]:
    return [hit.subject for hit in store.search.find(query, kind="note").items]


def check_one_current(store: Corral, world: World) -> None:
    (current,) = store.notes.list().items
    assert current.text == VERSIONS[-1]
    everything = store.notes.list(all=True).items
    assert sum(note.state == "current" for note in everything) == 1
    replaced = {note.supersedes for note in everything if note.supersedes is not None}
    assert replaced == {note.id for note in everything if note.state == "superseded"}


def test_latest_note_of_a_key_is_the_only_current_one(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def check(store: Corral, world: World) -> None:
        check_one_current(store, world)
        (current,) = store.notes.list().items
        assert search_notes(store, "port") == [current.id]

    crash_at_every_commit(fresh_url, tmp_path, Scenario(run=add_all, recover=add_all, check=check))


def test_forget_is_atomic_with_the_search_index(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def prepare(store: Corral, world: World) -> None:
        for n in range(3):
            store.notes.add(f"secret plan {n}")

    def forget(store: Corral, world: World) -> None:
        for note in store.notes.list().items:
            world.record(store.notes.forget(note.id).id)

    def check(store: Corral, world: World) -> None:
        assert store.notes.list(all=True).items == []
        assert search_notes(store, "plan") == []
        assert len({*world.records}) <= 3

    crash_at_every_commit(
        fresh_url, tmp_path, Scenario(prepare=prepare, run=forget, recover=forget, check=check)
    )


def test_uses_are_counted_for_all_notes_or_none(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def prepare(store: Corral, world: World) -> None:
        for n in range(3):
            store.notes.add(f"fact {n}", category="core")

    def use_notes(store: Corral, world: World) -> None:
        section = store.notes.prompt_section()
        store.notes.record_use(section.notes)
        world.record("used")

    def check(store: Corral, world: World) -> None:
        (uses,) = {note.uses for note in store.notes.list().items}
        assert uses >= len(world.records) >= 1

    crash_at_every_commit(
        fresh_url,
        tmp_path,
        Scenario(prepare=prepare, run=use_notes, recover=use_notes, check=check),
    )
