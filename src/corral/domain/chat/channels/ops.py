"""Channels, the places on them, and the people who speak there."""

from collections.abc import Mapping
from typing import Any

from corral.adapters.channels import registry
from corral.db.transitions import create, move
from corral.db.tx import Tx
from corral.domain.chat import sql
from corral.domain.chat.model import (
    Channel,
    InDoubt,
    Person,
    Place,
    Policy,
    Role,
    Sender,
    SenderState,
    check_word,
    one_of,
)
from corral.domain.chat.outbound import cards_sql
from corral.domain.settings import ops as settings
from corral.kernel.errors import Conflict, NotFound
from corral.kernel.pagination import Page, check_limit, decode_cursor, page_of
from corral.kernel.text import MAX_NAME, clean_text, encode_json

KEPT, CARDS_KEPT = sql.KEPT, cards_sql.CARDS_KEPT
MAX_PLATFORM_ID = 500
AT_HOME = ("terminal", "web")
"""Kinds whose senders sit at the store's own machine, or hold a token that may do everything."""


# -- channels -------------------------------------------------------------------------------------


def add_channel(
    tx: Tx,
    name: str,
    kind: str,
    *,
    config: Mapping[str, Any] | None = None,
    secrets: Mapping[str, str] | None = None,
    policy: str = "ask",
    in_doubt: str = "give_up",
) -> Channel:
    """Connect a chat platform under a name. Its secrets are given as names of secrets.

    `policy` is for strangers: strict turns them away, ask lets an owner decide, public lets them
    in. `in_doubt` is for messages of which nobody can say whether they arrived.
    """
    check_word(name, "The name")
    registry.check(kind, dict(config or {}), {*(secrets or {})})
    for reference in (secrets or {}).values():
        settings.get_secret(tx, reference)  # a name that nobody has set would fail at every use
    made = create(
        tx,
        sql.CHANNELS,
        {
            "id": tx.new_id("chn"),
            "name": name,
            "kind": kind,
            "policy": one_of(Policy, policy),
            "in_doubt": one_of(InDoubt, in_doubt),
            "config": encode_json(dict(config or {}), "The configuration"),
            "secrets": encode_json(dict(secrets or {}), "The secrets"),
            "created_at": tx.now,
            "created_by": tx.actor,
        },
        unless="(name) WHERE state = 'active'",
        note={"name": name, "kind": kind},
    )
    if made is None:
        raise Conflict(f"There is a channel {name} already; take another name.", name=name)
    return made


def get_channel(tx: Tx, channel: str) -> Channel:
    """A channel by its name, or by its id, which may be shortened."""
    if channel.startswith("chn_"):
        return sql.CHANNELS.get(tx, sql.CHANNEL_IDS.resolve(tx, channel))
    found = tx.one(sql.CHANNEL_BY_NAME, name=clean_text(channel, "The channel", most=MAX_NAME))
    if found is None:
        raise NotFound(
            f"There is no channel {channel!r}; `corral channel list` shows all.", name=channel
        )
    return found


def list_channels(
    tx: Tx, *, all: bool = False, after: str | None = None, limit: int = 50
) -> Page[Channel]:
    """Channels by name; with `all` also removed ones, oldest first."""
    (last,) = decode_cursor(after, "")
    query = sql.ALL_CHANNELS if all else sql.ACTIVE_CHANNELS
    rows = tx.all(query, after=last, limit=check_limit(limit) + 1)
    return page_of(rows, limit, lambda each: (each.id if all else each.name,))


def note_cursor(tx: Tx, channel: str, cursor: str | None) -> None:
    """Remember how far a channel was read; everything before is stored."""
    tx.run(sql.SET_CURSOR, id=channel, cursor=cursor)


def note_health(tx: Tx, channel: str, trouble: str | None) -> None:
    """Remember whether a channel could be reached, as of now."""
    said = clean_text(trouble[:MAX_NAME], "The trouble", most=8 * MAX_NAME) if trouble else None
    tx.run(sql.SET_TROUBLE, id=channel, trouble=said, now=tx.now)


# -- places ---------------------------------------------------------------------------------------


def meet_place(
    tx: Tx,
    channel: Channel,
    platform_id: str,
    *,
    name: str | None = None,
    direct: bool | None = None,
) -> Place:
    """The place that a platform calls by this id; it is noted when it is first heard of.

    `direct`: whether one person talks there with the agents; None: nobody says.
    """
    own = clean_text(platform_id, "The place", most=MAX_PLATFORM_ID)
    found = place_on(tx, channel, own)
    if found is None:
        create(
            tx,
            sql.PLACES,
            {
                "id": tx.new_id("plc"),
                "channel_id": channel.id,
                "platform_id": own,
                "name": _shown(name),
                "direct": int(bool(direct)),
                "created_at": tx.now,
                "updated_at": tx.now,
            },
            unless="(channel_id, platform_id)",
            note={"channel": channel.name, "platform_id": own},
        )
        found = place_on(tx, channel, own)
        assert found is not None
    elif name and found.name != _shown(name):
        tx.run(sql.NAME_PLACE, id=found.id, name=_shown(name), now=tx.now)
        found = sql.PLACES.get(tx, found.id)
    if direct not in (None, found.direct):
        # A third person came, or the last but one left: it decides who is meant there.
        tx.run(sql.SET_DIRECT, id=found.id, direct=int(bool(direct)), now=tx.now)
        tx.note("place", "change", found.id, data={"direct": bool(direct)})
        found = sql.PLACES.get(tx, found.id)
    return found


def meet(
    tx: Tx, channel: str, platform_id: str, *, name: str | None = None, direct: bool | None = None
) -> Place:
    """Know a place before anything was said there, by the platform's own id."""
    return meet_place(tx, get_channel(tx, channel), platform_id, name=name, direct=direct)


def get_place(tx: Tx, place: str) -> Place:
    """A place by its id, which may be shortened, or as CHANNEL/ID with the platform's own id."""
    found = find_place(tx, place)
    if isinstance(found, Channel):
        own = place.partition("/")[2]
        raise NotFound(
            f"{found.name} has no place {own!r}; `corral place list --channel {found.name}` shows "
            "those that were heard of.",
            channel=found.id,
        )
    return found


def find_place(tx: Tx, place: str) -> Place | Channel:
    """The same; the channel, where nothing was heard of such a place on it yet."""
    channel, slash, own = place.partition("/")
    if not slash:
        return sql.PLACES.get(tx, sql.PLACE_IDS.resolve(tx, place))
    whose = get_channel(tx, channel)
    clean_text(own, "The place", most=MAX_PLATFORM_ID)
    return place_on(tx, whose, own) or whose


def place_on(tx: Tx, channel: Channel, platform_id: str) -> Place | None:
    """The place that a platform calls so; None while nothing was heard of it."""
    return tx.one(sql.PLACE_BY_PLATFORM, channel_id=channel.id, platform_id=platform_id)


def place_of(tx: Tx, id: str) -> Place:
    """The place that something in the store names, by its whole id."""
    return sql.PLACES.get(tx, id)


def channel_of(tx: Tx, place: Place) -> Channel:
    """The channel that a place is on."""
    return sql.CHANNELS.get(tx, place.channel_id)


def list_places(
    tx: Tx, *, channel: str | None = None, after: str | None = None, limit: int = 50
) -> Page[Place]:
    """Places that were heard of, of one channel or of all."""
    (last,) = decode_cursor(after, "")
    if channel is None:
        rows = tx.all(sql.ALL_PLACES, after=last, limit=check_limit(limit) + 1)
        return page_of(rows, limit, lambda place: (place.id,))
    rows = tx.all(
        sql.PLACES_OF_CHANNEL,
        channel_id=get_channel(tx, channel).id,
        after=last,
        limit=check_limit(limit) + 1,
    )
    return page_of(rows, limit, lambda place: (place.platform_id,))


def set_policy(tx: Tx, place: str, policy: str | None) -> Place:
    """Treat strangers in one place otherwise than on its channel; None: as there."""
    found = get_place(tx, place)
    chosen = one_of(Policy, policy) if policy is not None else None
    tx.run(sql.SET_PLACE_POLICY, id=found.id, policy=chosen, now=tx.now)
    tx.note("place", "set_policy", found.id, data={"policy": chosen})
    return sql.PLACES.get(tx, found.id)


def block_place(tx: Tx, place: str) -> Place:
    """Hear and send nothing there any more; what waits to be sent is refused."""
    return move(tx, sql.PLACES, "block", get_place(tx, place).id, updated_at=tx.now)


def unblock_place(tx: Tx, place: str) -> Place:
    """Hear and send there again."""
    return move(tx, sql.PLACES, "unblock", get_place(tx, place).id, updated_at=tx.now)


# -- people and their accounts --------------------------------------------------------------------


def set_person(tx: Tx, name: str, role: str = "member") -> Person:
    """Know a person, and what they may do: owner, admin or member."""
    check_word(name, "The name")
    wanted = one_of(Role, role)
    found = tx.one(sql.PERSON, name=name)
    if found is not None and found.role is wanted:
        return found
    kept = tx.one(sql.SET_PERSON, name=name, role=wanted, now=tx.now)
    assert kept is not None
    tx.note("person", "set", f"user:{name}", data={"role": wanted})
    return kept


def person(tx: Tx, name: str | None) -> Person | None:
    """A person by name, if we know them."""
    return tx.one(sql.PERSON, name=name) if name else None


def list_people(tx: Tx, *, after: str | None = None, limit: int = 50) -> Page[Person]:
    """The people we know, by name."""
    (last,) = decode_cursor(after, "")
    rows = tx.all(sql.PEOPLE, after=last, limit=check_limit(limit) + 1)
    return page_of(rows, limit, lambda each: (each.name,))


def owners(tx: Tx) -> list[str]:
    """The mailboxes of those who may let others in."""
    page = list_people(tx, limit=1_000)
    return [each.mailbox for each in page.items if each.role is not Role.MEMBER][:20]


def meet_sender(tx: Tx, channel: Channel, platform_id: str, name: str | None) -> Sender:
    """The account that a platform calls by this id; it is noted when it first speaks.

    Whoever speaks at a terminal of the store's own machine, or from its dashboard, could do
    everything without asking.
    """
    own = clean_text(platform_id, "The sender", most=MAX_PLATFORM_ID)
    found = tx.one(sql.SENDER_BY_PLATFORM, channel_id=channel.id, platform_id=own)
    if found is not None:
        if name and found.name != _shown(name):
            tx.run(sql.NAME_SENDER, id=found.id, name=_shown(name), now=tx.now)
            found = sql.SENDERS.get(tx, found.id)
        return found
    create(
        tx,
        sql.SENDERS,
        {
            "id": tx.new_id("snd"),
            "channel_id": channel.id,
            "platform_id": own,
            "name": _shown(name),
            "created_at": tx.now,
            "updated_at": tx.now,
        },
        unless="(channel_id, platform_id)",
        note={"channel": channel.name, "platform_id": own},
    )
    found = tx.one(sql.SENDER_BY_PLATFORM, channel_id=channel.id, platform_id=own)
    assert found is not None
    if channel.kind in AT_HOME and found.state is SenderState.UNKNOWN:
        return know(tx, found, own, "owner")
    return found


def get_sender(tx: Tx, sender: str) -> Sender:
    """An account by its id, which may be shortened, or as CHANNEL/ID with the platform's own id."""
    channel, slash, own = sender.partition("/")
    if not slash:
        return sql.SENDERS.get(tx, sql.SENDER_IDS.resolve(tx, sender))
    whose = get_channel(tx, channel)
    clean_text(own, "The sender", most=MAX_PLATFORM_ID)
    found = tx.one(sql.SENDER_BY_PLATFORM, channel_id=whose.id, platform_id=own)
    if found is None:
        raise NotFound(
            f"{own!r} has not spoken on {whose.name} yet; `corral sender list` shows who has.",
            channel=whose.id,
        )
    return found


def list_senders(tx: Tx, *, after: str | None = None, limit: int = 50) -> Page[Sender]:
    """Accounts that have spoken, oldest first, and who is behind them."""
    (last,) = decode_cursor(after, "")
    rows = tx.all(sql.ALL_SENDERS, after=last, limit=check_limit(limit) + 1)
    return page_of(rows, limit, lambda each: (each.id,))


def know(tx: Tx, sender: Sender, name: str | None, role: str | None) -> Sender:
    """Say who is behind an account; without a name, a person of the account's own, so that nobody
    is taken for somebody else."""
    who = check_word(name or sender.person or sender.id, "The name")
    known = person(tx, who)
    if known is None or role is not None:
        set_person(tx, who, role or Role.MEMBER)
    return move(
        tx,
        sql.SENDERS,
        "approve",
        sender.id,
        note={"person": who},
        person=who,
        updated_at=tx.now,
    )


def turn_out(tx: Tx, sender: Sender) -> Sender:
    """Turn away whatever an account says from now on."""
    return move(tx, sql.SENDERS, "block", sender.id, updated_at=tx.now)


# -- what the verbs share -------------------------------------------------------------------------


def _shown(name: str | None) -> str | None:
    return (
        clean_text(name[:MAX_NAME].replace("\0", ""), "The name", most=8 * MAX_NAME)
        if name
        else None
    )
