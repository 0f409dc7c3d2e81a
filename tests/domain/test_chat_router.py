"""Message routing: pattern, mention, command and sticky triggers, priorities and scopes."""

import time

import pytest

from corral.api import Corral
from corral.domain.chat.patterns import MAX_TEXT, Pattern
from corral.kernel.errors import Conflict, Invalid, NotFound, Refused
from tests.support.errors import because
from tests.support.fake_channels import Chat
from tests.support.grouped_cases import each_case
from tests.support.store import raises_without_change, unchanged, walk

pytestmark = pytest.mark.usefixtures("fake_channels")


@pytest.fixture
def chat(store: Corral) -> Chat:
    for name in ("ada", "ben"):
        store.agents.create(name, provider="scripted")
    return Chat(store)


def list_woken_agents(chat: Chat, text: str, **fields: object) -> list[str]:
    message = chat.says(text, **fields)
    names = {agent.id: agent.name for agent in chat.store.agents.list().items}
    return [names[route.agent_id] for route in message.routes if route.wakes]


@each_case(
    ("pattern", "text", "matches"),
    [
        ("a+b", "xaab", True),
        ("^a+b$", "xaab", False),
        ("(ab|cd)*e", "ababcde", True),
        ("h[ae]llo", "say HELLO", True),
        (r"\bship\b", "please ship it", True),
        (r"\bship\b", "shipment", False),
        (r"v\d+\.\d", "v3.1", True),
        ("colou?r", "Color", True),
        ("[^a-z]", "abc", False),
        (r"x(a|b)+y", "xy", False),
        ("[]a]", "]", True),
        (r"\*", "a*b", True),
        (r"\S\W\D", "a -", True),
        ("end$", "x" * MAX_TEXT + "end", False),
        ("x$", "x" * (MAX_TEXT + 1), False),  # not at the position of the cut
        ("^a{3}$", "aaa", True),
        (r"^\w+\s\w+$", "schöne Grüße", True),
        (r"^[\w-]+$", "grüß-dich", True),
        (r"[\w]", "-", False),
        (r"\W", "ü", False),
        ("ÜBER", "über", True),
        ("a", "\ud800a", True),
    ],
)
def test_pattern_matches_anywhere_ignoring_case(pattern: str, text: str, matches: bool) -> None:
    assert Pattern(pattern).found_in(text) is matches


@each_case(
    "pattern",
    [
        "(a+)+$",
        "(a|a)*b",
        "(a*)*(a*)*b",
        "(" * 60 + "a*" + ")*" * 60,
        r"(\w+\s?)+x",
        ".*a.{990}b",
        "(.{1,300}a){3}b",
        "(a?){900}b",
    ],
)
def test_catastrophic_pattern_takes_linear_time(pattern: str) -> None:
    began = time.process_time()
    Pattern(pattern).found_in("a" * (MAX_TEXT - 1) + "!")
    assert time.process_time() - began < 5.0


@each_case(
    ("pattern", "reason"),
    [
        ("(", "bad_pattern"),
        (")", "bad_pattern"),
        ("*a", "bad_pattern"),
        ("[a", "bad_pattern"),
        ("a\\", "bad_pattern"),
        ("(?=a)", "bad_pattern"),
        (r"(a)\1", "bad_pattern"),
        (r"[\W]", "bad_pattern"),
        (r"\büber", "bad_pattern"),
        ("a{1001}", "bad_pattern"),
        ("(a{999}){999}", "bad_pattern"),
        (r"\w{999}", "bad_pattern"),  # its program needs more than MAX_MEMORY
        ("\ud800", "bad_pattern"),
        ("", "empty"),
        ("a" * 201, "too_long"),
    ],
)
def test_malformed_or_too_large_pattern_is_rejected(pattern: str, reason: str) -> None:
    with pytest.raises(Invalid, check=because(reason)):
        Pattern(pattern)


def test_message_wakes_agents_whose_trigger_matches_with_reason(chat: Chat) -> None:
    chat.says("hello")
    chat.store.wirings.add("ada", place=chat.place(), trigger="mention")
    chat.store.wirings.add("ben", place=chat.place(), trigger="pattern", pattern="deploy")
    assert list_woken_agents(chat, "hello") == []
    assert list_woken_agents(chat, "@ada hello") == ["ada"]
    assert list_woken_agents(chat, "please DEPLOY it") == ["ben"]
    assert list_woken_agents(chat, "you there", mentioned=True) == ["ada"]
    message = chat.says("@ben and not ada")
    assert message.state == "ignored"
    assert {route.reason for route in message.routes} == {
        "the agent was not addressed",
        "the text does not match 'deploy'",
    }
    assert message.reason == "no wiring of this place matched"


def test_command_wakes_only_its_agent(chat: Chat) -> None:
    chat.says("hello")
    chat.store.wirings.add("ada", place=chat.place(), trigger="command", pattern="/ask")
    assert list_woken_agents(chat, "/ask what time is it") == ["ada"]
    assert list_woken_agents(chat, "/asking") == []
    assert list_woken_agents(chat, "ask") == []


def test_sticky_agent_follows_the_thread_after_a_mention(chat: Chat) -> None:
    chat.says("hello")
    chat.store.wirings.add("ada", place=chat.place(), trigger="sticky", mode="thread")
    assert list_woken_agents(chat, "hello", thread="t1") == []
    assert list_woken_agents(chat, "@ada hello", thread="t1") == ["ada"]
    assert list_woken_agents(chat, "and more", thread="t1") == ["ada"]
    assert list_woken_agents(chat, "other thread", thread="t2") == []


def test_place_wiring_overrides_channel_wiring(
    chat: Chat,
) -> None:
    chat.store.wirings.add("ada", channel=chat.channel.name, trigger="always")
    assert list_woken_agents(chat, "one", place="room") == ["ada"]
    chat.store.wirings.add("ada", place=chat.place(), trigger="mention")
    assert list_woken_agents(chat, "two", place="room") == []
    assert list_woken_agents(chat, "three", place="other") == ["ada"]


def test_wirings_match_in_order_of_priority(chat: Chat) -> None:
    chat.says("hello")
    chat.store.wirings.add("ada", place=chat.place(), priority=0)
    chat.store.wirings.add("ben", place=chat.place(), priority=10)
    assert list_woken_agents(chat, "all of you") == ["ben", "ada"]


def test_known_scope_ignores_unknown_senders(chat: Chat) -> None:
    chat.says("hello")
    chat.store.wirings.add("ada", place=chat.place(), scope="known")
    assert list_woken_agents(chat, "hello", sender="ann") == []
    chat.store.senders.approve(f"{chat.channel.name}/ann", person="ann")
    assert list_woken_agents(chat, "hello", sender="ann") == ["ada"]


def test_preview_routes_without_storing_anything(chat: Chat) -> None:
    chat.says("hello")
    chat.store.wirings.add("ada", place=chat.place(), trigger="mention")
    with unchanged(chat.store):
        (route,) = chat.store.wirings.preview(chat.place(), "@ada?")
    assert (route.wakes, route.reason) == (True, "the agent was addressed")


def test_duplicate_wiring_conflicts_until_it_is_removed(chat: Chat) -> None:
    store = chat.store
    chat.says("hello")
    wiring = store.wirings.add("ada", place=chat.place())
    with raises_without_change(store, Conflict):
        store.wirings.add("ada", place=chat.place())
    assert store.wirings.remove(wiring.id).state == "removed"
    assert chat.says("hello").state == "ignored"
    store.wirings.add("ada", place=chat.place())
    assert [wiring.state for wiring in walk(store.wirings.list, all=True)] == ["removed", "active"]


@each_case(
    ("options", "error"),
    [
        ({"trigger": "pattern"}, Invalid),
        ({"trigger": "pattern", "pattern": "("}, Invalid),
        ({"trigger": "always", "pattern": "x"}, Invalid),
        ({"trigger": "sometimes"}, Invalid),
        ({"mode": "loose"}, Invalid),
        ({"priority": 1_000}, Invalid),
        ({"project": "prj_zzz"}, NotFound),
    ],
)
def test_invalid_wiring_is_rejected(
    chat: Chat, options: dict[str, str], error: type[Exception]
) -> None:
    chat.says("hello")
    with raises_without_change(chat.store, error):
        chat.store.wirings.add("ada", place=chat.place(), **options)


def test_retired_agent_or_removed_channel_cannot_be_wired(chat: Chat) -> None:
    store = chat.store
    store.agents.retire("ben")
    with raises_without_change(store, Refused):
        store.wirings.add("ben", channel=chat.channel.id)
    store.wirings.add("ada", channel=chat.channel.id)
    store.channels.remove(chat.channel.name)
    assert store.wirings.list().items == []
    with raises_without_change(store, Refused):
        store.wirings.add("ada", channel=chat.channel.id)
    with raises_without_change(store, Refused):
        chat.says("anybody there?")


def test_sticky_wiring_with_agent_session_is_rejected(store: Corral) -> None:
    store.agents.create("ada", provider="scripted")
    Chat(store)
    with raises_without_change(store, Invalid) as caught:
        store.wirings.add("ada", channel="fake", trigger="sticky", mode="agent")
    assert caught.value.details["reason"] == "sticky_needs_thread"
    sticky = store.wirings.add("ada", channel="fake", trigger="sticky")
    with raises_without_change(store, Invalid):
        store.wirings.change(sticky.id, mode="agent")
    changed = store.wirings.change(sticky.id, trigger="mention", mode="agent")
    with raises_without_change(store, Invalid):
        store.wirings.change(changed.id, trigger="sticky")
