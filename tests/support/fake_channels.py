"""A fake chat platform that fails, delays, duplicates and reorders messages.

A `Platform` has the visible messages and the faults to inject; a `FakeAdapter` is its adapter.
"""

from collections.abc import Mapping
from itertools import count
from typing import Any

from corral.adapters.channels import registry
from corral.adapters.channels.contract import (
    BaseAdapter,
    ChannelTraits,
    EventBatch,
    FailedMessage,
    IncomingEvent,
    MessageKind,
    OutgoingMessage,
    PostedMessage,
    RejectedMessage,
    SendOutcome,
    SentMessage,
    UnconfirmedMessage,
)
from corral.api import Corral
from corral.domain.chat.model import Channel, Message
from corral.domain.runs.model import Run
from corral.kernel.exit_status import ExitStatus
from tests.support.run_factories import held


class Platform:
    """The visible messages, and the faults to inject."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, str | None, str]] = []
        """Place, thread and text of every visible message, in the order of arrival."""
        self.ids: list[str] = []
        self.tries: list[str] = []
        self.taken: list[OutgoingMessage] = []
        self.edits: dict[str, str] = {}
        self.by_key: dict[str, str] = {}
        self.outcomes: list[str] = []
        """The outcomes of the next sends, then `ok`: ok, fail, slow down, refuse, throw, lost
        (delivered, but unconfirmed) and away (not delivered, and unconfirmed)."""
        self.pending: list[IncomingEvent] = []
        self._numbers = count(1)

    def words(self, place: str = "room") -> list[str]:
        """Return the visible texts of a place, first message first."""
        return [
            self.edits.get(id, text)
            for id, (shown_place, _, text) in zip(self.ids, self.shown, strict=True)
            if shown_place == place
        ]

    def take(self, message: OutgoingMessage, *, once: bool) -> str:
        if once and message.key in self.by_key:
            return self.by_key[message.key]
        id = f"m{next(self._numbers)}"
        self.taken.append(message)
        self.by_key[message.key] = id
        if message.kind is MessageKind.EDIT and message.reply_to:
            self.edits[message.reply_to] = message.text
            return id
        self.ids.append(id)
        self.shown.append((message.place, message.thread, message.text))
        return id


class FakeAdapter(BaseAdapter):
    """Deduplicates messages by key, like Matrix, and supports buttons."""

    kind = "fake"
    traits = ChannelTraits(
        max_text=200,
        threads=True,
        edits=True,
        reactions=True,
        buttons=True,
        files=True,
        idempotent=True,
    )

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        secrets: Mapping[str, str] | None = None,
        platform: Platform | None = None,
    ) -> None:
        super().__init__(config or {}, secrets or {})
        self.platform = platform or Platform()

    def receive(self, cursor: str | None, seconds: float) -> EventBatch:
        position = int(cursor or 0)
        return EventBatch(self.platform.pending[position:], str(len(self.platform.pending)))

    def send(self, message: OutgoingMessage) -> SendOutcome:
        platform = self.platform
        platform.tries.append(message.text)
        how = platform.outcomes.pop(0) if platform.outcomes else "ok"
        if how == "fail":
            return FailedMessage("the platform is down")
        if how == "slow down":
            return FailedMessage("too many", retry_ms=600_000)
        if how == "refuse":
            return RejectedMessage("the message is not allowed")
        if how == "throw":
            raise RuntimeError("the adapter is broken")
        if how == "away":
            return UnconfirmedMessage("the connection was lost")
        id = platform.take(message, once=self.traits.idempotent)
        return UnconfirmedMessage("the connection was lost") if how == "lost" else SentMessage([id])


class ForgetfulAdapter(FakeAdapter):
    """Does not deduplicate, and reports the history of a place."""

    kind = "forgetful"
    traits = ChannelTraits(max_text=200, threads=True, edits=True, history=True)

    def list_posted(self, message: OutgoingMessage) -> list[PostedMessage]:
        return [
            PostedMessage(id, text, thread, message.begun_at)
            for id, (place, thread, text) in zip(
                self.platform.ids, self.platform.shown, strict=True
            )
            if place == message.place
        ]


class SilentAdapter(FakeAdapter):
    """Does not deduplicate, and reports no history."""

    kind = "silent"
    traits = ChannelTraits(max_text=200)


KINDS = {adapter.kind: adapter for adapter in (FakeAdapter, ForgetfulAdapter, SilentAdapter)}


class _Entry:
    def __init__(self, adapter: type[FakeAdapter]) -> None:
        self.load = lambda: adapter


def register_adapters(monkeypatch: Any) -> None:
    """Register these channel kinds as if a package had provided them."""
    foreign = {kind: _Entry(adapter) for kind, adapter in KINDS.items()}
    monkeypatch.setattr(registry, "_list_entry_points", lambda: foreign)


class Chat:
    """A channel of a store, the platform behind it, and its users."""

    def __init__(self, store: Corral, kind: str = "fake", **options: Any) -> None:
        self.store = store
        self.platform = Platform()
        self.adapter = KINDS[kind](platform=self.platform)
        self._numbers = count(1)
        options.setdefault("policy", "public")
        self.channel: Channel = store.channels.add(kind, kind, **options)

    def says(self, text: str, **fields: Any) -> Message:
        """Receive a message from a user."""
        event = fields.pop("event", None) or f"e{next(self._numbers)}"
        fields = {"place": "room", "sender": "ann", "message_id": f"p-{event}"} | fields
        return self.store.messages.receive(
            self.channel.id, IncomingEvent(event_id=event, text=text, **fields)
        )

    def deliver(self, owner: str = "d1") -> list[str]:
        """Deliver once and return the states of the sent messages."""
        result = self.store.internal.chat.deliver(self.channel.id, self.adapter, owner=owner)
        return [message.state for message in result]

    def place(self, name: str = "room") -> str:
        return self.store.places.get(f"{self.channel.name}/{name}").id


class Runner:
    """Starts and ends queued runs without a process."""

    def __init__(self, store: Corral) -> None:
        self._store = store
        self._numbers = count(1)

    def begin(self) -> Run:
        """Start the oldest queued run."""
        queued = self._store.runs.list(state="queued", limit=200).items
        acquired = self._store.internal.runs.acquire(queued[-1].id, held(next(self._numbers)))
        return self._store.internal.runs.launch(acquired)

    def end(self, run: Run, text: str | None = None) -> Run:
        """Finish a run successfully with an output."""
        if text is not None and run.session_id is not None:
            self._store.sessions.append(run.session_id, "assistant", text, run=run.id)
        return self._store.internal.runs.record_end(run, ExitStatus(exit_code=0))

    def die(self, run: Run) -> Run:
        """Crash a run."""
        return self._store.internal.runs.record_end(run, ExitStatus(signal=9))

    def fail(self, run: Run) -> Run:
        return self._store.internal.runs.record_end(run, ExitStatus(exit_code=1))

    def prompt(self, run: Run) -> str | None:
        return self._store.runs.get_launch(run.id).prompt
