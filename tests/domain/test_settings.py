"""Settings: typed values, scopes and validation."""

from collections.abc import Callable
from typing import Any

import pytest

from corral.api import Corral
from corral.domain.settings.model import DEFINITIONS
from corral.kernel.clock import DAY, MINUTE, ManualClock, format_duration
from corral.kernel.errors import Invalid
from tests.support.grouped_cases import each_case
from tests.support.store import list_events, raises_without_change, rows, unchanged

NAME = "mail.max_attempts"


def test_default_applies_without_a_value(store: Corral) -> None:
    for name, definition in DEFINITIONS.items():
        setting = store.settings.get(name)
        assert (setting.value, setting.scope) == (definition.default, "default")
        assert (setting.updated_at, setting.updated_by, setting.help) == (
            None,
            None,
            definition.help,
        )


def test_value_applies_with_its_actor_and_time(store: Corral, clock: ManualClock) -> None:
    setting = store.settings.set(NAME, 3)
    assert (setting.name, setting.value, setting.scope) == (NAME, 3, "global")
    assert (setting.updated_at, setting.updated_by) == (clock.now(), "user:tester")
    assert store.settings.get(NAME) == setting
    assert rows(store, "SELECT kind, verb, subject, project_id FROM events") == [
        ("setting", "set", f"global/{NAME}", None)
    ]


def test_list_with_too_many_entries_is_rejected(store: Corral) -> None:
    store.settings.set("runs.allowed_operations", ["tasks.list"] * 100)
    with raises_without_change(store, Invalid) as caught:
        store.settings.set("runs.allowed_operations", ["tasks.list"] * 101)
    assert caught.value.details["reason"] == "too_many_entries"


def test_second_value_replaces_the_first(store: Corral, clock: ManualClock) -> None:
    store.settings.set(NAME, 3)
    clock.advance(5)
    store.settings.set(NAME, 4)
    setting = store.settings.get(NAME)
    assert (setting.value, setting.updated_at) == (4, clock.now())
    assert list_events(store) == ["setting.set", "setting.set"]
    assert rows(store, "SELECT count(*) FROM settings") == [(1,)]


def test_event_has_value_before_and_after(store: Corral) -> None:
    store.settings.set(NAME, 3)
    store.settings.set(NAME, 4)
    data = [event.data for event in store.events.after().items]
    assert data == [{"value": 3, "before": 6}, {"value": 4, "before": 3}]


def test_most_specific_scope_applies(store: Corral) -> None:
    store.settings.set(NAME, 2, scope="global")
    store.settings.set(NAME, 3, scope="project:prj_1")
    store.settings.set(NAME, 4, scope="agent:ada")

    def read_value(**owner: str) -> tuple[Any, str]:
        setting = store.settings.get(NAME, **owner)
        return setting.value, setting.scope

    assert read_value() == (2, "global")
    assert read_value(project="prj_1") == (3, "project:prj_1")
    assert read_value(agent="ada") == (4, "agent:ada")
    assert read_value(agent="ada", project="prj_1") == (4, "agent:ada")
    assert read_value(agent="bob", project="prj_1") == (3, "project:prj_1")
    assert read_value(agent="bob", project="prj_2") == (2, "global")


def test_unset_value_makes_wider_scope_apply(store: Corral) -> None:
    store.settings.set(NAME, 2)
    store.settings.set(NAME, 3, scope="agent:ada")
    assert store.settings.unset(NAME, scope="agent:ada").value == 2
    assert store.settings.unset(NAME).value == DEFINITIONS[NAME].default
    assert list_events(store)[2:] == ["setting.unset", "setting.unset"]
    with unchanged(store):
        assert store.settings.unset(NAME).scope == "default"


def test_list_shows_every_setting_with_value_of_scope(store: Corral) -> None:
    store.settings.set(NAME, 2)
    store.settings.set("schedules.max_timers", 5, scope="project:prj_1")
    page = store.settings.list(scope="project:prj_1")
    assert [setting.name for setting in page.items] == sorted(DEFINITIONS)
    values = {setting.name: (setting.value, setting.scope) for setting in page.items}
    assert values[NAME] == (2, "global")
    assert values["schedules.max_timers"] == (5, "project:prj_1")
    assert values["events.retention_ms"] == (DEFINITIONS["events.retention_ms"].default, "default")
    scopes = {setting.name: setting.scope for setting in store.settings.list().items}
    assert scopes["schedules.max_timers"] == "default"
    assert all(setting.help for setting in page.items)


def format_limit(name: str, number: int) -> str:
    """Return a number in the form in which users write it."""
    return format_duration(number) if name.endswith("_ms") else str(number)


@each_case("name", sorted(name for name in DEFINITIONS if DEFINITIONS[name].type is int))
def test_number_out_of_range_is_rejected(store: Corral, name: str) -> None:
    low, high = DEFINITIONS[name].low, DEFINITIONS[name].high
    assert store.settings.set(name, low).value == low
    assert store.settings.set(name, high).value == high
    for number in (low - 1, high + 1):
        with raises_without_change(store, Invalid) as caught:
            store.settings.set(name, number)
        assert (
            f"expected {format_limit(name, low)} to {format_limit(name, high)}"
            in caught.value.message
        )


@each_case("name", sorted(DEFINITIONS))
def test_every_default_is_valid(store: Corral, name: str) -> None:
    assert store.settings.set(name, DEFINITIONS[name].default).value == DEFINITIONS[name].default


@each_case(
    "value",
    ["3", 3.5, True, None, [3], {}, 2**70, "\0", float("nan"), float("inf"), b"3"],
    ids=repr,
)
def test_value_of_wrong_type_is_rejected(store: Corral, value: Any) -> None:
    with raises_without_change(store, Invalid):
        store.settings.set(NAME, value)


@each_case("value", [[], 5, "5", [-1], [1, "2"], [1] * 101, [2**70], [None]], ids=str)
def test_invalid_backoff_list_is_rejected(store: Corral, value: Any) -> None:
    with raises_without_change(store, Invalid):
        store.settings.set("mail.backoff_ms", value)


def test_backoff_list_of_one_delay_is_valid(store: Corral) -> None:
    store.settings.set("mail.backoff_ms", [MINUTE])
    assert store.settings.get("mail.backoff_ms").value == [MINUTE]


def test_unknown_setting_is_rejected_with_a_suggestion(store: Corral) -> None:
    misspelled = "mail.max_atempts"
    calls: list[Callable[[], object]] = [
        lambda: store.settings.set(misspelled, 3),
        lambda: store.settings.get(misspelled),
        lambda: store.settings.unset(misspelled),
    ]
    for call in calls:
        with raises_without_change(store, Invalid) as caught:
            call()
        assert "Did you mean mail.max_attempts?" in caught.value.message
    with raises_without_change(store, Invalid) as caught:
        store.settings.get("zzz")
    assert caught.value.details["reason"] == "unknown_setting"


@each_case("name", ["", "a\0b", "\ud800"], ids=ascii)
def test_invalid_setting_name_is_rejected(store: Corral, name: str) -> None:
    with raises_without_change(store, Invalid):
        store.settings.get(name)


@each_case(
    "scope",
    [
        "",
        "Global",
        "project:",
        "agent:",
        "team:x",
        "agent:a b",
        "agent:a\0b",
        "agent:\ud800",
        "agent:" + "x" * 201,
    ],
    ids=lambda scope: ascii(scope)[:20],
)
def test_invalid_scope_is_rejected(store: Corral, scope: str) -> None:
    with raises_without_change(store, Invalid):
        store.settings.set(NAME, 3, scope=scope)
    with raises_without_change(store, Invalid):
        store.settings.unset(NAME, scope=scope)
    with raises_without_change(store, Invalid):
        store.settings.list(scope=scope)


@each_case("owner_kind", ["agent", "project"])
@each_case("text", ["a\0b", "\ud800"], ids=ascii)
def test_invalid_agent_or_project_is_rejected(store: Corral, owner_kind: str, text: str) -> None:
    with raises_without_change(store, Invalid):
        store.settings.get(NAME, **{owner_kind: text})


def test_event_of_project_setting_belongs_to_project(store: Corral) -> None:
    store.settings.set(NAME, 3, scope="project:prj_1")
    assert rows(store, "SELECT project_id FROM events") == [("prj_1",)]


@pytest.mark.parametrize("scope", ["project:prj_1", "agent:ada"])
def test_setting_is_rejected_in_a_scope_that_is_not_read(store: Corral, scope: str) -> None:
    with raises_without_change(store, Invalid):
        store.settings.set("nodes.retention_ms", DAY, scope=scope)


def test_agent_setting_applies_to_its_mailbox(store: Corral) -> None:
    store.settings.set("mail.max_attempts", 1, scope="agent:ada")
    for name, state in (("ada", "dead"), ("bob", "waiting")):
        store.mail.put(f"agent:{name}", "x")
        (letter,) = store.mail.claim(f"agent:{name}", owner="o")
        assert store.mail.fail(letter, "boom").state == state


def test_max_hops_can_be_set_for_agent_but_not_for_project(
    store: Corral,
) -> None:
    with raises_without_change(store, Invalid):
        store.settings.set("mail.max_hops", 5, scope="project:prj_1")
    assert store.settings.set("mail.max_hops", 5, scope="agent:ada").value == 5
