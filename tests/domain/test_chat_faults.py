"""What platforms and adapters do wrong, all at once: nothing is lost, and it is said."""

import threading
import time

import pytest

import corral
from corral.adapters.channels.contract import (
    EventBatch,
    IncomingEvent,
    OutgoingMessage,
    SendOutcome,
)
from corral.api import Corral
from corral.daemon import chat as chat_loop
from corral.daemon.chat import ChatLoop
from tests.support import fake_channels
from tests.support.fake_channels import Chat, FakeAdapter, Platform, register_adapters
from tests.support.home import wait_until
from tests.support.store import rows
from tests.support.threads import SECONDS

pytestmark = pytest.mark.usefixtures("fake_channels")

MANY = 5_000


@pytest.mark.timeout(300)
def test_burst_of_five_thousand_messages_is_stored_once_in_order(store: Corral) -> None:
    store.agents.create("ada", provider="scripted")
    chat = Chat(store)
    store.wirings.add("ada", channel="fake", trigger="mention")
    said = [
        IncomingEvent(event_id=f"e{n}", place=f"room{n % 20}", sender="ann", text=f"{n}")
        for n in range(MANY)
    ]
    # The platform tells every tenth twice, the second time much later.
    chat.platform.pending = said + said[::10]
    store.internal.chat.poll("fake", chat.adapter)
    found = rows(store, "SELECT place_id, text, state FROM messages ORDER BY seq")
    assert [int(text) for _, text, _ in found] == list(range(MANY))
    assert {state for _, _, state in found} == {"ignored"}
    assert len({place for place, _, _ in found}) == 20
    assert store.internal.chat.poll("fake", chat.adapter) == []
    chat.says("@ada are you there?", place="room1", event="later")
    assert len(store.internal.chat.start_turns()) == 1


class Shared(FakeAdapter):
    kind = "shared"
    place = Platform()

    def __init__(self, *given: object) -> None:
        super().__init__(platform=self.place)

    def receive(self, cursor: str | None, seconds: float) -> EventBatch:
        time.sleep(0.01)
        return super().receive(cursor, seconds)


class Hanging(Shared):
    """It never comes back, whatever it is asked, until the test lets it go."""

    kind = "hanging"
    gate = threading.Event()

    def receive(self, cursor: str | None, seconds: float) -> EventBatch:
        self.gate.wait(SECONDS)
        raise RuntimeError("it was let go")

    def send(self, message: OutgoingMessage) -> SendOutcome:
        self.gate.wait(SECONDS)
        raise RuntimeError("it was let go")


class Throwing(Shared):
    """It throws whatever it is asked, and cannot even be started."""

    kind = "throwing"

    def start(self) -> None:
        raise KeyError("something of its own")


def threads_of(*channels: str) -> list[str]:
    names = (thread.name for thread in threading.enumerate())
    return [name for name in names if name.split()[0] in channels]


def test_hanging_or_failing_adapter_does_not_block_other_channels(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Shared.place, Hanging.gate = Platform(), threading.Event()
    for each in (Shared, Hanging, Throwing):
        monkeypatch.setitem(fake_channels.KINDS, each.kind, each)
    register_adapters(monkeypatch)
    monkeypatch.setattr(chat_loop, "RETRY_SECONDS", (0.05, 0.1))
    loop = ChatLoop()
    with corral.open(url) as store:
        for kind in ("hanging", "throwing", "shared"):
            store.channels.add(kind, kind, policy="public")
            store.messages.send_as_system(store.places.register(kind, "room").id, f"to {kind}")
        Shared.place.pending.append(IncomingEvent(event_id="e", place="x", sender="ann", text="in"))

        def served() -> bool:
            loop.run_once(store)
            heard = [each for each in store.messages.list().items if each.direction == "in"]
            named = store.channels.get("throwing").last_error
            return bool(heard) and "to shared" in Shared.place.words() and named is not None

        wait_until(served, "everybody else is served")
        assert "KeyError" in (store.channels.get("throwing").last_error or "")
        assert store.channels.get("shared").last_error is None
        waits = store.messages.list(place=store.places.get("hanging/room").id).items
        assert [each.state for each in waits] == ["queued"], "neither lost nor said to be sent"
        Hanging.gate.set()
        for kind in ("hanging", "throwing", "shared"):
            store.channels.remove(kind)
        loop.run_once(store)
        wait_until(lambda: not threads_of("hanging", "throwing", "shared"), "their threads end")


def test_channel_with_a_dead_thread_is_reopened(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Shared):
        """Asked for news, it takes its time: it does not notice that the loop was silent."""

        kind = "slow"
        gate = threading.Event()

        def receive(self, cursor: str | None, seconds: float) -> EventBatch:
            self.gate.wait(SECONDS)
            return super().receive(cursor, seconds)

    Shared.place = Platform()
    monkeypatch.setitem(fake_channels.KINDS, Slow.kind, Slow)
    register_adapters(monkeypatch)
    loop = ChatLoop()
    with corral.open(url) as store:
        store.channels.add("slow", "slow", policy="public")
        loop.run_once(store)
        (line,) = loop._workers.values()
        (sends,) = [thread for thread in line._threads if thread.name.endswith("sends")]
        line._woken_at -= 2 * chat_loop.ORPHAN_SECONDS
        line._due.set()
        sends.join(SECONDS)
        assert not sends.is_alive()
        store.messages.send_as_system(store.places.register("slow", "room").id, "after the silence")

        def sent() -> bool:
            loop.run_once(store)
            return "after the silence" in Shared.place.words()

        wait_until(sent, "it is sent")
        Slow.gate.set()
        store.channels.remove("slow")
        loop.run_once(store)
        wait_until(lambda: not threads_of("slow"), "its threads end")
