"""People and their senders.

A sender is one account on one channel. A person has a role and may have several senders.
"""

from corral.db.transitions import create_if_absent, transition
from corral.db.tx import Tx
from corral.domain.chat import sql
from corral.domain.chat.channels.ops import get_channel
from corral.domain.chat.model import (
    MAX_PLATFORM_ID,
    Channel,
    Person,
    PersonRole,
    Sender,
    SenderState,
    check_name,
    clean_display_name,
)
from corral.kernel.errors import NotFound
from corral.kernel.pagination import Page
from corral.kernel.validation import check_choice, check_text

TRUSTED_KINDS = ("terminal", "web")
"""Kinds of channels whose senders are owners: they use the machine of the store, or have a token
with full access."""
MAX_APPROVERS = 20


# -- people ---------------------------------------------------------------------------------------


def set_person(tx: Tx, name: str, role: str = "member") -> Person:
    """Create a person or change their role: owner, admin or member. Idempotent."""
    check_name(name, "The name")
    choice = check_choice(role, PersonRole, "The role")
    current = tx.first(sql.PERSON, name=name)
    if current is not None and current.role is choice:
        return current
    person = tx.one(sql.SET_PERSON, name=name, role=choice, now=tx.now)
    tx.emit("person", "set", f"user:{name}", data={"role": choice})
    return person


def find_person(tx: Tx, name: str | None) -> Person | None:
    """Return a person by name, or None."""
    return tx.first(sql.PERSON, name=name) if name else None


def list_people(tx: Tx, *, after: str | None = None, limit: int = 50) -> Page[Person]:
    """List people by name."""
    return sql.PEOPLE.page(tx, after=after, limit=limit)


def list_approvers(tx: Tx) -> list[str]:
    """Return the mailboxes of the owners and admins, who decide about strangers and requests."""
    page = list_people(tx, limit=1_000)
    approvers = [person.mailbox for person in page.items if person.role is not PersonRole.MEMBER]
    return approvers[:MAX_APPROVERS]


# -- senders --------------------------------------------------------------------------------------


def ensure_sender(tx: Tx, channel: Channel, platform_id: str, name: str | None) -> Sender:
    """Return the sender with this platform id; create it, or update its name.

    A sender on a trusted kind of channel (`TRUSTED_KINDS`) becomes an owner.
    """
    platform_id = check_text(platform_id, "The sender", max_bytes=MAX_PLATFORM_ID)
    sender = tx.first(sql.SENDER_BY_PLATFORM, channel_id=channel.id, platform_id=platform_id)
    if sender is not None:
        if name and sender.name != clean_display_name(name):
            tx.run(sql.RENAME_SENDER, id=sender.id, name=clean_display_name(name), now=tx.now)
            sender = sql.SENDERS.get(tx, sender.id)
        return sender
    create_if_absent(
        tx,
        sql.SENDERS,
        {
            "id": tx.new_id("snd"),
            "channel_id": channel.id,
            "platform_id": platform_id,
            "name": clean_display_name(name),
            "created_at": tx.now,
            "updated_at": tx.now,
        },
        # A concurrent transaction may have inserted it.
        on_conflict="(channel_id, platform_id)",
        event_data={"channel": channel.name, "platform_id": platform_id},
    )
    sender = tx.one(sql.SENDER_BY_PLATFORM, channel_id=channel.id, platform_id=platform_id)
    if channel.kind in TRUSTED_KINDS and sender.state is SenderState.UNKNOWN:
        return identify_sender(tx, sender, platform_id, "owner")
    return sender


def get_sender(tx: Tx, sender: str) -> Sender:
    """Return a sender by its id or a unique prefix, or by CHANNEL/ID with the platform's id."""
    channel, slash, platform_id = sender.partition("/")
    if not slash:
        return sql.SENDERS.get(tx, sql.SENDER_IDS.resolve(tx, sender))
    owner = get_channel(tx, channel)
    check_text(platform_id, "The sender", max_bytes=MAX_PLATFORM_ID)
    match = tx.first(sql.SENDER_BY_PLATFORM, channel_id=owner.id, platform_id=platform_id)
    if match is None:
        raise NotFound(
            f"{owner.name} has no sender {platform_id!r}. List senders with `corral sender list`.",
            channel=owner.id,
        )
    return match


def list_senders(tx: Tx, *, after: str | None = None, limit: int = 50) -> Page[Sender]:
    """List the senders of messages, oldest first, with the person of each."""
    return sql.ALL_SENDERS.page(tx, after=after, limit=limit)


def identify_sender(tx: Tx, sender: Sender, name: str | None, role: str | None) -> Sender:
    """Approve a sender and assign it to a person.

    Without a name, the person is named after the sender's own id, so that no two senders share a
    person by accident.
    """
    person = check_name(name or sender.person or sender.id, "The name")
    if find_person(tx, person) is None or role is not None:
        set_person(tx, person, role or PersonRole.MEMBER)
    return transition(
        tx,
        sql.SENDERS,
        "approve",
        sender.id,
        event_data={"person": person},
        person=person,
        updated_at=tx.now,
    )


def mark_sender_blocked(tx: Tx, sender: Sender) -> Sender:
    """Reject all later messages of a sender. `held.block_sender` also rejects held messages."""
    return transition(tx, sql.SENDERS, "block", sender.id, updated_at=tx.now)
