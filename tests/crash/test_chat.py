"""Crashes of chat operations: every message is stored and answered exactly once.

The fake platform is the list of recorded effects, which survives every crash. It resends events
until it knows that they are stored.
"""

from pathlib import Path

import msgspec
import pytest

from corral.adapters.channels.contract import (
    IncomingEvent,
    OutgoingMessage,
    PostedMessage,
    SendOutcome,
    SentMessage,
)
from corral.api import Corral
from tests.crash.harness import FreshUrl, Scenario, Step, World, crash_at_every_commit
from tests.support.fake_channels import KINDS, FakeAdapter, Runner

pytestmark = pytest.mark.usefixtures("fake_channels")

EVENTS = [
    IncomingEvent(event_id=f"e{n}", place=f"room{n}", sender="ann", text=f"say {n}", direct=True)
    for n in range(2)
]


def connect(kind: str) -> Step:
    def prepare(store: Corral, world: World) -> None:
        store.agents.create("ada", provider="scripted")
        store.channels.add("chat", kind, policy="public", on_unconfirmed="give_up")
        store.wirings.add("ada", channel="chat")

    return prepare


def make_adapter(kind: str, world: World) -> FakeAdapter:
    """Return an adapter that records what it sends, so that it survives a crash."""

    class RecordingAdapter(KINDS[kind]):
        def send(self, message: OutgoingMessage) -> SendOutcome:
            if not (self.traits.idempotent and f"{message.key} " in " ".join(world.records) + " "):
                world.record(f"{message.key} | {message.text}")
            return SentMessage([message.key])

        def list_posted(self, message: OutgoingMessage) -> list[PostedMessage]:
            return [
                PostedMessage(key, text, None, 0)
                for key, _, text in (record.partition(" | ") for record in world.records)
            ]

    return RecordingAdapter()


def run_all_turns(store: Corral) -> None:
    """Run turns like a daemon, until there is no more work."""
    runner = Runner(store)
    busy = True
    while busy:
        busy = bool(store.internal.chat.finish_turns()) or bool(store.internal.chat.run_upkeep())
        busy = bool(store.internal.chat.start_turns()) or busy
        for run in store.runs.list(live=True, limit=50).items:
            if run.state == "queued":
                live_run = runner.begin()
                text = (runner.prompt(live_run) or "").rpartition("say ")[2]
                runner.end(live_run, f"you wrote {text}")
            else:
                runner.die(run)  # its supervisor was killed too


def serve(kind: str) -> Step:
    def run(store: Corral, world: World) -> None:
        for event in EVENTS:
            store.messages.receive("chat", event)
            run_all_turns(store)
            store.internal.chat.deliver("chat", make_adapter(kind, world), owner=f"o{store.now()}")

    return run


def recover(kind: str) -> Step:
    def run(store: Corral, world: World) -> None:
        for event in EVENTS:  # the platform resends unacknowledged events
            store.messages.receive("chat", event)
        for _ in range(8):
            run_all_turns(store)
            store.internal.chat.deliver("chat", make_adapter(kind, world), owner="recovery")
            world.clock.advance(10 * 60_000)

    return run


def check(store: Corral, world: World) -> None:
    """Every message is stored and answered once, and no letter remains."""
    texts = [record.partition(" | ")[2] for record in world.records]
    assert sorted(texts) == [f"you wrote {n}" for n in range(2)]
    messages = store.messages.list(limit=200).items
    assert sorted(message.text for message in messages if message.direction == "in") == [
        f"say {n}" for n in range(2)
    ]
    assert {message.state for message in messages} == {"routed", "sent"}
    assert store.mail.list().items == []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["fake", "forgetful"])
def test_every_message_is_answered_once_after_any_crash(
    fresh_url: FreshUrl, tmp_path: Path, kind: str
) -> None:
    crash_at_every_commit(
        fresh_url,
        tmp_path,
        Scenario(
            prepare=connect(kind),
            run=serve(kind),
            recover=recover(kind),
            check=check,
        ),
    )


def test_sender_is_approved_once_after_any_crash(fresh_url: FreshUrl, tmp_path: Path) -> None:
    def prepare(store: Corral, world: World) -> None:
        connect("fake")(store, world)
        store.places.register("chat", "room")
        store.places.set_policy("chat/room", "ask")
        for event in EVENTS:
            store.messages.receive("chat", msgspec.structs.replace(event, place="room"))

    def run(store: Corral, world: World) -> None:
        (question,) = store.questions.list(all=True).items
        store.questions.answer(question.id, "yes", by="user:olga")
        store.internal.chat.run_upkeep()

    def check_approved(store: Corral, world: World) -> None:
        (sender,) = store.senders.list().items
        assert sender.state == "known"
        messages = store.messages.list().items
        assert {message.state for message in messages} == {"routed"}
        session = messages[0].routes[0].session_id
        letters = store.mail.list(mailbox=f"session:{session}").items
        assert [letter.body["text"] for letter in letters] == [f"say {n}" for n in range(2)]

    crash_at_every_commit(
        fresh_url, tmp_path, Scenario(prepare=prepare, run=run, recover=run, check=check_approved)
    )
