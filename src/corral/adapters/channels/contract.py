"""What an adapter of a chat platform does, and the words in which it speaks.

An adapter is made from a channel's configuration and secrets. It is asked to receive and to send;
it never calls back, keeps no queue, and decides nothing: what came in is stored before it is asked
for more, and what goes out is repeated by whoever asked, with the same key. It says how a sending
went, in one of five words; what it raises instead counts as not knowing.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, ClassVar, Protocol

import msgspec


class Kind(StrEnum):
    TEXT = "text"  # words; what comes in perhaps with files
    FILE = "file"  # a file that goes out, under its name
    EDIT = "edit"  # other words in place of those of an earlier message
    REACTION = "reaction"  # a sign on a message
    QUESTION = "question"  # a card with a question
    ANSWER = "answer"  # a choice on such a card


class Count(StrEnum):
    """What a platform counts when it says how long a text may be."""

    CHARACTERS = "characters"
    UNITS = "units"  # of UTF-16: a sign beyond the basic plane counts twice
    BYTES = "bytes"  # of UTF-8


class File(msgspec.Struct, frozen=True):
    """Something attached to a message, in a private file of this machine."""

    name: str
    path: str | None
    """None: it was not taken; `reason` says why."""
    bytes: int
    type: str | None = None
    reason: str | None = None
    sha256: str | None = None
    """Of what goes out: so that what was sent is what is delivered."""


class Attached(msgspec.Struct, frozen=True):
    """Something attached to a message, as the platform has it."""

    name: str
    data: bytes | None = None
    bytes: int = 0
    type: str | None = None
    reason: str | None = None
    """Why it could not be fetched."""


class Incoming(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a platform."""

    event_id: str
    """The same id is the same event, however often it comes."""
    place: str
    """The platform's id of the chat."""
    place_name: str | None = None
    direct: bool | None = None
    """Whether one person talks there with us; None: the platform does not say."""
    thread: str | None = None
    message_id: str | None = None
    """The platform's id of the message, by which it is answered, changed or signed."""
    sender: str
    """The platform's id of the account: one that nobody can choose to be another's."""
    sender_name: str | None = None
    kind: Kind = Kind.TEXT
    text: str = ""
    mentioned: bool = False
    """Whether the platform says that our account was addressed."""
    reply_to: str | None = None
    attached: list[Attached] = []
    files: list[File] = []
    """What was attached, once it is in private files."""
    question: str | None = None
    """Of an answer: the question that the button belongs to."""
    at: int | None = None


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """A message for a platform."""

    key: str
    """The same key is the same message, however often it is asked for."""
    place: str
    thread: str | None = None
    kind: Kind = Kind.TEXT
    text: str = ""
    reply_to: str | None = None
    """The platform's id of the message that is answered, changed or signed."""
    question: str | None = None
    options: list[str] = []
    file: File | None = None
    begun_at: int = 0
    """When it was first tried: nothing of it can be older."""


class Sent(msgspec.Struct, frozen=True, tag=True):
    """The platform has it, under these ids."""

    ids: list[str]


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The platform will never take it."""

    reason: str


class Unsupported(msgspec.Struct, frozen=True, tag=True):
    """The platform has no such thing."""

    reason: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """It is certain that it did not arrive; it may be tried again, `retry_ms` later if told."""

    reason: str
    retry_ms: int | None = None


class Unknown(msgspec.Struct, frozen=True, tag=True):
    """Nobody can say whether it arrived."""

    reason: str


Outcome = Sent | Refused | Unsupported | Failed | Unknown


def unseen(outcome: Outcome) -> Outcome:
    """What an outcome means of a step that nobody can see: not knowing is not having done it."""
    return Failed(outcome.reason) if isinstance(outcome, Unknown) else outcome


class Batch(msgspec.Struct, frozen=True):
    """What was received, and from where to go on when all of it is stored."""

    events: list[Incoming]
    cursor: str | None = None
    unreadable: dict[str, str] = {}
    """Events that cannot be told, by their ids, and why."""


class Accepted(msgspec.Struct, frozen=True):
    """What a request of a platform brought, and how it is answered once that is stored."""

    events: list[Incoming]
    answer: bytes = b"{}"
    content_type: str = "application/json"


class Unwelcome(Exception):
    """A request that does not come from the platform; the text says why."""


class Seen(msgspec.Struct, frozen=True):
    """A message of our own account that the platform shows."""

    id: str
    text: str
    thread: str | None
    at: int
    key: str | None = None
    """The key that it was sent with, where the platform keeps such a thing."""


class Traits(msgspec.Struct, frozen=True):
    """What a platform can do."""

    max_text: int = 4_000
    counts: Count = Count.CHARACTERS
    """In what `max_text` is counted."""
    threads: bool = False
    edits: bool = False
    reactions: bool = False
    typing: bool = False
    buttons: bool = False
    files: bool = False
    """Whether it takes files; one that came is fetched by whoever can."""
    idempotent: bool = False
    """Whether a repeated key is shown once, so that it may be repeated when nobody knows."""
    remembers_ms: int | None = None
    """How long a key is remembered for certain; later its history is asked first. None: for ever.
    """
    history: bool = False
    """Whether it can tell what our account said lately."""
    calls: bool = False
    """Whether the platform calls us (`accept`); else it is asked (`receive`)."""
    attended: bool = False
    """Whether it lives where somebody sits in front of it, and not in the daemon."""


class Adapter(Protocol):
    """One connected channel."""

    kind: ClassVar[str]
    traits: ClassVar[Traits]
    config: ClassVar[Mapping[str, bool]]
    """What may stand in its configuration, and whether it must."""
    secrets: ClassVar[Mapping[str, bool]]

    def __init__(self, config: Mapping[str, Any], secrets: Mapping[str, str]) -> None: ...

    def start(self) -> None:
        """Make ready; raises OSError or ValueError with the reason when it cannot be used."""
        ...

    def stop(self) -> None:
        """Let go of connections; what waits in `receive` comes back soon."""
        ...

    def health(self) -> str | None:
        """Why the platform cannot be used now; None: it can."""
        ...

    def receive(self, cursor: str | None, seconds: float) -> Batch:
        """What came since the cursor; waits for it, up to so many seconds."""
        ...

    def accept(self, headers: Mapping[str, str], body: bytes, now: int) -> Accepted:
        """What a request of the platform says; Unwelcome when it is not the platform's."""
        ...

    def send(self, message: Outgoing) -> Outcome:
        """Send a message, an edit, a reaction or a card."""
        ...

    def typing(self, place: str, thread: str | None) -> None:
        """Show that somebody is about to say something; it is no matter when it fails."""
        ...

    def history(self, message: Outgoing) -> list[Seen]:
        """What our account said in the message's place since it was first tried."""
        ...


class Plain:
    """An adapter that can do nothing but what its class adds."""

    kind: ClassVar[str] = ""
    traits: ClassVar[Traits] = Traits()
    config: ClassVar[Mapping[str, bool]] = {}
    secrets: ClassVar[Mapping[str, bool]] = {}

    def __init__(self, config: Mapping[str, Any], secrets: Mapping[str, str]) -> None:
        self._config = config
        self._secrets = secrets

    def start(self) -> None:
        """Nothing has to be made ready."""

    def stop(self) -> None:
        """Nothing has to be let go."""

    def health(self) -> str | None:
        return None

    def receive(self, cursor: str | None, seconds: float) -> Batch:
        return Batch([], cursor)

    def accept(self, headers: Mapping[str, str], body: bytes, now: int) -> Accepted:
        raise Unwelcome(f"a channel of kind {self.kind} is not called")

    def send(self, message: Outgoing) -> Outcome:
        return Unsupported(f"a channel of kind {self.kind} sends nothing")

    def typing(self, place: str, thread: str | None) -> None:
        """Nobody would see it."""

    def history(self, message: Outgoing) -> list[Seen]:
        return []


# What is raised by reading something of another kind than the platform promises. Whoever writes in
# a chat may have made up what their client sends, and must not hold up what others say.
NONSENSE = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)
_MAY_BE_NONE = {"place_name", "thread", "message_id", "sender_name", "reply_to", "question"}
_TEXTS = {"event_id", "place", "sender", "text"} | _MAY_BE_NONE


def sound(event: Incoming) -> Incoming:
    """The same event; TypeError when a part of it that is a text is something else."""
    for name in _TEXTS:
        value = getattr(event, name)
        if not isinstance(value, str) and not (value is None and name in _MAY_BE_NONE):
            raise TypeError(f"its {name} is no text")
    return event


def calls_for(text: str, account: str) -> bool:
    """Whether a text addresses an account by its whole name, and no longer one that begins like
    it."""
    if not account:
        return False
    whole = rf"(?<![\w@]){re.escape(account)}(?![\w-]|[.:]\w)"
    return re.search(whole, text, re.IGNORECASE) is not None


def size_of(text: str, count: Count = Count.CHARACTERS) -> int:
    """How long a text is, as a platform counts."""
    match count:
        case Count.CHARACTERS:
            return len(text)
        case Count.UNITS:
            return len(text.encode("utf-16-le", "surrogatepass")) // 2
        case Count.BYTES:
            return len(text.encode("utf-8", "surrogatepass"))


def fitting(text: str, most: int, count: Count = Count.CHARACTERS) -> str:
    """As much of a text's beginning as a platform takes; no character is cut in two."""
    low, high = 0, min(len(text), most)
    while low < high:
        middle = (low + high + 1) // 2
        if size_of(text[:middle], count) <= most:
            low = middle
        else:
            high = middle - 1
    return text[:low]


def split_text(text: str, most: int, count: Count = Count.CHARACTERS) -> list[str]:
    """A text in pieces that a platform takes, cut at the ends of paragraphs, lines or words."""
    pieces = []
    while size_of(text, count) > most:
        room = len(fitting(text, most, count))
        cut = next(
            (at for end in ("\n\n", "\n", " ") if (at := text.rfind(end, room // 2, room)) > 0),
            room,
        )
        pieces.append(text[:cut].rstrip())
        text = text[cut:].lstrip() if cut < room else text[cut:]
    return [*pieces, text] if text or not pieces else pieces


def pieces_of(text: str, traits: Traits, kind: Kind) -> list[str]:
    """The messages that a text becomes on a platform; only words may be more than one."""
    if kind is Kind.TEXT:
        return split_text(text, traits.max_text, traits.counts)
    return [fitting(text, traits.max_text, traits.counts)]


def card_text(text: str, options: list[str]) -> str:
    """A question for a platform without buttons: its options have numbers."""
    listed = "".join(f"\n{number}. {option}" for number, option in enumerate(options, 1))
    how = "\n\nAnswer with a number." if options else ""
    return f"{text}{listed}{how}"
