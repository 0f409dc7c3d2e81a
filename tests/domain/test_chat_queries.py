"""Chat queries: messages of places and sessions, held messages, and the web channel."""

import pytest

from corral.adapters.channels.contract import IncomingEvent, MessageKind
from corral.api import Corral
from corral.domain.chat import queries
from corral.kernel.errors import IllegalMove, Invalid, NotFound, Refused
from tests.support.fake_channels import Chat, Runner
from tests.support.store import raises_without_change, walk

pytestmark = pytest.mark.usefixtures("fake_channels")


@pytest.fixture
def chat(store: Corral) -> Chat:
    store.agents.create("ada", provider="scripted")
    store.agents.create("ben", provider="scripted")
    return Chat(store)


def answer_turn(store: Corral, chat: Chat, runner: Runner, text: str) -> None:
    store.internal.chat.start_turns()
    runner.end(runner.begin(), text)
    store.internal.chat.finish_turns()
    chat.deliver()


def test_messages_of_a_session_are_listed(chat: Chat, monkeypatch: pytest.MonkeyPatch) -> None:
    store, runner = chat.store, Runner(chat.store)
    store.wirings.add("ada", channel=chat.channel.id, trigger="mention")
    store.wirings.add("ben", channel=chat.channel.id, trigger="mention")
    sent = chat.says("@ada how are you?")
    (route,) = [candidate for candidate in sent.routes if candidate.wakes]
    answer_turn(store, chat, runner, "fine")
    for n in range(4):
        chat.says(f"@ben {n}")
    chat.says("no mention")
    monkeypatch.setattr(queries, "SCAN_SIZE", 3)
    page = store.messages.list(session=route.session_id)
    messages = page.items
    while page.next is not None:  # a page may be short, because each query scans few rows
        page = store.messages.list(session=route.session_id, after=page.next)
        messages += page.items
    assert [message.text for message in messages] == ["fine", "@ada how are you?"]
    with raises_without_change(store, NotFound):
        store.messages.list(session="ses_zzz")
    with raises_without_change(store, Invalid):
        store.messages.list(session=route.session_id, place=chat.place())


def test_held_messages_are_listed_by_sender_until_released(store: Corral) -> None:
    store.agents.create("ada", provider="scripted")
    chat = Chat(store, policy="ask")
    store.wirings.add("ada", channel=chat.channel.id)
    for text in ("one", "two"):
        for sender in ("mallory", "bob"):
            chat.says(text, sender=sender)
    held = walk(store.messages.awaiting_approval)
    assert sorted(message.text for message in held[:2]) == ["one", "two"]
    assert held[0].sender_id == held[1].sender_id != held[2].sender_id
    store.senders.approve(str(held[0].sender_id), person="robert")
    assert {message.sender_id for message in walk(store.messages.awaiting_approval)} == {
        held[2].sender_id
    }
    assert store.messages.get(held[0].id).state == "routed"
    assert [question.state for question in store.questions.list(all=True).items].count("open") == 1
    store.senders.block(str(held[2].sender_id))
    assert store.questions.list().items == [], "the question about a blocked sender is closed"
    assert walk(store.messages.awaiting_approval) == []


def test_get_many_letters_skips_deleted_ones(
    store: Corral,
) -> None:
    letters = [store.mail.put("queue:a", n) for n in range(3)]
    existing = store.mail.get_all([letters[2].id, "let_999", letters[0].id])
    assert [letter.id for letter in existing] == [letters[0].id, letters[2].id]
    assert store.mail.get_all([]) == []
    with raises_without_change(store, Invalid):
        store.mail.get_all(["msg_1"])


def test_conversations_of_a_place_are_listed(chat: Chat) -> None:
    store, runner = chat.store, Runner(chat.store)
    store.wirings.add("ada", channel=chat.channel.id)
    chat.says("hello")
    (conversation,) = store.chat.conversations(chat.place())
    assert conversation.run_id is None
    store.internal.chat.start_turns()
    run = runner.begin()
    assert [conversation.run_id for conversation in store.chat.conversations(chat.place())] == [
        run.id
    ]


def test_changed_wiring_takes_effect_at_once(chat: Chat) -> None:
    store = chat.store
    chat.says("hello")
    wiring = store.wirings.add("ada", place=chat.place())
    changed = store.wirings.change(
        wiring.id, trigger="pattern", pattern="deploy", priority=3, mode="thread"
    )
    assert (changed.id, changed.trigger, changed.pattern, changed.priority, changed.mode) == (
        wiring.id,
        "pattern",
        "deploy",
        3,
        "thread",
    )
    assert chat.says("hello").state == "ignored"
    assert chat.says("please deploy").state == "routed"
    with raises_without_change(store, Invalid):
        store.wirings.change(wiring.id, trigger="command")
    assert store.wirings.change(wiring.id, priority=5).mode == "thread"
    assert store.wirings.get(wiring.id).pattern == "deploy"
    assert store.wirings.change(wiring.id, trigger="mention").pattern is None
    store.wirings.remove(wiring.id)
    with raises_without_change(store, IllegalMove):
        store.wirings.change(wiring.id, trigger="always")


# -- the web channel ------------------------------------------------------------------------------


def test_web_channel_trusts_its_senders_and_delivers_once(
    store: Corral,
) -> None:
    store.agents.create("ada", provider="scripted")
    channel = store.channels.add("dashboard", "web", policy="strict")
    place = store.places.register("dashboard", "tester:ada", direct=True)
    store.wirings.add("ada", place=place.id)
    event = IncomingEvent(event_id="1", place="tester:ada", sender="tester", text="hello")
    message = store.messages.receive(channel.id, event)
    assert (message.state, store.messages.receive(channel.id, event).id) == ("routed", message.id)
    assert store.senders.get("dashboard/tester").person == "tester"
    adapter = store.channels.open("dashboard")
    (sent,) = store.messages.send("hi", agent="ada", to=place.id)
    (card,) = store.messages.send("+", agent="ada", to=place.id, key="k")
    letters = store.internal.chat.deliver(channel.id, adapter, owner="d")
    assert [letter.state for letter in letters] == ["done", "done"]
    delivered = store.messages.get(sent.id)
    assert delivered.state == "sent"
    store.messages.send("hi there", agent="ada", to=place.id, edit=sent.id)
    assert (
        store.messages.send("+", agent="ada", to=place.id, react=card.id)[0].kind
        is MessageKind.REACTION
    )
    assert [
        letter.state for letter in store.internal.chat.deliver(channel.id, adapter, owner="d")
    ] == [
        "done",
        "done",
    ]
    assert store.channels.test("dashboard").ok


def test_web_channel_rejects_platform_webhooks(store: Corral) -> None:
    store.channels.add("dashboard", "web")
    with raises_without_change(store, Refused):
        store.chat.receive_webhook("dashboard", {}, b"{}")
