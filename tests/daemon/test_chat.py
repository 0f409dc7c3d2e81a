"""The chat loop with real threads: a broken adapter holds up nobody, and health is kept."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

import corral
from corral.adapters import sandbox
from corral.adapters.channels.contract import (
    EventBatch,
    IncomingEvent,
    OutgoingMessage,
    SendOutcome,
)
from corral.api import Corral
from corral.daemon.chat import ChatLoop
from corral.kernel.errors import IllegalMove
from tests.support import fake_channels
from tests.support.fake_channels import FakeAdapter, Platform, register_adapters

# Threads and processes; the queries are tested on both engines in tests/domain.
pytestmark = pytest.mark.parametrize("engine", ["sqlite"])


class Shared(FakeAdapter):
    """Its platform is the test's."""

    kind = "shared"
    place = Platform()
    gate = threading.Event()

    def __init__(self, *given: object) -> None:
        super().__init__(platform=self.place)

    def receive(self, cursor: str | None, seconds: float) -> EventBatch:
        time.sleep(0.01)
        return super().receive(cursor, seconds)


class Broken(Shared):
    kind = "broken"

    def receive(self, cursor: str | None, seconds: float) -> EventBatch:
        raise RuntimeError("it cannot read")

    def send(self, message: OutgoingMessage) -> SendOutcome:
        self.gate.wait(300)
        raise RuntimeError("it cannot write")


def eventually(store: Corral, loop: ChatLoop, found: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not found():
        assert time.monotonic() < deadline, "not in time"
        loop.run_once(store)
        time.sleep(0.02)


def test_hanging_or_broken_channel_does_not_block_others(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Shared.place, Shared.gate = Platform(), threading.Event()
    for each in (Shared, Broken):
        monkeypatch.setitem(fake_channels.KINDS, each.kind, each)
    register_adapters(monkeypatch)
    loop = ChatLoop()
    with corral.open(url) as store:
        store.agents.create("ada", command="cat")
        for name in ("broken", "shared"):
            store.channels.add(name, name, policy="public")
        store.wirings.add("ada", channel="shared")
        stuck = store.places.register("broken", "room")
        store.messages.send_as_system(stuck.id, "this hangs")
        Shared.place.pending.append(
            IncomingEvent(event_id="e1", place="room", sender="ann", text="hello", direct=True)
        )
        eventually(store, loop, lambda: store.messages.list().items[0].text == "hello")
        place = store.places.get("shared/room")
        store.messages.send_as_system(place.id, "this arrives")
        eventually(store, loop, lambda: "this arrives" in Shared.place.words())
        eventually(store, loop, lambda: store.channels.get("broken").last_error)
        assert "it cannot read" in (store.channels.get("broken").last_error or "")
        assert store.channels.get("shared").last_error is None
        Shared.gate.set()
        for name in ("broken", "shared"):
            store.channels.remove(name)
        loop.run_once(store)
        eventually(store, loop, lambda: not any(" sends" in t.name for t in threading.enumerate()))
        for run in store.runs.list(live=True).items:
            with suppress(IllegalMove):  # it has ended by itself meanwhile
                store.runs.stop(run.id)
            store.runs.wait(run.id, timeout_ms=60_000)


def test_sandboxed_agent_is_woken_and_answers(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if sandbox.probe_sandboxes(network=False).kind is sandbox.SandboxKind.NONE:
        pytest.skip(f"no sandbox works here: {sandbox.probe_sandboxes(network=False).why_not}")
    Shared.place = Platform()
    monkeypatch.setitem(fake_channels.KINDS, Shared.kind, Shared)
    register_adapters(monkeypatch)
    loop = ChatLoop()
    with corral.open(url) as store:
        store.agents.create("ada", command="cat")
        store.settings.set("chat.sandbox", "auto", scope="agent:ada")
        store.channels.add("shared", "shared", policy="public")
        store.wirings.add("ada", channel="shared")
        Shared.place.pending.append(
            IncomingEvent(event_id="e1", place="room", sender="ann", text="hello box", direct=True)
        )
        eventually(store, loop, lambda: Shared.place.words() == ["hello box"])
        (run,) = store.runs.list().items
        assert store.runs.get_launch(run.id).has_session_sandbox
        eventually(store, loop, lambda: store.mail.list().items == [])
        store.channels.remove("shared")
        loop.run_once(store)
        eventually(store, loop, lambda: not any("shared " in t.name for t in threading.enumerate()))
