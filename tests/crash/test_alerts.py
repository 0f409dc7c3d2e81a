"""Alerts and a process that dies: everybody who asked for it is told of an edge, once."""

from pathlib import Path

from corral.api import Corral
from tests.crash.harness import FreshUrl, Scenario, World, crash_at_every_commit

WATCHERS = ("user:ann", "user:ben")


def watch(store: Corral, world: World) -> None:
    for mailbox in WATCHERS:
        store.alerts.add(["crashed"], target_kind="mailbox", target=mailbox)


def crash(store: Corral, world: World) -> None:
    for edge in (1, 2):
        store.internal.alerts.raise_alert("crashed", "run_1", edge=edge)
        world.note(f"{edge}")


def test_occurrence_is_notified_once_to_every_alert(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def check(store: Corral, world: World) -> None:
        for mailbox in WATCHERS:
            letters = store.mail.list(mailbox=mailbox, all=True).items
            assert sorted(letter.body["edge"] for letter in letters) == ["1", "2"]

    crash_at_every_commit(
        fresh_url, tmp_path, Scenario(prepare=watch, run=crash, recover=crash, check=check)
    )
