"""Crashes of node operations: another daemon takes over, and every loop has one leader."""

from pathlib import Path

import pytest

from corral.api import Corral
from corral.kernel.errors import Held
from tests.crash.harness import FreshUrl, Scenario, World, crash_at_every_commit

LOOPS = ("alert_sender", "reaper")


def serve(store: Corral, world: World) -> None:
    node = store.internal.nodes.join("one", "boot", owner="first")
    store.internal.nodes.renew(node, loops=LOOPS)
    world.record("led")
    node = store.internal.nodes.renew(node, loops=LOOPS).node
    store.internal.nodes.release_leadership("reaper", owner="first")


def test_another_daemon_leads_after_a_crash_at_any_commit(
    fresh_url: FreshUrl, tmp_path: Path
) -> None:
    def take_over(store: Corral, world: World) -> None:
        before = store.nodes.list().items
        assert [node.owner for node in before] in ([], ["first"])
        assert len(store.internal.nodes.mark_lost()) == len(before)
        second = store.internal.nodes.join("two", "boot", owner="second")
        beat = store.internal.nodes.renew(second, loops=LOOPS)
        assert {lead.owner for lead in beat.leaderships} == {"second"}
        for dead in before:
            with pytest.raises(Held):
                store.internal.nodes.renew(dead, loops=LOOPS)

    def check(store: Corral, world: World) -> None:
        assert {(lead.name, lead.owner) for lead in store.nodes.leaders()} == {
            (name, "second") for name in LOOPS
        }
        states = {node.name: node.state for node in store.nodes.list().items}
        assert states.pop("two") == "up"
        assert states in ({}, {"one": "lost"})
        assert states or not world.records

    crash_at_every_commit(fresh_url, tmp_path, Scenario(run=serve, recover=take_over, check=check))
