"""Settings, compared with a dictionary under random operations."""

from itertools import product
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from corral.domain.settings.model import DEFINITIONS
from corral.kernel.errors import Invalid
from tests.properties.state_machine import (
    FreshUrl,
    StoreMachine,
    allow_shrinking_time,
    run_machine,
)

LOW, HIGH = 1, 1_000
names = st.sampled_from(["mail.max_attempts", "mail.backoff_ms"])
scopes = st.sampled_from(["global", "agent:ada", "agent:bob", "project:prj_1"])
values = st.one_of(
    st.integers(LOW, 25),
    st.lists(st.integers(0, 10), min_size=1, max_size=3),
    st.sampled_from([-1, 0, HIGH, HIGH + 1, "3", None, True, [], [True], {"a": 1}]),
)


def is_valid(name: str, value: Any) -> bool:
    if name == "mail.max_attempts":
        return type(value) is int and LOW <= value <= HIGH
    return isinstance(value, list) and value != [] and all(type(part) is int for part in value)


class SettingsMachine(StoreMachine):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.values: dict[tuple[str, str], Any] = {}
        self.changes: list[tuple[str, str, Any]] = []

    def effective(self, name: str, *nearest: str) -> tuple[str, Any]:
        """Return the scope and the value that apply, the nearest scope first."""
        for scope in (*nearest, "global"):
            if (scope, name) in self.values:
                return scope, self.values[scope, name]
        return "default", DEFINITIONS[name].default

    @rule(name=names, value=values, scope=scopes)
    def set(self, name: str, value: Any, scope: str) -> None:
        self.clock.advance(1)

        def call() -> Any:
            return self.store.settings.set(name, value, scope=scope)

        if self.is_rejected(None if is_valid(name, value) else Invalid, call):
            return
        setting = call()
        assert (setting.value, setting.scope, setting.updated_at) == (value, scope, self.now)
        self.values[scope, name] = value
        self.changes.append(("set", f"{scope}/{name}", value))

    @rule(name=names, scope=scopes)
    def unset(self, name: str, scope: str) -> None:
        if self.values.pop((scope, name), None) is not None:
            self.changes.append(("unset", f"{scope}/{name}", None))
        setting = self.store.settings.unset(name, scope=scope)
        assert (setting.scope, setting.value) == self.effective(name, scope)

    @rule(name=names)
    def get(self, name: str) -> None:
        for agent, project in product([None, "ada", "bob"], [None, "prj_1", "prj_2"]):
            setting = self.store.settings.get(name, agent=agent, project=project)
            nearest = [f"agent:{agent}"] * bool(agent) + [f"project:{project}"] * bool(project)
            assert (setting.scope, setting.value) == self.effective(name, *nearest)

    @rule(scope=scopes)
    def list(self, scope: str) -> None:
        page = self.store.settings.list(scope=scope).items
        assert [item.name for item in page] == sorted(DEFINITIONS)
        assert all((item.scope, item.value) == self.effective(item.name, scope) for item in page)

    @invariant()
    def every_change_has_an_event(self) -> None:
        events = self.store.events.after(limit=1_000).items
        recorded = [
            (event.verb, event.subject, event.data["value"] if event.data else None)
            for event in events
        ]
        assert recorded == self.changes


@allow_shrinking_time
def test_settings_match_a_dictionary_model(fresh_url: FreshUrl) -> None:
    run_machine(SettingsMachine, fresh_url, examples=70, steps=25)
