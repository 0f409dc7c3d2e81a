"""A faulty chat platform for tests: it fails, delays, duplicates and reorders messages.

A `Platform` is what people see and survives a process; a `FakeAdapter` is an adapter of it.
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
    """What users see, and the faults to inject."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, str | None, str]] = []
        """Place, thread and words of every message that can be seen, in the order of arrival."""
        self.ids: list[str] = []
        self.tries: list[str] = []
        self.taken: list[OutgoingMessage] = []
        self.edits: dict[str, str] = {}
        self.by_key: dict[str, str] = {}
        self.outcomes: list[str] = []
        """The outcomes of the next sends: ok, fail, refuse, lost (arrived, and not reported),
        away (did not arrive, and not reported), throw; ok when there are no more."""
        self.pending: list[IncomingEvent] = []
        self._numbers = count(1)

    def words(self, place: str = "room") -> list[str]:
        """Return the visible texts of a place, first message first."""
        return [
            self.edits.get(id, text)
            for id, (where, _, text) in zip(self.ids, self.shown, strict=True)
            if where == place
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
    """Deduplicates by key, like Matrix, and has buttons."""

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
        place = int(cursor or 0)
        return EventBatch(self.platform.pending[place:], str(len(self.platform.pending)))

    def send(self, message: OutgoingMessage) -> SendOutcome:
        platform = self.platform
        platform.tries.append(message.text)
        how = platform.outcomes.pop(0) if platform.outcomes else "ok"
        if how == "fail":
            return FailedMessage("it is down")
        if how == "slow down":
            return FailedMessage("too many", retry_ms=600_000)
        if how == "refuse":
            return RejectedMessage("it may not be said")
        if how == "throw":
            raise RuntimeError("the adapter is broken")
        if how == "away":
            return UnconfirmedMessage("the line broke")
        id = platform.take(message, once=self.traits.idempotent)
        return UnconfirmedMessage("the line broke") if how == "lost" else SentMessage([id])


class ForgetfulAdapter(FakeAdapter):
    """Shows a message as often as it is sent, and can report its history."""

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
    """Shows a message as often as it is sent, and reports no history."""

    kind = "silent"
    traits = ChannelTraits(max_text=200)


KINDS = {each.kind: each for each in (FakeAdapter, ForgetfulAdapter, SilentAdapter)}


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
        return [each.state for each in result]

    def place(self, name: str = "room") -> str:
        return self.store.places.get(f"{self.channel.name}/{name}").id


class Runner:
    """Runs queued runs without a process, as the test directs."""

    def __init__(self, store: Corral) -> None:
        self._store = store
        self._numbers = count(1)

    def begin(self) -> Run:
        """Start the oldest queued run."""
        queued = self._store.runs.list(state="queued", limit=200).items
        taken = self._store.internal.runs.acquire(queued[-1].id, held(next(self._numbers)))
        return self._store.internal.runs.launch(taken)

    def end(self, run: Run, text: str | None = None) -> Run:
        """Finish a run successfully with an output."""
        if text is not None and run.session_id is not None:
            self._store.sessions.append(run.session_id, "assistant", text, run=run.id)
        return self._store.internal.runs.end(run, ExitStatus(exit_code=0))

    def die(self, run: Run) -> Run:
        """Crash a run."""
        return self._store.internal.runs.end(run, ExitStatus(signal=9))

    def fail(self, run: Run) -> Run:
        return self._store.internal.runs.end(run, ExitStatus(exit_code=1))

    def prompt(self, run: Run) -> str | None:
        return self._store.runs.get_launch(run.id).prompt
