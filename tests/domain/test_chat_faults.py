"""Chat under faults: bursts, hanging and failing adapters, dead threads."""

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

MESSAGES = 5_000


@pytest.mark.timeout(300)
def test_burst_of_five_thousand_messages_is_stored_once_in_order(store: Corral) -> None:
    store.agents.create("ada", provider="scripted")
    chat = Chat(store)
    store.wirings.add("ada", channel="fake", trigger="mention")
    events = [
        IncomingEvent(event_id=f"e{n}", place=f"room{n % 20}", sender="ann", text=f"{n}")
        for n in range(MESSAGES)
    ]
    # The platform sends every tenth event again, much later.
    chat.platform.pending = events + events[::10]
    store.internal.chat.poll("fake", chat.adapter)
    stored = rows(store, "SELECT place_id, text, state FROM messages ORDER BY seq")
    assert [int(text) for _, text, _ in stored] == list(range(MESSAGES))
    assert {state for _, _, state in stored} == {"ignored"}
    assert len({place for place, _, _ in stored}) == 20
    assert store.internal.chat.poll("fake", chat.adapter) == []
    chat.says("@ada hello", place="room1", event="later")
    assert len(store.internal.chat.start_turns()) == 1


class SharedAdapter(FakeAdapter):
    kind = "shared"
    shared_platform = Platform()

    def __init__(self, *arguments: object) -> None:
        super().__init__(platform=self.shared_platform)

    def receive(self, cursor: str | None, seconds: float) -> EventBatch:
        time.sleep(0.01)
        return super().receive(cursor, seconds)


class HangingAdapter(SharedAdapter):
    """Blocks in every call until the test releases it."""

    kind = "hanging"
    gate = threading.Event()

    def receive(self, cursor: str | None, seconds: float) -> EventBatch:
        self.gate.wait(SECONDS)
        raise RuntimeError("released by the test")

    def send(self, message: OutgoingMessage) -> SendOutcome:
        self.gate.wait(SECONDS)
        raise RuntimeError("released by the test")


class FailingAdapter(SharedAdapter):
    """Fails in every call, also at its start."""

    kind = "failing"

    def start(self) -> None:
        raise KeyError("adapter error")


def list_threads(*channels: str) -> list[str]:
    names = (thread.name for thread in threading.enumerate())
    return [name for name in names if name.split()[0] in channels]


def test_hanging_or_failing_adapter_does_not_block_other_channels(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    SharedAdapter.shared_platform, HangingAdapter.gate = Platform(), threading.Event()
    for adapter in (SharedAdapter, HangingAdapter, FailingAdapter):
        monkeypatch.setitem(fake_channels.KINDS, adapter.kind, adapter)
    register_adapters(monkeypatch)
    monkeypatch.setattr(chat_loop, "RETRY_SECONDS", (0.05, 0.1))
    loop = ChatLoop()
    with corral.open(url) as store:
        for kind in ("hanging", "failing", "shared"):
            store.channels.add(kind, kind, policy="public")
            store.messages.send_as_system(store.places.register(kind, "room").id, f"to {kind}")
        SharedAdapter.shared_platform.pending.append(
            IncomingEvent(event_id="e", place="x", sender="ann", text="in")
        )

        def is_served() -> bool:
            loop.run_once(store)
            received = [
                message for message in store.messages.list().items if message.direction == "in"
            ]
            error = store.channels.get("failing").last_error
            return (
                bool(received)
                and "to shared" in SharedAdapter.shared_platform.words()
                and error is not None
            )

        wait_until(is_served, "the other channels are served")
        assert "KeyError" in (store.channels.get("failing").last_error or "")
        assert store.channels.get("shared").last_error is None
        queued = store.messages.list(place=store.places.get("hanging/room").id).items
        assert [message.state for message in queued] == ["queued"], (
            "the message is neither lost nor marked sent"
        )
        HangingAdapter.gate.set()
        for kind in ("hanging", "failing", "shared"):
            store.channels.remove(kind)
        loop.run_once(store)
        wait_until(
            lambda: not list_threads("hanging", "failing", "shared"),
            "the threads of the channels end",
        )


def test_channel_with_a_dead_thread_is_reopened(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class SlowAdapter(SharedAdapter):
        """Blocks in `receive`, so that it does not notice that the loop stopped."""

        kind = "slow"
        gate = threading.Event()

        def receive(self, cursor: str | None, seconds: float) -> EventBatch:
            self.gate.wait(SECONDS)
            return super().receive(cursor, seconds)

        def stop(self) -> None:
            stopped.append(self)
            super().stop()

    stopped: list[SlowAdapter] = []
    SharedAdapter.shared_platform = Platform()
    monkeypatch.setitem(fake_channels.KINDS, SlowAdapter.kind, SlowAdapter)
    register_adapters(monkeypatch)
    loop = ChatLoop()
    with corral.open(url) as store:
        store.channels.add("slow", "slow", policy="public")
        loop.run_once(store)
        (worker,) = loop._workers.values()
        (sender,) = [thread for thread in worker._threads if thread.name.endswith("sender")]
        worker._woken_at -= 2 * chat_loop.ORPHAN_SECONDS
        worker._due.set()
        sender.join(SECONDS)
        assert not sender.is_alive()
        assert worker._adapter in stopped, "an orphaned worker closes its connection"
        store.messages.send_as_system(store.places.register("slow", "room").id, "after the restart")

        def is_sent() -> bool:
            loop.run_once(store)
            return "after the restart" in SharedAdapter.shared_platform.words()

        wait_until(is_sent, "the message is sent")
        SlowAdapter.gate.set()
        store.channels.remove("slow")
        loop.run_once(store)
        wait_until(lambda: not list_threads("slow"), "the threads of the channel end")
