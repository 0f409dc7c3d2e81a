"""Inbound chat messages: deduplication, sender policies, approvals, commands and attachments."""

import stat
from pathlib import Path

import pytest

from corral.adapters.channels.contract import IncomingEvent, RawAttachment
from corral.api import Corral
from corral.domain.chat.inbound import commands
from corral.kernel.clock import DAY, ManualClock
from corral.kernel.errors import Conflict, Invalid, NotFound, Refused
from tests.support.errors import because
from tests.support.fake_channels import Chat
from tests.support.invariants import check_store
from tests.support.store import list_events, raises_without_change, unchanged, walk

pytestmark = pytest.mark.usefixtures("fake_channels")


def create_chat(store: Corral, **options: str) -> Chat:
    store.agents.create("ada", provider="scripted")
    chat = Chat(store, **options)
    store.wirings.add("ada", channel=chat.channel.name)
    return chat


def list_letter_texts(store: Corral, message: object) -> list[str]:
    routes = message.routes
    return [
        letter.body["text"]
        for route in routes
        for letter in store.mail.list(mailbox=f"session:{route.session_id}").items
    ]


def test_repeated_event_is_stored_and_routed_once(store: Corral) -> None:
    chat = create_chat(store)
    message = chat.says("hello", event="e7")
    with unchanged(store):
        assert chat.says("hello again", event="e7") == message
    assert list_letter_texts(store, message) == ["hello"]
    other_chat = Chat(store, "silent")
    store.wirings.add("ada", channel="silent")
    assert other_chat.says("another channel's", event="e7").id != message.id


def test_message_keeps_platform_ids_separate_from_its_own(store: Corral) -> None:
    chat = create_chat(store)
    message = chat.says("hello", event="e1", message_id="platform-9", thread="t")
    assert message.id.startswith("msg_")
    assert (message.platform_ids, message.event_id, message.thread) == (
        ["platform-9"],
        "in:e1",
        "t",
    )
    assert message.state == "routed"


def test_strict_policy_refuses_unknown_senders(store: Corral) -> None:
    chat = create_chat(store, policy="strict")
    message = chat.says("let me in")
    assert message.state == "refused"
    assert "ann is unknown" in (message.reason or "")
    store.senders.approve("fake/ann", person="ann")
    assert chat.says("and now?").state == "routed"
    assert store.messages.get(message.id).state == "refused", (
        "an approval does not apply to earlier messages"
    )


def test_approval_is_asked_once_and_releases_held_messages_in_order(
    store: Corral,
) -> None:
    chat = create_chat(store, policy="ask")
    store.people.set("olga", "owner")
    held_messages = [chat.says(f"message {n}") for n in range(3)]
    assert {message.state for message in held_messages} == {"held"}
    (question,) = store.questions.list().items
    assert question.answerers == ["user:olga"]
    with pytest.raises(Refused):
        store.questions.answer(question.id, "yes", by="user:ann")
    store.questions.answer(question.id, "yes", by="user:olga")
    assert store.internal.chat.run_upkeep() > 0
    assert store.internal.chat.run_upkeep() == 0
    released = [store.messages.get(message.id) for message in held_messages]
    assert {message.state for message in released} == {"routed"}
    assert list_letter_texts(store, released[0]) == ["message 0", "message 1", "message 2"]
    assert chat.says("I am known now").state == "routed"
    check_store(store)


def test_forged_approval_is_ignored(store: Corral) -> None:
    chat = create_chat(store, policy="ask")
    message = chat.says("let me in")
    sender = store.senders.list().items[0].id
    (question,) = store.questions.list().items
    forged = store.questions.ask(
        "?", options=["yes"], asker="agent:eve", key=f"sender:{sender}:x", answerers=["agent:bob"]
    )
    store.questions.answer(forged.id, "yes", by="agent:bob")
    for body in (
        {"question": forged.id},
        {"question": question.id, "answer": "yes"},
        {"question": 5},
        "yes",
    ):
        store.mail.put("queue:chat", body, sender="agent:eve")
    store.internal.chat.run_upkeep()
    assert store.messages.get(message.id).state == "held"
    assert store.senders.get(sender).state == "unknown"
    assert len(store.mail.list(state="refused").items) == 4


def test_retired_agent_is_not_woken_and_message_is_ignored(store: Corral) -> None:
    chat = create_chat(store)
    store.agents.retire("ada")
    message = chat.says("hello")
    assert (message.state, message.routes[0].reason) == ("ignored", "the agent is retired")


def test_unstorable_event_does_not_block_later_events(store: Corral) -> None:
    chat = create_chat(store)
    chat.platform.pending = [
        IncomingEvent(event_id="x" * 600, place="room", sender="ann", text="bad"),
        IncomingEvent(event_id="good", place="room", sender="ann", text="good"),
    ]
    (stored,) = store.internal.chat.poll(chat.channel.id, chat.adapter)
    assert stored.text == "good"
    assert store.channels.get("fake").cursor == "2"
    assert "channel.skip_event" in list_events(store)


def test_batch_is_stored_in_order_and_each_event_once(store: Corral) -> None:
    chat = create_chat(store)
    first_message = chat.says("0", event="e0")
    chat.platform.pending = [
        IncomingEvent(
            event_id=f"e{n}", place=f"room{n % 2}" if n else "room", sender="ann", text=str(n)
        )
        for n in (0, 1, 2, 3, 2, 4, 1)
    ]
    stored = store.internal.chat.poll(chat.channel.id, chat.adapter)
    assert [message.text for message in stored] == ["0", "1", "2", "3", "2", "4", "1"]
    assert stored[0].id == first_message.id
    assert stored[2].id == stored[4].id
    assert len({message.id for message in stored}) == 5
    assert store.channels.get("fake").cursor == "7"
    for name, texts in (("room0", ["2", "4"]), ("room1", ["1", "3"])):
        place = chat.place(name)
        session = store.messages.list(place=place, limit=1).items[0].routes[0].session_id
        letters = store.mail.list(mailbox=f"session:{session}").items
        assert [letter.body["text"] for letter in letters] == texts


def test_command_within_a_batch_affects_later_events(store: Corral) -> None:
    store.agents.create("ada", provider="scripted")
    chat = Chat(store, policy="ask")
    chat.says("hello", event="e0")
    store.senders.approve("fake/ann")
    chat.platform.pending = [
        IncomingEvent(event_id=f"e{n}", place="room", sender=sender, text=text)
        for n, (sender, text) in enumerate([("ann", "one"), ("ann", "/help"), ("ben", "two")], 1)
    ]
    before_command, command, after_command = store.internal.chat.poll(chat.channel.id, chat.adapter)
    assert (before_command.state, command.state, after_command.state) == ("held", "routed", "held")
    assert after_command.reason == "an owner has not approved ben yet"


def test_batch_is_stored_atomically(store: Corral) -> None:
    chat = create_chat(store)
    events = [
        IncomingEvent(event_id="good", place="room", sender="ann", text="good"),
        IncomingEvent(event_id="bad", place="room", sender="ann", text="bad", thread="t" * 600),
    ]
    with pytest.raises(Invalid, check=because("too_long")):
        store.messages.receive_all(chat.channel.id, events, cursor="2")
    assert store.messages.list().items == []
    assert store.channels.get("fake").cursor is None


def test_routes_of_a_message_name_their_letters(store: Corral) -> None:
    chat = create_chat(store)
    message = chat.says("hello")
    (route,) = message.routes
    assert store.mail.get(str(route.letter_id)).key == message.id
    assert store.messages.get(message.id) == message
    assert store.messages.list().items == [message]


def test_denied_approval_blocks_the_sender(store: Corral) -> None:
    chat = create_chat(store, policy="ask")
    message = chat.says("buy this")
    (question,) = store.questions.list().items
    store.questions.answer(question.id, "no", by="user:olga")
    store.internal.chat.run_upkeep()
    assert store.messages.get(message.id).state == "refused"
    assert chat.says("buy that").state == "refused"
    assert store.questions.list().items == [], "no new question is asked"


def test_expired_approval_admits_no_sender(store: Corral, clock: ManualClock) -> None:
    chat = create_chat(store, policy="ask")
    message = chat.says("hello?")
    clock.advance(8 * DAY)
    store.internal.questions.expire_due()
    store.internal.chat.run_upkeep()
    refused = store.messages.get(message.id)
    assert (refused.state, refused.reason) == ("refused", "no owner approved the sender in time")
    assert chat.says("still there?").state == "held"
    assert len(store.questions.list().items) == 1, "a new question is asked"


def test_held_messages_are_limited(store: Corral) -> None:
    chat = create_chat(store, policy="ask")
    store.settings.set("questions.max_open", 3)
    states = [chat.says("hi", sender=f"s{n}").state for n in range(5)]
    assert states == ["held"] * 3 + ["refused"] * 2


def test_owner_chooses_the_agent_of_an_unwired_place(store: Corral) -> None:
    store.agents.create("ada", provider="scripted")
    chat = Chat(store, policy="ask")
    store.senders.approve("fake/ann", person="ann")
    mention, without_mention = chat.says("@ada anybody?"), chat.says("hello?")
    assert (mention.state, without_mention.state) == ("held", "held")
    (question,) = store.questions.list().items
    assert question.options == ["ada", "nobody"]
    store.questions.answer(question.id, "ada", by="user:olga")
    store.internal.chat.run_upkeep()
    assert store.messages.get(mention.id).state == "routed"
    assert store.messages.get(without_mention.id).state == "ignored", (
        "in a group the agent must be mentioned"
    )
    assert [wiring.trigger for wiring in store.wirings.list().items] == ["mention"]


def test_answer_nobody_ignores_the_held_messages(store: Corral) -> None:
    store.agents.create("ada", provider="scripted")
    chat = Chat(store, policy="ask")
    store.senders.approve("fake/ann", person="ann")
    message = chat.says("hello?")
    store.questions.answer(store.questions.list().items[0].id, "nobody", by="user:olga")
    store.internal.chat.run_upkeep()
    assert store.messages.get(message.id).state == "ignored"


def test_agent_that_is_named_nobody_does_not_make_messages_unreadable(
    store: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.agents.create("ada", provider="scripted")
    with monkeypatch.context() as patch:  # a store may have such an agent from an import
        patch.setattr("corral.domain.agents.ops.check_name", lambda name: name)
        store.agents.create("nobody", provider="scripted")
    chat = Chat(store, policy="ask")
    store.senders.approve("fake/ann", person="ann")
    assert chat.says("hello?").state == "held"
    (question,) = store.questions.list().items
    assert question.options == ["ada", "nobody"]


@pytest.mark.parametrize("scope", ["place", "channel"])
def test_new_wiring_releases_messages_held_for_an_agent(store: Corral, scope: str) -> None:
    store.agents.create("ada", provider="scripted")
    chat = Chat(store, policy="ask")
    store.senders.approve("fake/ann", person="ann")
    held_messages = [chat.says(text) for text in ("one", "two", "three")]
    stranger = chat.says("let me in", sender="eve")
    target = chat.place() if scope == "place" else "fake"
    wiring = store.wirings.add("ada", **{scope: target})
    assert wiring.trigger == "always"
    assert {store.messages.get(message.id).state for message in held_messages} == {"routed"}
    letters = [
        letter for letter in store.mail.list().items if letter.mailbox.startswith("session:")
    ]
    assert [letter.body["text"] for letter in letters] == ["one", "two", "three"]
    assert store.messages.get(stranger.id).state == "held", "a wiring does not approve senders"
    (question,) = store.questions.list().items
    assert "May eve" in question.text, "the question about the agent is closed"


def test_held_message_that_does_not_match_the_wiring_is_ignored(store: Corral) -> None:
    store.agents.create("ada", provider="scripted")
    chat = Chat(store, policy="ask")
    store.senders.approve("fake/ann", person="ann")
    held_messages = chat.says("hello?")
    store.wirings.add("ada", channel="fake", trigger="mention")
    assert store.messages.get(held_messages.id).state == "ignored"
    assert store.questions.list().items == []


def test_direct_flag_follows_the_platform(store: Corral) -> None:
    store.agents.create("ada", provider="scripted")
    chat = Chat(store, policy="public")
    store.wirings.add("ada", channel="fake", trigger="mention")
    assert chat.says("hello", direct=True).state == "routed", "a direct message needs no mention"
    assert chat.says("hello", direct=None).state == "routed", (
        "the platform does not report the flag"
    )
    assert chat.says("hello all", direct=False).state == "ignored"
    assert store.places.get(chat.place()).direct is False
    assert chat.says("hello", direct=True).state == "routed", "the place is direct again"


def test_blocked_place_neither_receives_nor_sends(store: Corral) -> None:
    chat = create_chat(store)
    chat.says("first")
    store.messages.send_as_system(chat.place(), "news")
    store.places.block(chat.place())
    assert chat.says("second").state == "refused"
    assert chat.deliver() == ["refused"]
    store.places.unblock(chat.place())
    assert chat.says("third").state == "routed"


def test_place_policy_overrides_channel_policy(store: Corral) -> None:
    chat = create_chat(store)
    chat.says("first")
    store.places.set_policy(chat.place(), "strict")
    assert chat.says("second").state == "refused"
    store.places.set_policy(chat.place(), None)
    assert chat.says("third").state == "routed"


@pytest.mark.parametrize(
    ("name", "role", "direct", "allowed"),
    [
        ("help", None, False, True),
        ("status", None, False, False),
        ("status", "member", False, True),
        ("stop", "member", False, False),
        ("stop", "member", True, True),
        ("clear", "admin", False, True),
        ("cost", "member", False, True),
    ],
)
def test_command_requires_permission(
    store: Corral, name: str, role: str | None, direct: bool, allowed: bool
) -> None:
    chat = create_chat(store)
    chat.says("hello", direct=direct)
    if role is not None:
        store.senders.approve("fake/ann", person="ann", role=role)
    message = chat.says(f"/{name}", direct=direct)
    assert message.state == ("routed" if allowed else "refused")
    assert message.routes == [], "commands wake no agent"
    assert chat.deliver() == ["done"]
    (answer,) = chat.platform.words()
    assert ("needs at least the role" in answer) is not allowed


def test_clear_command_resets_the_context(store: Corral) -> None:
    chat = create_chat(store)
    session = chat.says("hello").routes[0].session_id
    assert session is not None
    store.sessions.set_provider_session(session, "scripted", "abc")
    store.senders.approve("fake/ann", person="ann", role="owner")
    chat.says("/clear")
    assert store.sessions.get(session).provider_session is None


@pytest.mark.parametrize("name", ["clear", "status", "stop", "cost"])
def test_command_after_a_session_was_closed_does_not_block_the_channel(
    store: Corral, name: str
) -> None:
    chat = create_chat(store)
    closed = str(chat.says("hello", event="e0").routes[0].session_id)
    store.senders.approve("fake/ann", person="ann", role="owner")
    store.sessions.close(closed)
    chat.platform.pending = [
        IncomingEvent(event_id="e1", place="room", sender="ann", text=f"/{name}"),
        IncomingEvent(event_id="e2", place="room", sender="ann", text="are you there?"),
    ]
    command, message = store.internal.chat.poll(chat.channel.id, chat.adapter)
    assert (command.state, message.state) == ("routed", "routed")
    assert message.routes[0].session_id != closed
    assert store.channels.get("fake").cursor == "2"


def test_message_after_its_session_was_deleted_opens_another(store: Corral, tmp_path: Path) -> None:
    store.agents.create("ada", provider="scripted")
    chat = Chat(store)
    project = store.projects.register(tmp_path)
    store.wirings.add("ada", channel="fake", project=project.id)
    deleted = str(chat.says("hello").routes[0].session_id)
    store.projects.delete(project.id)
    with pytest.raises(NotFound):
        store.sessions.get(deleted)
    store.senders.approve("fake/ann", person="ann", role="owner")
    assert chat.says("/clear").state == "routed"
    message = chat.says("are you there?")
    assert message.state == "routed"
    assert message.routes[0].session_id != deleted


def test_event_that_conflicts_does_not_block_later_events(
    store: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> str:
        raise Conflict("in the way")

    chat = create_chat(store)
    monkeypatch.setitem(commands._HANDLERS, "help", fail)
    chat.platform.pending = [
        IncomingEvent(event_id="bad", place="room", sender="ann", text="/help"),
        IncomingEvent(event_id="good", place="room", sender="ann", text="good"),
    ]
    (stored,) = store.internal.chat.poll(chat.channel.id, chat.adapter)
    assert stored.text == "good"
    assert store.channels.get("fake").cursor == "2"
    assert "channel.skip_event" in list_events(store)


def test_events_of_a_removed_channel_are_not_skipped(store: Corral) -> None:
    chat = create_chat(store)
    chat.platform.pending = [IncomingEvent(event_id="e1", place="room", sender="ann", text="hello")]
    store.channels.remove("fake")
    with raises_without_change(store, Refused) as caught:
        store.internal.chat.poll(chat.channel.id, chat.adapter)
    assert caught.value.details["reason"] == "channel_removed"


def test_attachments_are_private_files_with_sanitized_names(store: Corral, tmp_path: Path) -> None:
    chat = create_chat(store)
    store.settings.set("chat.max_file_bytes", 10)
    message = chat.says(
        "look",
        attached=[
            RawAttachment("../../etc/passwd", b"one", 3),
            RawAttachment("..\\..\\boot.ini\0", b"two", 3),
            RawAttachment("", b"three", 5),
            RawAttachment("large.bin", b"x" * 11, 11),
            RawAttachment("gone.png", None, 9, None, "expired on the platform"),
        ],
    )
    files = message.data["files"]
    home = (tmp_path / "home").resolve()
    for file in files[:3]:
        path = Path(file["path"])
        assert path.resolve().is_relative_to(home)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert "/" not in path.name
        assert not path.name.startswith(".")
    assert Path(files[0]["path"]).read_bytes() == b"one"
    assert [file["path"] for file in files[3:]] == [None, None]
    assert "10 bytes" in files[3]["reason"]


def test_symlink_instead_of_an_attachment_is_not_followed(store: Corral, tmp_path: Path) -> None:
    chat = create_chat(store)
    message = chat.says("look", event="e1", attached=[RawAttachment("a.txt", b"one", 3)])
    path = Path(message.data["files"][0]["path"])
    victim = tmp_path / "victim"
    victim.write_text("original")
    path.unlink()
    path.symlink_to(victim)
    chat.says("again", event="e1", attached=[RawAttachment("a.txt", b"two", 3)])
    assert victim.read_text() == "original"


def test_oversized_message_is_stored_whole_as_a_file(store: Corral) -> None:
    chat = create_chat(store)
    message = chat.says("x" * 1_000_000)
    assert message.state == "routed"
    assert len(message.text) == 64 * 1024
    assert Path(message.data["files"][0]["path"]).stat().st_size == 1_000_000


def test_invalid_characters_are_replaced_before_storing(store: Corral) -> None:
    chat = create_chat(store)
    assert chat.says("a\0b\ud800c").text == "ab?c"


@pytest.mark.parametrize(
    "fields",
    [{"event": "x" * 501}, {"place": ""}, {"sender": ""}, {"thread": "t" * 501}],
)
def test_invalid_event_is_rejected(store: Corral, fields: dict[str, str]) -> None:
    chat = create_chat(store)
    with raises_without_change(store, Invalid):
        chat.says("hello", **fields)


def test_channel_requires_a_name_and_the_options_of_its_kind(store: Corral) -> None:
    store.channels.add("one", "fake")
    with raises_without_change(store, Conflict):
        store.channels.add("one", "fake")
    with raises_without_change(store, Invalid):
        store.channels.add("two", "unknown")
    with raises_without_change(store, Invalid):
        store.channels.add("two", "fake", config={"colour": "red"})
    with raises_without_change(store, Invalid):
        store.channels.add("t", "telegram")
    with raises_without_change(store, NotFound):
        store.channels.add("t", "telegram", secrets={"token": "unknown"})
    with raises_without_change(store, Invalid):
        store.channels.add("two", "fake", policy="unknown")
    store.channels.remove("one")
    store.channels.add("one", "fake")
    assert len(walk(store.channels.list, all=True)) == 2
    assert [channel.name for channel in store.channels.list().items] == ["one"]


def test_polling_resumes_after_the_stored_cursor(store: Corral) -> None:
    chat = create_chat(store)
    chat.platform.pending = [
        IncomingEvent(event_id=f"e{n}", place="room", sender="ann", text=str(n))
        for n in (1, 2, 2, 1)
    ]
    stored = store.internal.chat.poll(chat.channel.id, chat.adapter)
    assert [message.text for message in stored] == ["1", "2", "2", "1"]
    assert len({message.id for message in stored}) == 2
    assert store.channels.get("fake").cursor == "4"
    assert store.internal.chat.poll(chat.channel.id, chat.adapter) == []
