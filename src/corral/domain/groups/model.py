"""A group is a named chat of agents and people; a post is a message in it.

A post goes to every other member as a letter, so that whoever is away gets all of them in order;
the cursor of each member says how far it has read.
"""

import re
from enum import StrEnum

import msgspec

from corral.domain.mail.model import check_mailbox
from corral.kernel.errors import Invalid, Refused
from corral.kernel.states import Moves, move
from corral.kernel.text import MAX_NAME, clean_text


class GroupState(StrEnum):
    OPEN = "open"  # its members may post
    ARCHIVED = "archived"  # can be read, until it is forgotten; its name is free again


MOVES = Moves(
    "group",
    GroupState,
    begin="create",
    initial=GroupState.OPEN,
    imports=(GroupState.OPEN, GroupState.ARCHIVED),
    verbs={"archive": move(GroupState.OPEN, to=GroupState.ARCHIVED)},
)


class Kind(StrEnum):
    GROUP = "group"  # whoever joins
    DIRECT = "direct"  # two, who stay
    EVERYONE = "everyone"  # all agents, for broadcasts


class Group(msgspec.Struct, frozen=True):
    id: str
    name: str
    project_id: str | None
    kind: Kind
    roles: list[str]
    state: GroupState
    posts: int
    created_by: str
    created_at: int
    updated_at: int
    ended_at: int | None


class Member(msgspec.Struct, frozen=True):
    group_id: str
    member: str
    role: str | None
    read_number: int
    joined_at: int


class Unread(msgspec.Struct, frozen=True):
    """A group as one of its members sees it."""

    group_id: str
    name: str
    project_id: str | None
    kind: Kind
    posts: int
    unread: int


class Said(msgspec.Struct, frozen=True):
    """A post as it is stored."""

    id: str
    group_id: str
    number: int
    author: str
    text: str
    reply_to: int | None
    key: str | None
    at: int


class Reaction(msgspec.Struct, frozen=True):
    post_id: str
    sign: str
    member: str
    at: int


class Post(msgspec.Struct, frozen=True):
    """A post, and what members think of it."""

    id: str
    group_id: str
    number: int
    author: str
    text: str
    reply_to: int | None
    key: str | None
    at: int
    reactions: dict[str, list[str]]
    """By sign: who gave it."""


EVERYONE = "everyone"
ANY_ROLE = "*"
_NAME = re.compile(r"(?!grp_)[^\s:/\x00-\x1f\x7f]{1,100}")


def check_name(name: str) -> str:
    if not _NAME.fullmatch(clean_text(name, "The name", most=MAX_NAME)):
        raise Invalid(
            f"{name!r} is no name for a group; take up to 100 characters without spaces, colons "
            "and slashes that do not begin with grp_.",
            name=name,
        )
    if name == EVERYONE:
        raise Invalid("That name is for broadcasts; take another one.", name=name)
    return name


def check_member(member: str) -> str:
    if check_mailbox(member).partition(":")[0] not in ("agent", "user"):
        raise Invalid(f"{member} cannot be in a group; name agent:NAME or user:NAME.")
    return member


def name_of_direct(one: str, other: str) -> str:
    """The name that only the direct group of these two has."""
    return "+".join(sorted((one, other)))


def check_open(group: Group) -> None:
    if group.state is not GroupState.OPEN:
        raise Refused(f"{group.name} ({group.id}) is archived; it can only be read.", id=group.id)


def letter_key(group_id: str, number: int) -> str:
    """The key under which a post is put into each mailbox, once."""
    return f"{group_id}:{number}"
