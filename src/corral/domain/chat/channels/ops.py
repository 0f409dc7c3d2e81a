"""Channels: connect a chat platform, disconnect it, and record how far it was read.

The chats of a channel are in `places`, the accounts and people in `people`, the agents that listen
in `wirings`, and the chats that agents may send to in `destinations`.
"""

from collections.abc import Mapping
from typing import Any

from corral.adapters.channels import registry
from corral.db.transitions import create_if_absent, transition
from corral.db.tx import Tx
from corral.domain.chat import sql
from corral.domain.chat.model import (
    Channel,
    StrangerPolicy,
    UnconfirmedPolicy,
    check_name,
)
from corral.domain.mail import ops as mail
from corral.domain.settings import ops as settings
from corral.kernel.errors import Conflict, NotFound
from corral.kernel.pagination import LAST_NUMBER, Page
from corral.kernel.validation import (
    MAX_NAME,
    check_choice,
    check_optional_text,
    check_text,
    encode_json,
)

MESSAGES_RETENTION, CARDS_RETENTION = sql.MESSAGES_RETENTION, sql.CARDS_RETENTION


def add_channel(
    tx: Tx,
    name: str,
    kind: str,
    *,
    config: Mapping[str, Any] | None = None,
    secrets: Mapping[str, str] | None = None,
    policy: str = "ask",
    on_unconfirmed: str = "give_up",
) -> Channel:
    """Connect a chat platform under a name.

    `secrets` maps the adapter's secret names to names of stored secrets. `policy` applies to
    messages of strangers: strict rejects them, ask holds them until an owner decides, public routes
    them. `on_unconfirmed` applies to messages whose delivery is unconfirmed: give_up or retry.

    Raises Conflict when an active channel has this name, NotFound when a secret does not exist.
    """
    check_name(name, "The name")
    registry.validate_settings(kind, dict(config or {}), {*(secrets or {})})
    for reference in (secrets or {}).values():
        settings.get_secret(tx, reference)  # fail now, not at every use of the channel
    channel = create_if_absent(
        tx,
        sql.CHANNELS,
        {
            "id": tx.new_id("chn"),
            "name": name,
            "kind": kind,
            "policy": check_choice(policy, StrangerPolicy, "The policy"),
            "on_unconfirmed": check_choice(
                on_unconfirmed, UnconfirmedPolicy, "The policy for unconfirmed messages"
            ),
            "config": encode_json(dict(config or {}), "The configuration"),
            "secrets": encode_json(dict(secrets or {}), "The secrets"),
            "created_at": tx.now,
            "created_by": tx.actor,
        },
        on_conflict="(name) WHERE state = 'active'",
        event_data={"name": name, "kind": kind},
    )
    if channel is None:
        raise Conflict(f"A channel named {name} already exists. Choose another name.", name=name)
    return channel


def remove_channel(tx: Tx, channel: str) -> Channel:
    """Disconnect a channel.

    Its wirings end and its queued messages are dropped with a reason. The channel, its places and
    its messages stay readable.
    """
    removed = get_channel(tx, channel)
    for wiring in tx.all(sql.ACTIVE_WIRINGS.query, after="", limit=LAST_NUMBER):
        if wiring.channel_id == removed.id:
            transition(tx, sql.WIRINGS, "remove", wiring.id, ended_at=tx.now)
    for place in tx.all(
        sql.PLACES_OF_CHANNEL.query, channel_id=removed.id, after="", limit=LAST_NUMBER
    ):
        mail.drop_waiting(tx, place.mailbox, reason=f"the channel {removed.name} was removed")
    return transition(tx, sql.CHANNELS, "remove", removed.id, ended_at=tx.now)


def get_channel(tx: Tx, channel: str) -> Channel:
    """Return a channel by its name, or by its id or a unique prefix of the id."""
    if channel.startswith("chn_"):
        return sql.CHANNELS.get(tx, sql.CHANNEL_IDS.resolve(tx, channel))
    named = tx.first(
        sql.CHANNEL_BY_NAME, name=check_text(channel, "The channel", max_bytes=MAX_NAME)
    )
    if named is None:
        raise NotFound(
            f"No channel named {channel!r}. List channels with `corral channel list`.",
            name=channel,
        )
    return named


def list_channels(
    tx: Tx, *, all: bool = False, after: str | None = None, limit: int = 50
) -> Page[Channel]:
    """List active channels by name. With `all`, also list removed ones, oldest first."""
    listing = sql.ALL_CHANNELS if all else sql.ACTIVE_CHANNELS
    return listing.page(tx, after=after, limit=limit)


def save_cursor(tx: Tx, channel: str, cursor: str | None) -> None:
    """Record how far a channel was read. Every event before the cursor is stored."""
    tx.run(sql.SET_CURSOR, id=channel, cursor=cursor)


def save_health(tx: Tx, channel: str, last_error: str | None) -> None:
    """Record the result of a connection check: an error, or None when the channel is reachable."""
    text = tx.shorten_for_storage(last_error, MAX_NAME) if last_error else None
    tx.run(
        sql.SET_HEALTH,
        id=channel,
        last_error=check_optional_text(text, "The error", max_bytes=8 * MAX_NAME),
        now=tx.now,
    )
