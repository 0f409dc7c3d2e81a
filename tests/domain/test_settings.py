"""Settings: typed values, the nearest choice counts."""

from collections.abc import Callable
from typing import Any

import pytest

from corral.api import Corral
from corral.domain.settings.model import DEFINITIONS
from corral.kernel.clock import DAY, MINUTE, ManualClock, format_duration
from corral.kernel.errors import Invalid
from tests.support.grouped_cases import each_case
from tests.support.store import record, refuses, rows, unchanged

NAME = "mail.max_attempts"


def test_without_a_choice_the_default_counts(store: Corral) -> None:
    for name, known in DEFINITIONS.items():
        found = store.settings.get(name)
        assert (found.value, found.scope) == (known.default, "default")
        assert (found.updated_at, found.updated_by, found.help) == (None, None, known.help)


def test_a_choice_counts_and_says_who_made_it_when(store: Corral, clock: ManualClock) -> None:
    made = store.settings.set(NAME, 3)
    assert (made.name, made.value, made.scope) == (NAME, 3, "global")
    assert (made.updated_at, made.updated_by) == (clock.now(), "user:tester")
    assert store.settings.get(NAME) == made
    assert rows(store, "SELECT kind, verb, subject, project_id FROM events") == [
        ("setting", "set", f"global/{NAME}", None)
    ]


def test_a_second_choice_replaces_the_first(store: Corral, clock: ManualClock) -> None:
    store.settings.set(NAME, 3)
    clock.advance(5)
    store.settings.set(NAME, 4)
    found = store.settings.get(NAME)
    assert (found.value, found.updated_at) == (4, clock.now())
    assert record(store) == ["setting.set", "setting.set"]
    assert rows(store, "SELECT count(*) FROM settings") == [(1,)]


def test_the_record_tells_the_value_before_and_after(store: Corral) -> None:
    store.settings.set(NAME, 3)
    store.settings.set(NAME, 4)
    data = [event.data for event in store.events.after().items]
    assert data == [{"value": 3, "before": 6}, {"value": 4, "before": 3}]


def test_the_nearest_choice_counts(store: Corral) -> None:
    store.settings.set(NAME, 2, scope="global")
    store.settings.set(NAME, 3, scope="project:prj_1")
    store.settings.set(NAME, 4, scope="agent:ada")

    def value(**whose: str) -> tuple[Any, str]:
        found = store.settings.get(NAME, **whose)
        return found.value, found.scope

    assert value() == (2, "global")
    assert value(project="prj_1") == (3, "project:prj_1")
    assert value(agent="ada") == (4, "agent:ada")
    assert value(agent="ada", project="prj_1") == (4, "agent:ada")
    assert value(agent="bob", project="prj_1") == (3, "project:prj_1")
    assert value(agent="bob", project="prj_2") == (2, "global")


def test_a_choice_taken_back_lets_the_wider_one_count(store: Corral) -> None:
    store.settings.set(NAME, 2)
    store.settings.set(NAME, 3, scope="agent:ada")
    assert store.settings.unset(NAME, scope="agent:ada").value == 2
    assert store.settings.unset(NAME).value == DEFINITIONS[NAME].default
    assert record(store)[2:] == ["setting.unset", "setting.unset"]
    with unchanged(store):
        assert store.settings.unset(NAME).scope == "default"


def test_all_settings_are_listed_with_what_counts_for_a_scope(store: Corral) -> None:
    store.settings.set(NAME, 2)
    store.settings.set("schedules.max_timers", 5, scope="project:prj_1")
    listed = store.settings.list(scope="project:prj_1")
    assert [each.name for each in listed.items] == sorted(DEFINITIONS)
    chosen = {each.name: (each.value, each.scope) for each in listed.items}
    assert chosen[NAME] == (2, "global")
    assert chosen["schedules.max_timers"] == (5, "project:prj_1")
    assert chosen["events.retention_ms"] == (DEFINITIONS["events.retention_ms"].default, "default")
    plain = {each.name: each.scope for each in store.settings.list().items}
    assert plain["schedules.max_timers"] == "default"
    assert all(each.help for each in listed.items)


def as_written(name: str, number: int) -> str:
    """As whoever sets it would write it."""
    return format_duration(number) if name.endswith("_ms") else str(number)


@each_case("name", sorted(name for name in DEFINITIONS if DEFINITIONS[name].type is int))
def test_a_number_is_kept_within_its_bounds(store: Corral, name: str) -> None:
    low, high = DEFINITIONS[name].low, DEFINITIONS[name].high
    assert store.settings.set(name, low).value == low
    assert store.settings.set(name, high).value == high
    for beyond in (low - 1, high + 1):
        with refuses(store, Invalid) as caught:
            store.settings.set(name, beyond)
        assert (
            f"expected {as_written(name, low)} to {as_written(name, high)}" in caught.value.message
        )


@each_case("name", sorted(DEFINITIONS))
def test_every_default_is_a_value_that_could_be_chosen(store: Corral, name: str) -> None:
    assert store.settings.set(name, DEFINITIONS[name].default).value == DEFINITIONS[name].default


@each_case(
    "value",
    ["3", 3.5, True, None, [3], {}, 2**70, "\0", float("nan"), float("inf"), b"3"],
    ids=repr,
)
def test_a_value_of_another_type_is_refused(store: Corral, value: Any) -> None:
    with refuses(store, Invalid):
        store.settings.set(NAME, value)


@each_case("value", [[], 5, "5", [-1], [1, "2"], [1] * 101, [2**70], [None]], ids=str)
def test_a_ladder_that_cannot_work_is_refused(store: Corral, value: Any) -> None:
    with refuses(store, Invalid):
        store.settings.set("mail.backoff_ms", value)


def test_a_ladder_of_one_rung_is_kept(store: Corral) -> None:
    store.settings.set("mail.backoff_ms", [MINUTE])
    assert store.settings.get("mail.backoff_ms").value == [MINUTE]


def test_an_unknown_name_is_refused_with_the_nearest_one(store: Corral) -> None:
    near = "mail.max_atempts"
    calls: list[Callable[[], object]] = [
        lambda: store.settings.set(near, 3),
        lambda: store.settings.get(near),
        lambda: store.settings.unset(near),
    ]
    for call in calls:
        with refuses(store, Invalid) as caught:
            call()
        assert "Did you mean mail.max_attempts?" in caught.value.message
    with refuses(store, Invalid) as caught:
        store.settings.get("zzz")
    assert caught.value.details["reason"] == "unknown_setting"


@each_case("name", ["", "a\0b", "\ud800"], ids=ascii)
def test_a_name_that_cannot_be_one_is_refused(store: Corral, name: str) -> None:
    with refuses(store, Invalid):
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
def test_a_text_that_is_no_scope_is_refused(store: Corral, scope: str) -> None:
    with refuses(store, Invalid):
        store.settings.set(NAME, 3, scope=scope)
    with refuses(store, Invalid):
        store.settings.unset(NAME, scope=scope)
    with refuses(store, Invalid):
        store.settings.list(scope=scope)


@each_case("whose", ["agent", "project"])
@each_case("text", ["a\0b", "\ud800"], ids=ascii)
def test_an_agent_or_project_that_cannot_be_one_is_refused(
    store: Corral, whose: str, text: str
) -> None:
    with refuses(store, Invalid):
        store.settings.get(NAME, **{whose: text})


def test_the_event_of_a_projects_setting_belongs_to_the_project(store: Corral) -> None:
    store.settings.set(NAME, 3, scope="project:prj_1")
    assert rows(store, "SELECT project_id FROM events") == [("prj_1",)]


@pytest.mark.parametrize("scope", ["project:prj_1", "agent:ada"])
def test_a_setting_is_not_taken_where_nobody_would_look(store: Corral, scope: str) -> None:
    with refuses(store, Invalid):
        store.settings.set("nodes.retention_ms", DAY, scope=scope)


def test_what_was_chosen_for_an_agent_counts_for_its_mailbox(store: Corral) -> None:
    store.settings.set("mail.max_attempts", 1, scope="agent:ada")
    for name, state in (("ada", "dead"), ("bob", "waiting")):
        store.mail.put(f"agent:{name}", "x")
        (letter,) = store.mail.claim(f"agent:{name}", owner="o")
        assert store.mail.fail(letter, "boom").state == state


def test_letters_between_agents_are_counted_for_an_agent_and_not_for_a_project(
    store: Corral,
) -> None:
    with refuses(store, Invalid):
        store.settings.set("mail.max_hops", 5, scope="project:prj_1")
    assert store.settings.set("mail.max_hops", 5, scope="agent:ada").value == 5
