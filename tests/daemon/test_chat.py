"""The chat loop with real threads: a broken adapter does not block others, and is reported."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

import corral
from corral.adapters.channels.contract import (
    EventBatch,
    IncomingEvent,
    OutgoingMessage,
    SendOutcome,
)
from corral.adapters.sandbox import sandbox
from corral.api import Corral
from corral.daemon.chat import ChatLoop
from corral.kernel.errors import IllegalMove
from tests.support import fake_channels
from tests.support.fake_channels import FakeAdapter, Platform, register_adapters

# Threads and processes; the queries are tested on both engines in tests/domain.
pytestmark = pytest.mark.parametrize("engine", ["sqlite"])


class SharedAdapter(FakeAdapter):
    """An adapter whose instances share one fake platform."""

    kind = "shared"
    place = Platform()
    gate = threading.Event()

    def __init__(self, *args: object) -> None:
        super().__init__(platform=self.place)

    def receive(self, cursor: str | None, seconds: float) -> EventBatch:
        time.sleep(0.01)
        return super().receive(cursor, seconds)


class BrokenAdapter(SharedAdapter):
    kind = "broken"

    def receive(self, cursor: str | None, seconds: float) -> EventBatch:
        raise RuntimeError("cannot receive")

    def send(self, message: OutgoingMessage) -> SendOutcome:
        self.gate.wait(300)
        raise RuntimeError("cannot send")


def run_until(store: Corral, loop: ChatLoop, condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "not in time"
        loop.run_once(store)
        time.sleep(0.02)


def test_hanging_or_broken_channel_does_not_block_others(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    SharedAdapter.place, SharedAdapter.gate = Platform(), threading.Event()
    for adapter in (SharedAdapter, BrokenAdapter):
        monkeypatch.setitem(fake_channels.KINDS, adapter.kind, adapter)
    register_adapters(monkeypatch)
    loop = ChatLoop()
    with corral.open(url) as store:
        store.agents.create("ada", command="cat")
        for name in ("broken", "shared"):
            store.channels.add(name, name, policy="public")
        store.wirings.add("ada", channel="shared")
        broken_place = store.places.register("broken", "room")
        store.messages.send_as_system(broken_place.id, "this hangs")
        SharedAdapter.place.pending.append(
            IncomingEvent(event_id="e1", place="room", sender="ann", text="hello", direct=True)
        )
        run_until(store, loop, lambda: store.messages.list().items[0].text == "hello")
        place = store.places.get("shared/room")
        store.messages.send_as_system(place.id, "this arrives")
        run_until(store, loop, lambda: "this arrives" in SharedAdapter.place.words())
        run_until(store, loop, lambda: store.channels.get("broken").last_error)
        assert "cannot receive" in (store.channels.get("broken").last_error or "")
        assert store.channels.get("shared").last_error is None
        SharedAdapter.gate.set()
        for name in ("broken", "shared"):
            store.channels.remove(name)
        loop.run_once(store)
        run_until(store, loop, lambda: not any(" sender" in t.name for t in threading.enumerate()))
        for run in store.runs.list(live=True).items:
            with suppress(IllegalMove):  # it ended in the meantime
                store.runs.stop(run.id)
            store.runs.wait(run.id, timeout_ms=60_000)


def test_sandboxed_agent_is_woken_and_answers(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if sandbox.probe_sandboxes(network=False).kind is sandbox.SandboxKind.NONE:
        pytest.skip(f"no sandbox is available: {sandbox.probe_sandboxes(network=False).why_not}")
    SharedAdapter.place = Platform()
    monkeypatch.setitem(fake_channels.KINDS, SharedAdapter.kind, SharedAdapter)
    register_adapters(monkeypatch)
    loop = ChatLoop()
    with corral.open(url) as store:
        store.agents.create("ada", command="cat")
        store.settings.set("chat.sandbox", "auto", scope="agent:ada")
        store.channels.add("shared", "shared", policy="public")
        store.wirings.add("ada", channel="shared")
        SharedAdapter.place.pending.append(
            IncomingEvent(
                event_id="e1", place="room", sender="ann", text="hello sandbox", direct=True
            )
        )
        run_until(store, loop, lambda: SharedAdapter.place.words() == ["hello sandbox"])
        (run,) = store.runs.list().items
        assert store.runs.get_launch(run.id).has_session_sandbox
        run_until(store, loop, lambda: store.mail.list().items == [])
        store.channels.remove("shared")
        loop.run_once(store)
        run_until(store, loop, lambda: not any("shared " in t.name for t in threading.enumerate()))
