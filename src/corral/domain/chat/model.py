"""A channel is a connected chat platform, a place one chat on it, a wiring says which agent hears
which places and when, a destination where an agent may send to.

A message that came in is stored once under the platform's event id, with who heard it and why. One
that goes out has a letter in its place's mailbox (`place:plc_…`), which keeps order, attempts and
errors. What an agent hears is a letter in its session's mailbox.
"""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeVar

import msgspec

from corral.adapters.channels.contract import Kind
from corral.kernel.errors import Invalid
from corral.kernel.states import Moves, move
from corral.kernel.text import MAX_NAME, clean_text


class ChannelState(StrEnum):
    ACTIVE = "active"  # messages go both ways
    REMOVED = "removed"  # nothing comes or goes any more


CHANNEL_MOVES = Moves(
    "channel",
    ChannelState,
    begin="add",
    initial=ChannelState.ACTIVE,
    imports=(ChannelState.REMOVED,),
    verbs={"remove": move(ChannelState.ACTIVE, to=ChannelState.REMOVED)},
)


class Policy(StrEnum):
    """What becomes of what a stranger says."""

    STRICT = "strict"  # turned away
    ASK = "ask"  # held, until an owner has said whether it may speak
    PUBLIC = "public"  # heard like anybody's


class InDoubt(StrEnum):
    """What becomes of a message of which neither we nor the platform know whether it arrived."""

    GIVE_UP = "give_up"  # it is not sent again, and sender and operator are told
    RETRY = "retry"  # it is sent again, and may be seen twice


class Channel(msgspec.Struct, frozen=True):
    id: str
    name: str
    kind: str
    policy: Policy
    in_doubt: InDoubt
    config: dict[str, Any]
    secrets: dict[str, str]
    """References to its secrets, by their names."""
    state: ChannelState
    cursor: str | None
    trouble: str | None
    looked_at: int | None
    created_at: int
    created_by: str
    ended_at: int | None


class PlaceState(StrEnum):
    OPEN = "open"  # what is said there is heard, and agents may answer
    BLOCKED = "blocked"  # nothing is heard and nothing is sent


PLACE_MOVES = Moves(
    "place",
    PlaceState,
    begin="meet",
    initial=PlaceState.OPEN,
    imports=(PlaceState.OPEN, PlaceState.BLOCKED),
    verbs={
        "block": move(PlaceState.OPEN, to=PlaceState.BLOCKED),
        "unblock": move(PlaceState.BLOCKED, to=PlaceState.OPEN),
    },
)


class Place(msgspec.Struct, frozen=True):
    id: str
    channel_id: str
    platform_id: str
    name: str | None
    direct: bool
    policy: Policy | None
    guarded: bool
    state: PlaceState
    created_at: int
    updated_at: int

    @property
    def mailbox(self) -> str:
        """Where the letters are that go there."""
        return f"place:{self.id}"

    @property
    def called(self) -> str:
        return self.name or self.platform_id


class Role(StrEnum):
    OWNER = "owner"  # may do everything
    ADMIN = "admin"  # may let others in, and steer agents in any chat
    MEMBER = "member"  # may talk


class Person(msgspec.Struct, frozen=True):
    name: str
    role: Role
    created_at: int
    updated_at: int

    @property
    def mailbox(self) -> str:
        return f"user:{self.name}"


class SenderState(StrEnum):
    UNKNOWN = "unknown"  # nobody has said who it is
    KNOWN = "known"  # a person is behind it
    BLOCKED = "blocked"  # whatever it says is turned away


SENDER_MOVES = Moves(
    "sender",
    SenderState,
    begin="meet",
    initial=SenderState.UNKNOWN,
    verbs={
        "approve": move(
            SenderState.UNKNOWN, SenderState.KNOWN, SenderState.BLOCKED, to=SenderState.KNOWN
        ),
        "block": move(SenderState.UNKNOWN, SenderState.KNOWN, to=SenderState.BLOCKED),
    },
)


class Sender(msgspec.Struct, frozen=True):
    id: str
    channel_id: str
    platform_id: str
    name: str | None
    person: str | None
    state: SenderState
    created_at: int
    updated_at: int

    @property
    def called(self) -> str:
        """The person that somebody said it is; else what it calls itself, and the platform's own id
        behind that, so that nobody is taken for somebody else."""
        if self.person is not None and self.person != self.id:
            return self.person
        own = self.platform_id
        return own if self.name in (None, own) else f"{self.name} ({own})"


class WiringState(StrEnum):
    ACTIVE = "active"  # the agent hears the chat
    REMOVED = "removed"  # it hears it no more


WIRING_MOVES = Moves(
    "wiring",
    WiringState,
    begin="add",
    initial=WiringState.ACTIVE,
    imports=(WiringState.REMOVED,),
    verbs={
        "change": move(WiringState.ACTIVE, to=WiringState.ACTIVE),
        "remove": move(WiringState.ACTIVE, to=WiringState.REMOVED),
    },
)


class Trigger(StrEnum):
    ALWAYS = "always"  # every message
    MENTION = "mention"  # it is addressed: by its name, or nobody else could be meant
    STICKY = "sticky"  # as mention, and from then on everything in that thread or chat
    PATTERN = "pattern"  # the words fit a pattern
    COMMAND = "command"  # the first word is a command


class Scope(StrEnum):
    ALL = "all"  # everybody who may talk
    KNOWN = "known"  # people that we know


class Unheard(StrEnum):
    DROP = "drop"  # what did not wake the agent is never told it
    KEEP = "keep"  # it is told with the next message that does


class Mode(StrEnum):
    SHARED = "shared"  # one session for the chat
    THREAD = "thread"  # one for each thread of it
    AGENT = "agent"  # one for all chats of the agent


class Wiring(msgspec.Struct, frozen=True):
    id: str
    channel_id: str
    place_id: str | None
    agent_id: str
    trigger: Trigger
    pattern: str | None
    scope: Scope
    unheard: Unheard
    mode: Mode
    priority: int
    project_id: str | None
    state: WiringState
    created_at: int
    created_by: str
    ended_at: int | None


class DestinationState(StrEnum):
    GRANTED = "granted"  # the agent may send there
    REVOKED = "revoked"  # it may not any more


DESTINATION_MOVES = Moves(
    "destination",
    DestinationState,
    begin="grant",
    initial=DestinationState.GRANTED,
    imports=(DestinationState.REVOKED,),
    verbs={
        "revoke": move(DestinationState.GRANTED, to=DestinationState.REVOKED),
        "regrant": move(*DestinationState, to=DestinationState.GRANTED),
    },
)


class Destination(msgspec.Struct, frozen=True):
    id: str
    agent_id: str
    name: str
    place_id: str
    state: DestinationState
    created_at: int
    created_by: str
    ended_at: int | None


class MessageState(StrEnum):
    HELD = "held"  # came in; waits until somebody says whether it may be heard
    HEARD = "heard"  # came in; at least one agent has it, or it was a command or an answer
    UNHEARD = "unheard"  # came in; no agent was to hear it
    REFUSED = "refused"  # came in; whoever said it may not talk here
    QUEUED = "queued"  # goes out; its letter tells how far it is
    SENT = "sent"  # went out; the platform has it
    UNDELIVERED = "undelivered"  # will not go out any more; the reason says why


M = MessageState
MESSAGE_MOVES = Moves(
    "message",
    MessageState,
    begin="hold",
    initial=M.HELD,
    also={
        "turn_away": M.REFUSED,
        # What is clear at once is never held.
        "hear": M.HEARD,
        "ignore": M.UNHEARD,
        "queue": M.QUEUED,
    },
    verbs={
        # It still waits, for another reason.
        "keep": move(M.HELD, to=M.HELD),
        "admit": move(M.HELD, to=M.HEARD),
        "pass_over": move(M.HELD, to=M.UNHEARD),
        "refuse": move(M.HELD, to=M.REFUSED),
        # Also one that was given up: its letter may be sent again by hand.
        "deliver": move(M.QUEUED, M.UNDELIVERED, to=M.SENT),
        "give_up": move(M.QUEUED, to=M.UNDELIVERED),
    },
)


class Route(msgspec.Struct, frozen=True):
    """What one wiring made of a message."""

    wiring_id: str
    agent_id: str
    heard: bool
    reason: str
    session_id: str | None = None
    letter_id: str | None = None
    """The letter in that session's mailbox whose key is the message; found, not stored."""


class Message(msgspec.Struct, frozen=True):
    id: str
    channel_id: str
    place_id: str
    thread: str | None
    direction: str
    kind: Kind
    event_id: str
    platform_ids: list[str]
    reply_to: str | None
    sender_id: str | None
    agent_id: str | None
    run_id: str | None
    text: str
    data: Any
    state: MessageState
    reason: str | None
    routes: list[Route]
    letter_id: str | None
    at: int
    created_at: int
    ended_at: int | None


def files_of(message: Message) -> list[dict[str, Any]]:
    """What was attached to a message, or is sent by it: names, and why one was not taken."""
    data = message.data or {}
    return [*data.get("files", []), *([data["file"]] if "file" in data else [])]


def fresh_message(number: int, values: Mapping[str, Any], state: MessageState) -> Message:
    """As it is read right after it was stored."""
    known = values.get
    return Message(
        f"msg_{number}",
        values["channel_id"],
        values["place_id"],
        known("thread"),
        values["direction"],
        values["kind"],
        values["event_id"],
        _IDS.decode(values["platform_ids"]),
        known("reply_to"),
        known("sender_id"),
        known("agent_id"),
        known("run_id"),
        values["text"],
        _DATA.decode(data) if (data := known("data")) is not None else None,
        state,
        known("reason"),
        _ROUTES.decode(values["routes"]),
        None,
        values["at"],
        values["created_at"],
        known("ended_at"),
    )


_IDS, _DATA = msgspec.json.Decoder(list[str]), msgspec.json.Decoder()
_ROUTES = msgspec.json.Decoder(list[Route])


class Fenced(msgspec.Struct, frozen=True, omit_defaults=True):
    """A letter that a run works on."""

    id: str
    fence: int
    late: bool = False
    """Whether it came when the run was going already, and the run asked for it (`next_letters`)."""


class Next(msgspec.Struct, frozen=True):
    """What came for a session while its run goes on."""

    text: str
    letters: list[str]
    """Whoever asks again names the last of them: all up to it are dealt with then."""


class Talk(msgspec.Struct, frozen=True):
    session_id: str
    agent_id: str
    place_id: str
    thread: str
    run_id: str | None
    letters: list[Fenced]
    seen: int
    taken: int
    created_at: int

    @property
    def mailbox(self) -> str:
        return f"session:{self.session_id}"


class Card(msgspec.Struct, frozen=True):
    question_id: str
    place_id: str
    session_id: str | None
    message_id: str
    secret: bool
    settled: bool
    created_at: int


HOST = "queue:gateway"
"""Where answers go to what Corral itself asks of people."""


def asker(mailbox: str) -> str:
    """Who asks, for people: the gateway's own mailbox is Corral itself."""
    return "Corral" if mailbox == HOST else mailbox


_NAME = re.compile(r"[^\s:/\x00-\x1f\x7f]{1,100}")


def check_word(given: str, what: str) -> str:
    """A name as it stands in mailboxes and on command lines."""
    if not _NAME.fullmatch(clean_text(given, what, most=MAX_NAME)):
        raise Invalid(
            f"{given!r} is no name; take up to 100 characters without spaces, colons and slashes.",
            name=given,
        )
    return given


E = TypeVar("E", bound=StrEnum)


def one_of(choice: type[E], given: str) -> E:
    """The choice that was named; Invalid lists those that there are."""
    if given not in choice._value2member_map_:
        raise Invalid(f"{given!r} is none of {', '.join(choice)}.", value=given)
    return choice(given)
