"""Outbound chat messages: order, permission, retries, unconfirmed deliveries and leases."""

import subprocess
import sys

import pytest

from corral.adapters.channels.contract import ChannelTraits, OutgoingMessage, PostedMessage
from corral.adapters.processes import process
from corral.adapters.processes.process import ProcessIdentity
from corral.api import Corral
from corral.domain.chat.outbound import queue
from corral.domain.chat.outbound.queue import MessageDraft
from corral.kernel.clock import HOUR, MINUTE, SECOND, ManualClock
from corral.kernel.errors import Conflict, Invalid, NotFound, Refused
from corral.services.chat.delivery import create_delivery_owner
from tests.support.fake_channels import KINDS, Chat, FakeAdapter, Platform, register_adapters
from tests.support.invariants import check_store
from tests.support.store import raises_without_change, walk

pytestmark = pytest.mark.usefixtures("fake_channels")


def create_chat(store: Corral, kind: str = "fake", **options: str) -> Chat:
    store.agents.create("ada", provider="scripted")
    chat = Chat(store, kind, **options)
    chat.says("hello")
    store.destinations.grant("ada", chat.place(), name="room")
    return chat


def test_delivered_message_records_the_platform_id(store: Corral) -> None:
    chat = create_chat(store)
    (sent,) = store.messages.send("hello", agent="ada", to="room")
    assert (sent.state, sent.platform_ids) == ("queued", [])
    assert chat.deliver() == ["done"]
    delivered = store.messages.get(sent.id)
    assert (delivered.state, delivered.platform_ids) == ("sent", ["m1"])
    assert chat.deliver() == []
    assert chat.platform.words() == ["hello"]


def test_send_with_the_same_key_is_idempotent(store: Corral) -> None:
    chat = create_chat(store)
    messages = store.messages.send("hello", agent="ada", to="room", key="k")
    assert store.messages.send("hello", agent="ada", to="room", key="k")[0].id == messages[0].id
    chat.deliver()
    assert chat.platform.words() == ["hello"]


def test_long_text_is_split_between_words_and_stays_in_order(store: Corral) -> None:
    chat = create_chat(store)
    text = "\n\n".join(f"paragraph {n} " + "word " * 20 for n in range(6))
    sent = store.messages.send(text, agent="ada", to="room")
    assert len(sent) > 2
    chat.deliver()
    assert " ".join(" ".join(chat.platform.words()).split()) == " ".join(text.split())
    assert all(len(part) <= 200 for part in chat.platform.words())


def test_delivery_order_follows_the_order_of_sends(store: Corral) -> None:
    chat = Chat(store)
    place = store.places.register("fake", "room")
    with store.transaction() as tx:
        queue.enqueue(tx, place, MessageDraft("first"))
    with store.transaction() as tx:
        tx.now -= 50  # as a transaction that began earlier and committed later
        queue.enqueue(tx, place, MessageDraft("second"))
    chat.deliver()
    assert chat.platform.words() == ["first", "second"]


def test_edit_and_reaction_use_the_platform_id(store: Corral) -> None:
    chat = create_chat(store)
    (sent,) = store.messages.send("helo", agent="ada", to="room")
    with raises_without_change(store, Refused):  # not delivered yet
        store.messages.send("hello", agent="ada", to="room", edit=sent.id)
    chat.deliver()
    store.messages.send("hello", agent="ada", to="room", edit=sent.id)
    chat.deliver()
    assert chat.platform.words() == ["hello"]
    with raises_without_change(store, Invalid):
        store.messages.send("x", agent="ada", to="room", edit=sent.id, react=sent.id)
    with raises_without_change(store, NotFound):
        store.messages.send("x", agent="ada", to="room", edit="msg_99")


def test_agent_sends_only_to_its_destinations(store: Corral) -> None:
    chat = create_chat(store)
    chat.says("hello", place="other")
    with raises_without_change(store, Refused) as caught:
        store.messages.send("hello", agent="ada", to="other")
    assert "room" in caught.value.message, "the error names the known destinations"
    with raises_without_change(store, Refused):
        store.messages.send("hello", agent="ada", to=chat.place("other"))
    with raises_without_change(store, Refused):
        store.messages.send("hello", agent="ada")


def test_permission_is_checked_again_at_delivery(store: Corral) -> None:
    chat = create_chat(store)
    store.alerts.add(["undelivered"], target_kind="mailbox", target="user:operator")
    (sent,) = store.messages.send("secret", agent="ada", to="room")
    store.destinations.revoke("ada", "room")
    assert chat.deliver() == ["refused"]
    refused_message = store.messages.get(sent.id)
    assert (refused_message.state, "no destination" in (refused_message.reason or "")) == (
        "undelivered",
        True,
    )
    assert chat.platform.words() == []
    (notice,) = store.mail.list(mailbox="agent:ada").items
    assert notice.body["state"] == "refused"
    (alert,) = store.mail.list(mailbox="user:operator").items
    assert alert.body["event"] == "undelivered"
    store.destinations.grant("ada", chat.place(), name="room")
    store.messages.send("allowed again", agent="ada", to="room")
    chat.deliver()
    assert chat.platform.words() == ["allowed again"]


def test_destination_names_are_unique_per_agent(store: Corral) -> None:
    chat = create_chat(store)
    chat.says("x", place="other")
    with raises_without_change(store, Conflict):
        store.destinations.grant("ada", chat.place("other"), name="room")
    store.destinations.grant("ada", chat.place("other"))
    assert [destination.name for destination in walk(store.destinations.list, agent="ada")] == [
        "other",
        "room",
    ]
    with raises_without_change(store, NotFound):
        store.destinations.revoke("ada", "unknown")


def test_letter_put_by_hand_is_delivered_and_unknown_place_is_skipped(store: Corral) -> None:
    chat = create_chat(store)
    store.mail.put("place:unknown", "undeliverable")
    store.mail.put(f"place:{chat.place()}", "deployed", sender="user:me")
    store.mail.put(f"place:{chat.place()}", {"n": 1})
    assert chat.deliver() == ["done", "done"]
    assert chat.platform.words() == ["deployed", '{"n":1}']


def test_failed_attempts_are_persisted_until_undelivered(store: Corral, clock: ManualClock) -> None:
    chat = create_chat(store)
    store.settings.set("mail.max_attempts", 3)
    chat.platform.outcomes = ["fail"] * 3
    (sent,) = store.messages.send("hello", agent="ada", to="room")
    (next_message,) = store.messages.send("later", agent="ada", to="room")
    for _ in range(3):
        chat.deliver()
        clock.advance(5 * MINUTE)
    assert store.messages.get(sent.id).state == "undelivered"
    chat.deliver()
    assert chat.platform.words() == ["later"]
    (dead_letter,) = store.mail.dead().items
    store.mail.resend(dead_letter.id)
    assert chat.deliver() == ["done"]
    assert store.messages.get(sent.id).state == "sent"
    assert store.messages.get(next_message.id).state == "sent"
    check_store(store)


def test_retry_after_of_the_platform_is_obeyed(store: Corral, clock: ManualClock) -> None:
    chat = create_chat(store)
    chat.platform.outcomes = ["slow down"]
    store.messages.send("hello", agent="ada", to="room")
    chat.deliver()
    clock.advance(9 * MINUTE)
    assert chat.deliver() == []
    clock.advance(MINUTE)
    assert chat.deliver() == ["done"]


def test_rejected_message_is_not_retried(store: Corral, clock: ManualClock) -> None:
    chat = create_chat(store)
    chat.platform.outcomes = ["refuse"]
    (sent,) = store.messages.send("hello", agent="ada", to="room")
    assert chat.deliver() == ["refused"]
    clock.advance(60 * MINUTE)
    assert chat.deliver() == []
    assert store.messages.get(sent.id).reason == "the message is not allowed"


@pytest.mark.parametrize("outcome", ["lost", "away", "throw"])
def test_idempotent_platform_retries_unconfirmed_message_once(
    store: Corral, clock: ManualClock, outcome: str
) -> None:
    chat = create_chat(store)
    chat.platform.outcomes = [outcome]
    store.messages.send("hello", agent="ada", to="room")
    store.messages.send("world", agent="ada", to="room")
    assert chat.deliver() == ["waiting"]
    clock.advance(MINUTE)
    assert chat.deliver() == ["done", "done"]
    assert chat.platform.words() == ["hello", "world"]


@pytest.mark.parametrize("outcome", ["lost", "away"])
def test_unconfirmed_message_is_looked_up_in_the_history(
    store: Corral, clock: ManualClock, outcome: str
) -> None:
    chat = create_chat(store, "forgetful")
    store.messages.send("hello", agent="ada", to="room")
    chat.deliver()
    chat.platform.outcomes = [outcome]
    (unconfirmed,) = store.messages.send("hello", agent="ada", to="room")
    store.messages.send("world", agent="ada", to="room")
    assert chat.deliver() == ["unconfirmed"]
    assert chat.deliver() == [], "later messages wait for the unconfirmed one"
    clock.advance(2 * MINUTE)
    chat.deliver()
    assert chat.platform.words() == ["hello", "hello", "world"]
    assert store.messages.get(unconfirmed.id).state == "sent"
    assert store.messages.get(unconfirmed.id).platform_ids != []
    check_store(store)


def test_unconfirmed_message_is_resolved_behind_many_newer_ones(
    store: Corral, clock: ManualClock
) -> None:
    chat = create_chat(store, "forgetful")
    store.messages.send("hello", agent="ada", to="room")
    chat.deliver()
    chat.platform.outcomes = ["lost"]
    (unconfirmed,) = store.messages.send("hello", agent="ada", to="room")
    assert chat.deliver() == ["unconfirmed"]
    for _ in range(201):
        store.mail.put("queue:other", "hello")
        (letter,) = store.mail.claim("queue:other", owner="other")
        store.mail.begin_delivery(letter)
    clock.advance(2 * MINUTE)
    chat.deliver()
    assert store.messages.get(unconfirmed.id).state == "sent"


@pytest.mark.parametrize(
    ("rule", "state", "count"), [("give_up", "undelivered", 1), ("retry", "sent", 2)]
)
def test_unconfirmed_message_without_history_follows_channel_policy(
    store: Corral, clock: ManualClock, rule: str, state: str, count: int
) -> None:
    chat = create_chat(store, "silent", on_unconfirmed=rule)
    chat.platform.outcomes = ["lost"]
    (sent,) = store.messages.send("hello", agent="ada", to="room")
    chat.deliver()
    clock.advance(2 * MINUTE)
    chat.deliver()
    assert store.messages.get(sent.id).state == state
    assert len(chat.platform.words()) == count
    assert len(store.mail.list(mailbox="agent:ada").items) == (state == "undelivered")


@pytest.mark.parametrize("kind", ["fake", "forgetful"])
def test_lease_of_a_dead_local_process_is_taken_over_at_once(
    store: Corral, clock: ManualClock, kind: str
) -> None:
    chat = create_chat(store, kind)
    exited = subprocess.Popen([sys.executable, "-c", ""])
    exited.wait()
    store.messages.send("one", agent="ada", to="room")
    store.messages.send("two", agent="ada", to="room")
    mailbox = store.places.get(chat.place()).mailbox
    dead_owner = ProcessIdentity(process.host(), process.boot_id(), exited.pid, "1").as_owner(
        "delivery"
    )
    (letter,) = store.mail.claim(mailbox, owner=dead_owner, lease_ms=MINUTE)
    if kind == "forgetful":
        store.mail.begin_delivery(letter)  # the process was about to send
    chat.deliver()
    clock.advance(2 * SECOND)
    chat.deliver()
    assert chat.platform.words() == ["one", "two"]


def test_clock_set_back_does_not_delay_delivery_for_long(store: Corral, clock: ManualClock) -> None:
    chat = create_chat(store)
    store.messages.send("one", agent="ada", to="room")
    clock.advance(-HOUR)
    store.messages.send("two", agent="ada", to="room")
    assert chat.deliver() == []
    clock.advance(MINUTE)
    chat.deliver()
    assert chat.platform.words() == ["two"]


def test_reused_pid_does_not_count_as_the_lease_owner(store: Corral, clock: ManualClock) -> None:
    chat = create_chat(store)
    store.messages.send("one", agent="ada", to="room")
    mailbox = store.places.get(chat.place()).mailbox
    # The same pid with another start time.
    earlier_process = process.identify_self()._replace(start_token="1").as_owner("delivery")
    store.mail.claim(mailbox, owner=earlier_process, lease_ms=MINUTE)
    chat.deliver()
    clock.advance(2 * SECOND)
    assert chat.deliver() == ["done"]


def test_lease_of_a_live_process_is_respected(store: Corral, clock: ManualClock) -> None:
    chat = create_chat(store)
    store.messages.send("one", agent="ada", to="room")
    mailbox = store.places.get(chat.place()).mailbox
    for owner in (
        create_delivery_owner(),
        ProcessIdentity("other-host", "1", 1, "1").as_owner("delivery"),
    ):
        store.mail.claim(mailbox, owner=owner, lease_ms=MINUTE)
        chat.deliver()
        clock.advance(2 * SECOND)
        assert chat.deliver() == []
        clock.advance(MINUTE)
    assert chat.deliver() == ["done"]


def test_reaction_on_platform_without_reactions_is_rejected(store: Corral) -> None:
    chat = create_chat(store, "silent")
    (sent,) = store.messages.send("hello", agent="ada", to="room")
    chat.deliver()
    (reaction,) = store.messages.send("+", agent="ada", to="room", react=sent.id)
    assert chat.deliver() == ["refused"]
    assert "no reactions" in (store.messages.get(reaction.id).reason or "")


def test_dropped_letter_marks_its_message_undelivered(store: Corral) -> None:
    chat = create_chat(store)
    (sent,) = store.messages.send("hello", agent="ada", to="room")
    assert sent.letter_id is not None
    store.mail.drop(sent.letter_id, reason="not needed")
    store.internal.chat.run_upkeep()
    dropped = store.messages.get(sent.id)
    assert (dropped.state, dropped.reason) == ("undelivered", "not needed")
    assert chat.deliver() == []


def test_removed_channel_drops_queued_messages_with_reason(store: Corral) -> None:
    chat = create_chat(store)
    (sent,) = store.messages.send("hello", agent="ada", to="room")
    store.channels.remove(chat.channel.name)
    store.internal.chat.run_upkeep()
    assert store.messages.get(sent.id).state == "undelivered"


def test_message_queued_during_channel_removal_is_not_sent(
    store: Corral,
) -> None:
    chat = create_chat(store)
    place = store.places.get(chat.place())
    store.channels.remove(chat.channel.name)
    with store.transaction() as tx:
        (message,) = queue.enqueue(tx, place, MessageDraft("hello"))
    chat.deliver()
    assert chat.platform.words() == []
    undelivered = store.messages.get(message.id)
    assert (undelivered.state, undelivered.reason) == (
        "undelivered",
        "the channel fake was removed",
    )


def test_messages_are_listed_newest_first_in_pages(store: Corral) -> None:
    chat = create_chat(store)
    for n in range(5):
        store.messages.send_as_system(chat.place(), str(n))
    chat.says("other", place="other")
    all_messages = walk(store.messages.list)
    assert [message.text for message in all_messages][:2] == ["other", "4"]
    place_messages = walk(store.messages.list, place=chat.place())
    assert [message.text for message in place_messages] == ["4", "3", "2", "1", "0", "hello"]


class ExpiringKeyAdapter(FakeAdapter):
    """Forgets idempotency keys after a while, and has a history."""

    kind = "expiring"
    traits = ChannelTraits(
        max_text=200, idempotent=True, key_retention_ms=15 * MINUTE, history=True
    )

    def list_posted(self, message: OutgoingMessage) -> list[PostedMessage]:
        return [
            PostedMessage(id, shown[2], shown[1], 0) for id, shown in _list_shown(self.platform)
        ]


def _list_shown(platform: Platform) -> list[tuple[str, tuple[str, str | None, str]]]:
    return list(zip(platform.ids, platform.shown, strict=True))


def test_expired_platform_key_is_looked_up_before_retry(
    store: Corral, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(KINDS, "expiring", ExpiringKeyAdapter)
    register_adapters(monkeypatch)
    chat = create_chat(store, "expiring")
    chat.platform.outcomes = ["lost", "away"]
    for text in ("arrived", "missing"):
        store.messages.send(text, agent="ada", to="room")
    assert chat.deliver() == ["waiting"]
    chat.platform.by_key.clear()  # the platform dropped the key
    clock.advance(HOUR)
    assert chat.deliver() == ["done", "waiting"]
    clock.advance(HOUR)
    assert chat.deliver() == ["done"]
    assert chat.platform.words() == ["arrived", "missing"]
