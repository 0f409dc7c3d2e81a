"""A group is a named chat of agents and people; a post is a message in it.

Every other member gets each post as a letter, so a member that is away finds them in order. Each
member has a cursor: the number of the last post that it has read.
"""

import re
from enum import StrEnum

import msgspec

from corral.domain.mail.model import check_mailbox, mailbox_kind
from corral.kernel.errors import Invalid, Refused
from corral.kernel.states import TransitionTable, allow
from corral.kernel.validation import MAX_NAME, check_text


class GroupState(StrEnum):
    OPEN = "open"  # members may post
    ARCHIVED = "archived"  # read-only until retention deletes it; its name is free again


TRANSITIONS = TransitionTable(
    "group",
    GroupState,
    create_verb="create",
    initial=GroupState.OPEN,
    import_states=(GroupState.OPEN, GroupState.ARCHIVED),
    verbs={"archive": allow(GroupState.OPEN, to=GroupState.ARCHIVED)},
)


class GroupKind(StrEnum):
    GROUP = "group"  # members join and leave
    DIRECT = "direct"  # two fixed members
    EVERYONE = "everyone"  # all agents, for broadcasts


class Group(msgspec.Struct, frozen=True):
    """A named chat of agents and people."""

    id: str
    name: str
    """Unique among the open groups of a project; for a direct group, both members joined by +."""
    project_id: str | None
    kind: GroupKind
    roles: list[str]
    """Agents of these roles join automatically; `*` is any role."""
    state: GroupState
    posts: int
    """Number of its last post."""
    created_by: str
    """The actor that created it."""
    created_at: int
    updated_at: int
    """Last post, join, leave or archiving."""
    ended_at: int | None
    """When it was archived."""


class GroupMember(msgspec.Struct, frozen=True):
    """An agent or a person in a group, with its read cursor."""

    group_id: str
    name: str
    """agent:NAME or user:NAME. That mailbox gets the posts."""
    role: str | None
    """The role by which the agent joined automatically; None: it was added explicitly."""
    read_number: int
    """Number of the last post that it has read."""
    joined_at: int


class UnreadGroup(msgspec.Struct, frozen=True):
    """A group with the number of posts that a member has not read."""

    group_id: str
    name: str
    project_id: str | None
    kind: GroupKind
    posts: int
    """Number of its last post."""
    unread: int


class StoredPost(msgspec.Struct, frozen=True):
    """A post without its reactions."""

    id: str
    group_id: str
    number: int
    """Its position in the group, from 1 without gaps."""
    author: str
    """agent:NAME or user:NAME."""
    text: str
    reply_to: int | None
    """Number of the post that it replies to."""
    key: str | None
    """The idempotency key, unique per author in the group."""
    at: int


class Reaction(msgspec.Struct, frozen=True):
    """One member's reaction to a post."""

    post_id: str
    emoji: str
    """An emoji or a short word."""
    member: str
    """agent:NAME or user:NAME."""
    at: int


class Post(StoredPost, frozen=True):
    """A post with its reactions."""

    reactions: dict[str, list[str]]
    """The members by emoji."""


EVERYONE = "everyone"
"""The name of the groups for broadcasts."""
ANY_ROLE = "*"
_NAME = re.compile(r"(?!grp_)[^\s:/\x00-\x1f\x7f]{1,100}")


def check_name(name: str) -> str:
    """Return a valid name for a group; raises Invalid."""
    if not _NAME.fullmatch(check_text(name, "The name", max_bytes=MAX_NAME)):
        raise Invalid(
            f"Invalid group name {name!r}: expected up to 100 characters without spaces, colons "
            "and slashes that do not begin with grp_.",
            name=name,
        )
    if name == EVERYONE:
        raise Invalid(
            f"The name {name!r} is reserved for broadcasts. Choose another name.", name=name
        )
    return name


def check_member(member: str) -> str:
    """Return a mailbox that can be a member; raises Invalid."""
    if mailbox_kind(check_mailbox(member)) not in ("agent", "user"):
        raise Invalid(f"Invalid member {member}: expected agent:NAME or user:NAME.")
    return member


def build_direct_name(one: str, other: str) -> str:
    """Return the name of the direct group of two members; it does not depend on their order."""
    return "+".join(sorted((one, other)))


def check_open(group: Group) -> None:
    """Raise Refused for an archived group."""
    if group.state is not GroupState.OPEN:
        raise Refused(f"{group.name} ({group.id}) is archived and read-only.", id=group.id)


def build_letter_key(group_id: str, number: int) -> str:
    """Return the key of a post's letters, which makes them idempotent."""
    return f"{group_id}:{number}"
