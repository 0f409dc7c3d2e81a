"""The records of chat.

A channel is a connected chat platform. A place is one chat on it. A sender is an account on it, and
a person is the human behind one or more senders. A wiring makes an agent listen in places; a
destination allows it to send to a place.

An inbound message is stored once, under the platform's event id, together with the routes that it
took. Each route that wakes an agent puts a letter into the mailbox of that agent's session. An
outbound message has a letter in the mailbox of its place (`place:plc_…`), which keeps the order,
the attempts and the last error.
"""

import re
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from corral.adapters.channels.contract import MessageKind
from corral.kernel.errors import Invalid
from corral.kernel.states import TransitionTable, allow
from corral.kernel.validation import MAX_NAME, check_text

MAX_PLATFORM_ID = 500

CHAT_MAILBOX = "queue:chat"
"""Receives the answers to questions that Corral itself asks people."""


# -- channels -------------------------------------------------------------------------------------


class ChannelState(StrEnum):
    ACTIVE = "active"  # messages are received and sent
    REMOVED = "removed"  # disconnected


CHANNEL_TRANSITIONS = TransitionTable(
    "channel",
    ChannelState,
    create_verb="add",
    initial=ChannelState.ACTIVE,
    import_states=(ChannelState.REMOVED,),
    verbs={"remove": allow(ChannelState.ACTIVE, to=ChannelState.REMOVED)},
)


class StrangerPolicy(StrEnum):
    """What happens to messages of unknown senders."""

    STRICT = "strict"  # rejected
    ASK = "ask"  # held until an owner approves the sender
    PUBLIC = "public"  # routed as those of known senders


class UnconfirmedPolicy(StrEnum):
    """What happens to a message when neither Corral nor the platform knows whether it arrived."""

    GIVE_UP = "give_up"  # not sent again; its sender and the operator are notified
    RETRY = "retry"  # sent again; people may see it twice


class Channel(msgspec.Struct, frozen=True):
    """A connected chat platform."""

    id: str
    name: str
    """Its name in commands, unique among active channels."""
    kind: str
    """The adapter: terminal, web, webhook, matrix, slack, telegram, …"""
    policy: StrangerPolicy
    """What happens to messages of strangers, unless a place overrides it."""
    on_unconfirmed: UnconfirmedPolicy
    """What happens to messages whose delivery is unconfirmed."""
    config: dict[str, Any]
    """Options of the adapter; never a secret."""
    secrets: dict[str, str]
    """The adapter's secret names, each with the name of a stored secret."""
    state: ChannelState
    cursor: str | None
    """The platform's position up to which all events are stored."""
    last_error: str | None
    """The error of the last connection check; None when it succeeded."""
    checked_at: int | None
    """When the connection was last checked."""
    created_at: int
    created_by: str
    """The actor that added it."""
    ended_at: int | None
    """When it was removed."""


# -- places ---------------------------------------------------------------------------------------


class PlaceState(StrEnum):
    OPEN = "open"  # messages are received and sent
    BLOCKED = "blocked"  # inbound messages are rejected, outbound ones refused


PLACE_TRANSITIONS = TransitionTable(
    "place",
    PlaceState,
    create_verb="discover",
    initial=PlaceState.OPEN,
    import_states=(PlaceState.OPEN, PlaceState.BLOCKED),
    verbs={
        "block": allow(PlaceState.OPEN, to=PlaceState.BLOCKED),
        "unblock": allow(PlaceState.BLOCKED, to=PlaceState.OPEN),
    },
)


class Place(msgspec.Struct, frozen=True):
    """One chat on a channel."""

    id: str
    channel_id: str
    platform_id: str
    """The platform's id of the chat."""
    name: str | None
    """The platform's name of the chat."""
    direct: bool
    """Whether one person talks with the agents there."""
    policy: StrangerPolicy | None
    """Overrides the channel's policy."""
    awaits_secret: bool
    """Whether a secret is being asked for there: text that may be one is not stored."""
    state: PlaceState
    created_at: int
    updated_at: int

    @property
    def mailbox(self) -> str:
        """The mailbox of its outbound messages."""
        return f"place:{self.id}"

    @property
    def display_name(self) -> str:
        return self.name or self.platform_id


# -- people and their senders ---------------------------------------------------------------------


class PersonRole(StrEnum):
    OWNER = "owner"  # may do everything
    ADMIN = "admin"  # approves strangers, and controls agents in any chat
    MEMBER = "member"  # may talk to agents


class Person(msgspec.Struct, frozen=True):
    """The human behind one or more senders."""

    name: str
    """The person acts as user:NAME."""
    role: PersonRole
    created_at: int
    updated_at: int
    """When the role last changed."""

    @property
    def mailbox(self) -> str:
        return f"user:{self.name}"


class SenderState(StrEnum):
    UNKNOWN = "unknown"  # not assigned to a person
    KNOWN = "known"  # approved and assigned to a person
    BLOCKED = "blocked"  # all its messages are rejected


SENDER_TRANSITIONS = TransitionTable(
    "sender",
    SenderState,
    create_verb="discover",
    initial=SenderState.UNKNOWN,
    verbs={
        "approve": allow(
            SenderState.UNKNOWN, SenderState.KNOWN, SenderState.BLOCKED, to=SenderState.KNOWN
        ),
        "block": allow(SenderState.UNKNOWN, SenderState.KNOWN, to=SenderState.BLOCKED),
    },
)


class Sender(msgspec.Struct, frozen=True):
    """An account on a channel."""

    id: str
    channel_id: str
    platform_id: str
    """The platform's id of the account."""
    name: str | None
    """The account's own display name, which any account can choose."""
    person: str | None
    """The name of the person; None: not known. A sender that was approved without a name is its own
    person, named by the sender's id."""
    state: SenderState
    created_at: int
    updated_at: int
    """When its name, state or person last changed."""

    @property
    def display_name(self) -> str:
        """The person's name, else the account's name with its platform id.

        The platform id is included because any account can use any name.
        """
        if self.person is not None and self.person != self.id:
            return self.person
        own = self.platform_id
        return own if self.name in (None, own) else f"{self.name} ({own})"


# -- wirings --------------------------------------------------------------------------------------


class WiringState(StrEnum):
    ACTIVE = "active"  # the agent receives messages by it
    REMOVED = "removed"  # the agent receives no more messages by it


WIRING_TRANSITIONS = TransitionTable(
    "wiring",
    WiringState,
    create_verb="add",
    initial=WiringState.ACTIVE,
    import_states=(WiringState.REMOVED,),
    verbs={
        "change": allow(WiringState.ACTIVE, to=WiringState.ACTIVE),
        "remove": allow(WiringState.ACTIVE, to=WiringState.REMOVED),
    },
)


class Trigger(StrEnum):
    """Which messages wake the agent."""

    ALWAYS = "always"  # every message
    MENTION = "mention"  # the agent is addressed: by name, or as the only possible recipient
    STICKY = "sticky"  # as mention, and then everything in that thread or chat
    PATTERN = "pattern"  # the text matches a pattern
    COMMAND = "command"  # the first word is a command


class WiringScope(StrEnum):
    """Whose messages wake the agent."""

    ALL = "all"  # those of all senders that the policy admits
    KNOWN = "known"  # only those of known people


class UnmatchedPolicy(StrEnum):
    """What happens to messages that do not wake the agent."""

    DROP = "drop"  # the agent never sees them
    KEEP = "keep"  # the agent gets them as context of the next message that wakes it


class SessionMode(StrEnum):
    """Which messages share a session."""

    SHARED = "shared"  # those of one chat
    THREAD = "thread"  # those of one thread of a chat
    AGENT = "agent"  # those of all chats of the agent


class Wiring(msgspec.Struct, frozen=True):
    """A rule that says which messages of a place wake an agent."""

    id: str
    channel_id: str
    place_id: str | None
    """None: all places of the channel."""
    agent_id: str
    """The agent that listens."""
    trigger: Trigger
    pattern: str | None
    """The regular expression of a pattern, or the name of a command."""
    scope: WiringScope
    unmatched: UnmatchedPolicy
    mode: SessionMode
    priority: int
    """When several wirings would wake the same agent, the one with the highest priority does."""
    project_id: str | None
    """The project that the agent works in; None: its own folder."""
    state: WiringState
    created_at: int
    created_by: str
    """The actor that added it."""
    ended_at: int | None
    """When it was removed."""

    def build_conversation_key(self, place_id: str, thread: str | None) -> "ConversationKey":
        """Return what identifies the agent's conversation for a message, by the session mode."""
        if self.mode is SessionMode.AGENT:
            return ConversationKey("", "")
        return ConversationKey(place_id, (thread or "") if self.mode is SessionMode.THREAD else "")


# -- destinations ---------------------------------------------------------------------------------


class DestinationState(StrEnum):
    GRANTED = "granted"  # the agent may send there
    REVOKED = "revoked"  # it may not


DESTINATION_TRANSITIONS = TransitionTable(
    "destination",
    DestinationState,
    create_verb="grant",
    initial=DestinationState.GRANTED,
    import_states=(DestinationState.REVOKED,),
    verbs={
        "revoke": allow(DestinationState.GRANTED, to=DestinationState.REVOKED),
        "regrant": allow(*DestinationState, to=DestinationState.GRANTED),
    },
)


class Destination(msgspec.Struct, frozen=True):
    """A place that an agent may send to, under a name of its own."""

    id: str
    agent_id: str
    """The agent that may send."""
    name: str
    """The agent's name for the place, unique among its granted destinations."""
    place_id: str
    state: DestinationState
    created_at: int
    created_by: str
    """The actor that granted it. Receiving a message for the agent grants the message's place."""
    ended_at: int | None
    """When it was revoked."""


# -- messages -------------------------------------------------------------------------------------


class MessageState(StrEnum):
    HELD = "held"  # inbound; waits for an owner's decision
    ROUTED = "routed"  # inbound; routed to an agent, or handled as a command or an answer
    IGNORED = "ignored"  # inbound; no agent was to receive it
    REFUSED = "refused"  # inbound; its sender may not talk here
    QUEUED = "queued"  # outbound; its letter has the delivery state
    SENT = "sent"  # outbound; the platform has it
    UNDELIVERED = "undelivered"  # outbound; given up for the stated reason


MESSAGE_TRANSITIONS = TransitionTable(
    "message",
    MessageState,
    create_verb="hold",
    initial=MessageState.HELD,
    other_create_verbs={
        # Messages that need no moderation are never held.
        "route": MessageState.ROUTED,
        "ignore": MessageState.IGNORED,
        "refuse": MessageState.REFUSED,
        "queue": MessageState.QUEUED,
    },
    verbs={
        # Still held, for another reason.
        "hold_again": allow(MessageState.HELD, to=MessageState.HELD),
        "release": allow(MessageState.HELD, to=MessageState.ROUTED),
        "dismiss": allow(MessageState.HELD, to=MessageState.IGNORED),
        "reject": allow(MessageState.HELD, to=MessageState.REFUSED),
        # Also from undelivered: an operator can send the letter again.
        "deliver": allow(MessageState.QUEUED, MessageState.UNDELIVERED, to=MessageState.SENT),
        "give_up": allow(MessageState.QUEUED, to=MessageState.UNDELIVERED),
    },
)


class Route(msgspec.Struct, frozen=True):
    """What one wiring did with a message."""

    wiring_id: str
    agent_id: str
    wakes: bool
    """Whether the message wakes the agent."""
    reason: str
    session_id: str | None = None
    """The session that gets the message."""
    letter_id: str | None = None
    """The letter in that session's mailbox. Not stored: it is looked up by the message's id."""


class Message(msgspec.Struct, frozen=True):
    """A message on a channel, inbound or outbound."""

    id: str
    channel_id: str
    place_id: str
    thread: str | None
    """The platform's id of the chat thread; None: the chat itself."""
    direction: str
    """in or out."""
    kind: MessageKind
    event_id: str
    """The platform's id of an inbound event, or the key of an outbound message."""
    platform_ids: list[str]
    """The platform's ids of the message, one for each part; empty: not known."""
    reply_to: str | None
    """The platform's id of the message that it answers, edits or reacts to."""
    sender_id: str | None
    """Inbound: the sender that wrote it."""
    agent_id: str | None
    """Outbound: the agent that sent it; None: Corral itself."""
    run_id: str | None
    """Outbound: the run that sent it."""
    text: str
    data: Any
    """Inbound: whether the account was mentioned, the files and the answered question. Outbound:
    the file, or the question and its options."""
    state: MessageState
    reason: str | None
    """Why it is in this state."""
    routes: list[Route]
    """Inbound: what each wiring did with it."""
    letter_id: str | None
    """Outbound: the letter in the mailbox of its place, which has the delivery state."""
    at: int
    """Inbound: when it was written, as the platform says. Outbound: when it was queued."""
    created_at: int
    ended_at: int | None
    """When it reached a final state; None: held or queued."""


def list_files(message: Message) -> list[dict[str, Any]]:
    """Return the files of a message, each with its name and, if it was rejected, the reason."""
    data = message.data or {}
    return [*data.get("files", []), *([data["file"]] if "file" in data else [])]


# -- conversations --------------------------------------------------------------------------------


class ConversationKey(NamedTuple):
    """What identifies a conversation among those of its agent."""

    place_id: str
    """Empty for a conversation that belongs to no single chat."""
    thread: str
    """Empty for a whole chat; else a thread of the place, or a name."""


class ClaimedLetter(msgspec.Struct, frozen=True, omit_defaults=True):
    """A letter that a run works on, with the fence of its claim."""

    id: str
    fence: int
    late: bool = False
    """Whether the run claimed it after its start, by `long_running.take_next`."""


class NextLetters(msgspec.Struct, frozen=True):
    """The letters that arrived for a session while its run goes on."""

    text: str
    letters: list[str]
    """The ids. The run names the last one in its next call to acknowledge all of them."""


class Conversation(msgspec.Struct, frozen=True):
    """A session that is woken by its letters, and the run that works on it now."""

    session_id: str
    agent_id: str
    place_id: str
    """Empty for a session that belongs to no single chat."""
    thread: str
    run_id: str | None
    claimed_letters: list[ClaimedLetter]
    seen_seq: int
    """The number of the last message that the agent was given."""
    ingested_seq: int
    """The number of the last message of a sandboxed agent that was ingested."""
    created_at: int

    @property
    def mailbox(self) -> str:
        return f"session:{self.session_id}"

    @property
    def claim_owner(self) -> str:
        """The owner of the claims on its letters."""
        return f"conversation:{self.session_id}"


# -- cards ----------------------------------------------------------------------------------------


class QuestionCard(msgspec.Struct, frozen=True):
    """A question that is shown in a place."""

    question_id: str
    place_id: str
    session_id: str | None
    """The session that asked; None: none did."""
    message_id: str
    """The message that shows it."""
    secret: bool
    """Whether it asks for a secret."""
    closed: bool
    """Whether the card shows how the question ended."""
    created_at: int


def format_asker(mailbox: str) -> str:
    """Return the name of an asker for people: Corral for CHAT_MAILBOX."""
    return "Corral" if mailbox == CHAT_MAILBOX else mailbox


# -- validation -----------------------------------------------------------------------------------


_NAME = re.compile(r"[^\s:/\x00-\x1f\x7f]{1,100}")


def check_name(name: str, what: str) -> str:
    """Return a name that is valid in mailboxes and on command lines; raises Invalid."""
    if not _NAME.fullmatch(check_text(name, what, max_bytes=MAX_NAME)):
        raise Invalid(
            f"Invalid name {name!r}: expected up to 100 characters without spaces, colons and "
            "slashes.",
            name=name,
        )
    return name


def clean_display_name(name: str | None) -> str | None:
    """Shorten a platform's name of a chat or an account, and remove NUL characters."""
    if not name:
        return None
    return check_text(name[:MAX_NAME].replace("\0", ""), "The name", max_bytes=8 * MAX_NAME)
