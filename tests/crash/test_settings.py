"""Crashes of setting operations: a value and its event are atomic."""

from pathlib import Path

from corral.api import Corral
from tests.crash.harness import FreshUrl, Scenario, World, crash_at_every_commit, do_nothing

NAME = "mail.max_attempts"


def test_setting_and_its_event_are_atomic(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def change(store: Corral, world: World) -> None:
        for value in (3, 4):
            world.record(str(store.settings.set(NAME, value).value))
        world.record(str(store.settings.unset(NAME).value))
        world.record(str(store.settings.set(NAME, 9).value))

    def check(store: Corral, world: World) -> None:
        # The last recorded value, or the one that the killed process was about to record.
        order = ["6", "3", "4", "6", "9"]
        count = len(world.records)
        setting = store.settings.get(NAME)
        assert str(setting.value) in order[count : count + 2]
        # `check_store` verifies that the last event has this value.
        assert len(store.events.after().items) in (count, count + 1)

    crash_at_every_commit(fresh_url, tmp_path, Scenario(change, recover=do_nothing, check=check))


def test_values_of_different_scopes_are_independent(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def change(store: Corral, world: World) -> None:
        store.settings.set(NAME, 3)
        store.settings.set(NAME, 4, scope="agent:ada")
        store.settings.unset(NAME)

    def check(store: Corral, world: World) -> None:
        global_value = store.settings.get(NAME).value
        agent_value = store.settings.get(NAME, agent="ada").value
        assert (global_value, agent_value) in [(6, 6), (3, 3), (3, 4), (6, 4)]

    crash_at_every_commit(fresh_url, tmp_path, Scenario(change, recover=do_nothing, check=check))


def test_secret_reference_and_its_event_are_atomic(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def change(store: Corral, world: World) -> None:
        store.secrets.set("token", "env:FIRST")
        store.secrets.set("token", "env:SECOND")
        store.secrets.delete("token")

    def check(store: Corral, world: World) -> None:
        verbs = [event.verb for event in store.events.after(subject="token").items]
        references = [secret.reference for secret in store.secrets.list().items]
        expected = {0: [], 1: ["env:FIRST"], 2: ["env:SECOND"], 3: []}
        assert verbs == ["set", "set", "delete"][: len(verbs)]
        assert references == expected[len(verbs)]

    crash_at_every_commit(fresh_url, tmp_path, Scenario(change, recover=do_nothing, check=check))
