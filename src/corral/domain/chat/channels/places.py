"""Places: the chats on a channel.

A place is recorded when its first message arrives, or when a user registers it.
"""

from corral.db.transitions import create_if_absent, transition
from corral.db.tx import Tx
from corral.domain.chat import sql
from corral.domain.chat.channels.ops import get_channel
from corral.domain.chat.model import (
    MAX_PLATFORM_ID,
    Channel,
    Place,
    StrangerPolicy,
    clean_display_name,
)
from corral.kernel.errors import Invalid, NotFound
from corral.kernel.pagination import Page
from corral.kernel.validation import check_choice, check_text


def ensure_place(
    tx: Tx,
    channel: Channel,
    platform_id: str,
    *,
    name: str | None = None,
    direct: bool | None = None,
) -> Place:
    """Return the place with this platform id; create it, or update its name and `direct`.

    `direct` is whether one person talks with the agents there; None leaves it unchanged.
    """
    platform_id = check_text(platform_id, "The place", max_bytes=MAX_PLATFORM_ID)
    place = find_by_platform_id(tx, channel, platform_id)
    if place is None:
        create_if_absent(
            tx,
            sql.PLACES,
            {
                "id": tx.new_id("plc"),
                "channel_id": channel.id,
                "platform_id": platform_id,
                "name": clean_display_name(name),
                "direct": int(bool(direct)),
                "created_at": tx.now,
                "updated_at": tx.now,
            },
            # A concurrent transaction may have inserted it.
            on_conflict="(channel_id, platform_id)",
            event_data={"channel": channel.name, "platform_id": platform_id},
        )
        place = tx.one(sql.PLACE_BY_PLATFORM, channel_id=channel.id, platform_id=platform_id)
    elif name and place.name != clean_display_name(name):
        tx.run(sql.RENAME_PLACE, id=place.id, name=clean_display_name(name), now=tx.now)
        place = sql.PLACES.get(tx, place.id)
    if direct not in (None, place.direct):
        # Members joined or left. Routing and command permissions depend on `direct`.
        tx.run(sql.SET_DIRECT, id=place.id, direct=int(bool(direct)), now=tx.now)
        tx.emit("place", "change", place.id, data={"direct": bool(direct)})
        place = sql.PLACES.get(tx, place.id)
    return place


def register_place(
    tx: Tx, channel: str, platform_id: str, *, name: str | None = None, direct: bool | None = None
) -> Place:
    """Record a place by the platform's own id before its first message arrives. Idempotent."""
    return ensure_place(tx, get_channel(tx, channel), platform_id, name=name, direct=direct)


def get_place(tx: Tx, place: str) -> Place:
    """Return a place by its id or a unique prefix, or by CHANNEL/ID with the platform's own id."""
    target = resolve_place(tx, place)
    if isinstance(target, Channel):
        platform_id = place.partition("/")[2]
        raise NotFound(
            f"{target.name} has no place {platform_id!r}. List known places with "
            f"`corral place list --channel {target.name}`.",
            channel=target.id,
        )
    return target


def resolve_place(tx: Tx, place: str) -> Place | Channel:
    """Return a place as `get_place` does, or its channel when the place is not recorded yet."""
    name, slash, platform_id = place.partition("/")
    if not slash:
        try:
            id = sql.PLACE_IDS.resolve(tx, place)
        except (Invalid, NotFound) as error:
            hint = "Or name the place as CHANNEL/PLATFORM_ID."
            raise type(error)(f"{error.message} {hint}", **error.details) from None
        return sql.PLACES.get(tx, id)
    channel = get_channel(tx, name)
    check_text(platform_id, "The place", max_bytes=MAX_PLATFORM_ID)
    return find_by_platform_id(tx, channel, platform_id) or channel


def find_by_platform_id(tx: Tx, channel: Channel, platform_id: str) -> Place | None:
    """Return the place with this platform id on a channel, or None when it is not recorded."""
    return tx.first(sql.PLACE_BY_PLATFORM, channel_id=channel.id, platform_id=platform_id)


def load_place(tx: Tx, id: str) -> Place:
    """Return a place by its complete id."""
    return sql.PLACES.get(tx, id)


def load_channel(tx: Tx, place: Place) -> Channel:
    """Return the channel of a place."""
    return sql.CHANNELS.get(tx, place.channel_id)


def list_places(
    tx: Tx, *, channel: str | None = None, after: str | None = None, limit: int = 50
) -> Page[Place]:
    """List the recorded places of one channel, or of all."""
    if channel is None:
        return sql.ALL_PLACES.page(tx, after=after, limit=limit)
    channel_id = get_channel(tx, channel).id
    return sql.PLACES_OF_CHANNEL.page(tx, after=after, limit=limit, channel_id=channel_id)


def set_policy(tx: Tx, place: str, policy: str | None) -> Place:
    """Override the channel's policy for strangers in one place; None removes the override."""
    place_id = get_place(tx, place).id
    choice = check_choice(policy, StrangerPolicy, "The policy") if policy is not None else None
    tx.run(sql.SET_PLACE_POLICY, id=place_id, policy=choice, now=tx.now)
    tx.emit("place", "set_policy", place_id, data={"policy": choice})
    return sql.PLACES.get(tx, place_id)


def block_place(tx: Tx, place: str) -> Place:
    """Stop receiving and sending in a place. Queued messages are rejected when they are due."""
    return transition(tx, sql.PLACES, "block", get_place(tx, place).id, updated_at=tx.now)


def unblock_place(tx: Tx, place: str) -> Place:
    """Receive and send in a place again."""
    return transition(tx, sql.PLACES, "unblock", get_place(tx, place).id, updated_at=tx.now)
