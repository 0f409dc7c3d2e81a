"""The `ChannelAdapter` protocol and the structs that adapters exchange with their callers.

The package docstring describes the delivery guarantees and how to add a platform.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, Protocol

import msgspec


class MessageKind(StrEnum):
    """The kind of an event or message."""

    TEXT = "text"  # a text message; incoming ones may have attachments
    FILE = "file"  # an outgoing file
    EDIT = "edit"  # replaces the text of an earlier message
    REACTION = "reaction"  # an emoji on a message
    QUESTION = "question"  # a card with a question
    ANSWER = "answer"  # a choice on a question card


class LengthUnit(StrEnum):
    """The unit in which a platform limits the length of a text."""

    CHARACTERS = "characters"
    UTF16_UNITS = "utf16_units"  # UTF-16 code units: a character outside the BMP counts twice
    BYTES = "bytes"  # UTF-8 bytes


class StoredFile(msgspec.Struct, frozen=True):
    """An attachment, stored in a private file on this machine."""

    name: str
    path: str | None
    """None: the file was not stored; see `reason`."""
    bytes: int
    type: str | None = None
    reason: str | None = None
    sha256: str | None = None
    """Set for outgoing files: the delivered content must match the sent content."""


class RawAttachment(msgspec.Struct, frozen=True):
    """An attachment as received from the platform, before it is stored."""

    name: str
    data: bytes | None = None
    bytes: int = 0
    type: str | None = None
    reason: str | None = None
    """Why the download failed."""


class IncomingEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event received from a platform."""

    event_id: str
    """Deduplication key: events with the same id are one event."""
    place: str
    """The platform's id of the chat."""
    place_name: str | None = None
    direct: bool | None = None
    """Whether the chat is a direct chat with one person; None: unknown."""
    thread: str | None = None
    message_id: str | None = None
    """The platform's id of the message, the target of replies, edits and reactions."""
    sender: str
    """The platform's id of the account. Unlike a display name, it cannot be spoofed."""
    sender_name: str | None = None
    kind: MessageKind = MessageKind.TEXT
    text: str = ""
    mentioned: bool = False
    """Whether the message mentions our account."""
    reply_to: str | None = None
    attached: list[RawAttachment] = []
    files: list[StoredFile] = []
    """The attachments, once they are stored in private files."""
    question: str | None = None
    """For an answer: the id of the question."""
    at: int | None = None


class OutgoingMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message to send to a platform."""

    key: str
    """Idempotency key: a retry has the same key."""
    place: str
    thread: str | None = None
    kind: MessageKind = MessageKind.TEXT
    text: str = ""
    reply_to: str | None = None
    """The platform's id of the message to reply to, edit or react to."""
    question: str | None = None
    options: list[str] = []
    file: StoredFile | None = None
    begun_at: int = 0
    """Time of the first attempt: a search of the history can start here."""


class SentMessage(msgspec.Struct, frozen=True, tag="Sent"):
    """The platform accepted the message under these ids."""

    ids: list[str]


class RejectedMessage(msgspec.Struct, frozen=True, tag="Rejected"):
    """The platform rejected the message permanently. Do not retry."""

    reason: str


class UnsupportedMessage(msgspec.Struct, frozen=True, tag="Unsupported"):
    """The platform does not support this kind of message. Do not retry."""

    reason: str


class FailedMessage(msgspec.Struct, frozen=True, tag="Failed"):
    """The message certainly did not arrive. Retry, after `retry_ms` if the platform states it."""

    reason: str
    retry_ms: int | None = None


class UnconfirmedMessage(msgspec.Struct, frozen=True, tag="Unconfirmed"):
    """The message may have arrived: the connection broke after the request was sent."""

    reason: str


SendOutcome = (
    SentMessage | RejectedMessage | UnsupportedMessage | FailedMessage | UnconfirmedMessage
)


def treat_unconfirmed_as_failed(outcome: SendOutcome) -> SendOutcome:
    """Return the outcome of a step without visible effect, such as an upload.

    Repeating such a step is harmless, so an unconfirmed step counts as failed.
    """
    return FailedMessage(outcome.reason) if isinstance(outcome, UnconfirmedMessage) else outcome


class EventBatch(msgspec.Struct, frozen=True):
    """Received events, and the cursor to continue from once all of them are stored."""

    events: list[IncomingEvent]
    cursor: str | None = None
    unreadable: dict[str, str] = {}
    """Events that cannot be read: event id -> reason."""


class AcceptedRequest(msgspec.Struct, frozen=True):
    """The events of a webhook request, and the response to send once they are stored."""

    events: list[IncomingEvent]
    answer: bytes = b"{}"
    content_type: str = "application/json"


class RequestRejected(Exception):
    """The webhook request is invalid or not authentic; the message states why."""


class PostedMessage(msgspec.Struct, frozen=True):
    """A message of our own account in the history of a chat."""

    id: str
    text: str
    thread: str | None
    at: int
    key: str | None = None
    """The idempotency key of the message, if the platform stores it."""


class ChannelTraits(msgspec.Struct, frozen=True):
    """The capabilities of a platform."""

    max_text: int = 4_000
    length_unit: LengthUnit = LengthUnit.CHARACTERS
    """The unit of `max_text`."""
    threads: bool = False
    edits: bool = False
    reactions: bool = False
    typing: bool = False
    buttons: bool = False
    files: bool = False
    """Whether files can be sent. Attachments of incoming messages are independent of it."""
    idempotent: bool = False
    """Whether the platform deduplicates by key, so that an unconfirmed message can be retried."""
    key_retention_ms: int | None = None
    """How long the platform is guaranteed to remember a key; None: forever. A later retry searches
    the history first."""
    history: bool = False
    """Whether recent messages of our account can be listed."""
    uses_webhook: bool = False
    """Whether the platform calls a webhook (`accept`); otherwise it is polled (`receive`)."""
    attended: bool = False
    """Whether the adapter runs in an interactive process of a user instead of the daemon."""


class ChannelAdapter(Protocol):
    """The connection of one channel to its platform."""

    kind: ClassVar[str]
    traits: ClassVar[ChannelTraits]
    config: ClassVar[Mapping[str, bool]]
    """Configuration key -> whether it is required."""
    secrets: ClassVar[Mapping[str, bool]]
    """Secret name -> whether it is required."""

    def __init__(self, config: Mapping[str, Any], secrets: Mapping[str, str]) -> None: ...

    def start(self) -> None:
        """Connect. Raises OSError or ValueError with the reason."""
        ...

    def stop(self) -> None:
        """Close connections. A blocked `receive` returns soon."""
        ...

    def check_health(self) -> str | None:
        """Return why the platform is unavailable; None if it is available."""
        ...

    def receive(self, cursor: str | None, seconds: float) -> EventBatch:
        """Return the events since the cursor; wait for some up to `seconds`."""
        ...

    def accept(self, headers: Mapping[str, str], body: bytes, now: int) -> AcceptedRequest:
        """Return the events of a webhook request. Raises RequestRejected."""
        ...

    def send(self, message: OutgoingMessage) -> SendOutcome:
        """Send a message, an edit, a reaction or a card."""
        ...

    def show_typing(self, place: str, thread: str | None) -> None:
        """Show a typing indicator. Failures are ignored."""
        ...

    def list_posted(self, message: OutgoingMessage) -> list[PostedMessage]:
        """Return the messages of our account in the chat since the first attempt."""
        ...


class BaseAdapter:
    """Base class of adapters: every operation has a default without effect."""

    kind: ClassVar[str] = ""
    traits: ClassVar[ChannelTraits] = ChannelTraits()
    config: ClassVar[Mapping[str, bool]] = {}
    secrets: ClassVar[Mapping[str, bool]] = {}

    def __init__(self, config: Mapping[str, Any], secrets: Mapping[str, str]) -> None:
        self._config = config
        self._secrets = secrets

    def start(self) -> None:
        """Do nothing by default."""

    def stop(self) -> None:
        """Do nothing by default."""

    def check_health(self) -> str | None:
        return None

    def receive(self, cursor: str | None, seconds: float) -> EventBatch:
        return EventBatch([], cursor)

    def accept(self, headers: Mapping[str, str], body: bytes, now: int) -> AcceptedRequest:
        raise RequestRejected(f"channels of kind {self.kind} have no webhook")

    def send(self, message: OutgoingMessage) -> SendOutcome:
        return UnsupportedMessage(f"channels of kind {self.kind} cannot send")

    def show_typing(self, place: str, thread: str | None) -> None:
        """Do nothing by default."""

    def list_posted(self, message: OutgoingMessage) -> list[PostedMessage]:
        return []


# Errors of reading an event that does not have the documented format. A member of a chat can send
# malformed events with a custom client; they must not block the events of others.
MALFORMED_ERRORS = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)
_MAY_BE_NONE = {"place_name", "thread", "message_id", "sender_name", "reply_to", "question"}
_TEXTS = {"event_id", "place", "sender", "text"} | _MAY_BE_NONE


def validate_event(event: IncomingEvent) -> IncomingEvent:
    """Return the event. Raises TypeError if a text field is not a string."""
    for name in _TEXTS:
        value = getattr(event, name)
        if not isinstance(value, str) and not (value is None and name in _MAY_BE_NONE):
            raise TypeError(f"{name} is not a string")
    return event
