"""Chat and a crashing process: receive, start a turn, acknowledge, send, record.

The platform outlives every process: it is the diary. What it shows is shown to people, and what it
was told is stored it forgets.
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


def adapter(kind: str, world: World) -> FakeAdapter:
    """An adapter whose platform is the diary: what it shows stays, whoever dies."""

    class Diary(KINDS[kind]):
        def send(self, message: OutgoingMessage) -> SendOutcome:
            if not (self.traits.idempotent and f"{message.key} " in " ".join(world.deeds) + " "):
                world.note(f"{message.key} | {message.text}")
            return SentMessage([message.key])

        def list_posted(self, message: OutgoingMessage) -> list[PostedMessage]:
            return [
                PostedMessage(key, text, None, 0)
                for key, _, text in (deed.partition(" | ") for deed in world.deeds)
            ]

    return Diary()


def answer_everything(store: Corral) -> None:
    """What a daemon and its runners do, until there is nothing more to do."""
    runner = Runner(store)
    busy = True
    while busy:
        busy = bool(store.internal.chat.finish_turns()) or bool(store.internal.chat.run_upkeep())
        busy = bool(store.internal.chat.start_turns()) or busy
        for run in store.runs.list(live=True, limit=50).items:
            if run.state == "queued":
                going = runner.begin()
                words = (runner.prompt(going) or "").rpartition("say ")[2]
                runner.end(going, f"you said {words}")
            else:
                runner.die(run)  # its supervisor died with the process


def serve(kind: str) -> Step:
    def run(store: Corral, world: World) -> None:
        for event in EVENTS:
            store.messages.receive("chat", event)
            answer_everything(store)
            store.internal.chat.deliver("chat", adapter(kind, world), owner=f"o{store.now()}")

    return run


def recover(kind: str) -> Step:
    def run(store: Corral, world: World) -> None:
        for event in EVENTS:  # the platform was not told that all are stored, so they come again
            store.messages.receive("chat", event)
        for _ in range(8):
            answer_everything(store)
            store.internal.chat.deliver("chat", adapter(kind, world), owner="recovery")
            world.clock.advance(10 * 60_000)

    return run


def check(store: Corral, world: World) -> None:
    """Each message was stored once and its answer shown once, in order; nothing is left over."""
    shown = [deed.partition(" | ")[2] for deed in world.deeds]
    assert sorted(shown) == [f"you said {n}" for n in range(2)]
    messages = store.messages.list(limit=200).items
    assert sorted(each.text for each in messages if each.direction == "in") == [
        f"say {n}" for n in range(2)
    ]
    assert {each.state for each in messages} == {"routed", "sent"}
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

    def check_let_in(store: Corral, world: World) -> None:
        (sender,) = store.senders.list().items
        assert sender.state == "known"
        messages = store.messages.list().items
        assert {message.state for message in messages} == {"routed"}
        session = messages[0].routes[0].session_id
        letters = store.mail.list(mailbox=f"session:{session}").items
        assert [letter.body["text"] for letter in letters] == [f"say {n}" for n in range(2)]

    crash_at_every_commit(
        fresh_url, tmp_path, Scenario(prepare=prepare, run=run, recover=run, check=check_let_in)
    )
