"""Settings beside a plain dictionary."""

from itertools import product
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from corral.domain.settings.model import DEFINITIONS
from corral.kernel.errors import Invalid
from tests.properties.state_machine import (
    FreshUrl,
    StoreMachine,
    run_machine,
    while_it_is_made_short,
)

LOW, HIGH = 1, 1_000
names = st.sampled_from(["mail.max_attempts", "mail.backoff_ms"])
scopes = st.sampled_from(["global", "agent:ada", "agent:bob", "project:prj_1"])
values = st.one_of(
    st.integers(LOW, 25),
    st.lists(st.integers(0, 10), min_size=1, max_size=3),
    st.sampled_from([-1, 0, HIGH, HIGH + 1, "3", None, True, [], [True], {"a": 1}]),
)


def fits(name: str, value: Any) -> bool:
    if name == "mail.max_attempts":
        return type(value) is int and LOW <= value <= HIGH
    return isinstance(value, list) and value != [] and all(type(part) is int for part in value)


class SettingsMachine(StoreMachine):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.chosen: dict[tuple[str, str], Any] = {}
        self.record: list[tuple[str, str, Any]] = []

    def counts(self, name: str, *near: str) -> tuple[str, Any]:
        """Where the value comes from that counts, and what it is."""
        for scope in (*near, "global"):
            if (scope, name) in self.chosen:
                return scope, self.chosen[scope, name]
        return "default", DEFINITIONS[name].default

    @rule(name=names, value=values, scope=scopes)
    def set(self, name: str, value: Any, scope: str) -> None:
        self.clock.advance(1)

        def call() -> Any:
            return self.store.settings.set(name, value, scope=scope)

        if self.refused(None if fits(name, value) else Invalid, call):
            return
        told = call()
        assert (told.value, told.scope, told.updated_at) == (value, scope, self.now)
        self.chosen[scope, name] = value
        self.record.append(("set", f"{scope}/{name}", value))

    @rule(name=names, scope=scopes)
    def unset(self, name: str, scope: str) -> None:
        if self.chosen.pop((scope, name), None) is not None:
            self.record.append(("unset", f"{scope}/{name}", None))
        told = self.store.settings.unset(name, scope=scope)
        assert (told.scope, told.value) == self.counts(name, scope)

    @rule(name=names)
    def get(self, name: str) -> None:
        for agent, project in product([None, "ada", "bob"], [None, "prj_1", "prj_2"]):
            found = self.store.settings.get(name, agent=agent, project=project)
            near = [f"agent:{agent}"] * bool(agent) + [f"project:{project}"] * bool(project)
            assert (found.scope, found.value) == self.counts(name, *near)

    @rule(scope=scopes)
    def list(self, scope: str) -> None:
        found = self.store.settings.list(scope=scope).items
        assert [one.name for one in found] == sorted(DEFINITIONS)
        assert all((one.scope, one.value) == self.counts(one.name, scope) for one in found)

    @invariant()
    def every_change_is_in_the_record(self) -> None:
        events = self.store.events.after(limit=1_000).items
        told = [
            (event.verb, event.subject, event.data["value"] if event.data else None)
            for event in events
        ]
        assert told == self.record


@while_it_is_made_short
def test_settings_match_a_dictionary_model(fresh_url: FreshUrl) -> None:
    run_machine(SettingsMachine, fresh_url, stories=70, steps=25)
