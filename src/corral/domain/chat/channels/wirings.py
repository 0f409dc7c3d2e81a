"""Wirings: which agents listen in which places, and which messages wake them."""

from typing import Any, NamedTuple

from corral.db.transitions import create_if_absent, transition
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.chat import sql
from corral.domain.chat.channels import destinations, ops, places
from corral.domain.chat.model import (
    Channel,
    ChannelState,
    Place,
    SessionMode,
    Trigger,
    UnmatchedPolicy,
    Wiring,
    WiringScope,
    check_name,
)
from corral.domain.chat.patterns import compile_pattern
from corral.domain.mail.model import check_priority
from corral.domain.projects import ops as projects
from corral.kernel.errors import Conflict, Invalid, Refused
from corral.kernel.pagination import Page
from corral.kernel.unset import UNSET
from corral.kernel.validation import MAX_NAME, check_choice, check_text

MAX_WIRINGS = 50
"""Wirings of one place that routing considers."""


class WiringRules(NamedTuple):
    """Which messages wake the agent of a wiring, and in which session; not validated yet."""

    trigger: str
    pattern: str | None = None
    scope: str = "all"
    unmatched: str = "drop"
    mode: str = "shared"
    priority: int = 0

    def to_columns(self) -> dict[str, Any]:
        """Return the columns of a wiring; raises Invalid for a wrong value."""
        trigger = check_choice(self.trigger, Trigger, "The trigger")
        mode = check_choice(self.mode, SessionMode, "The session mode")
        if (trigger, mode) == (Trigger.STICKY, SessionMode.AGENT):
            raise Invalid(
                "A sticky wiring follows one thread or chat, so it cannot use one session for all "
                "chats. Use --session shared or thread.",
                trigger=trigger,
                mode=mode,
                reason="sticky_needs_thread",
            )
        return {
            "trigger": trigger,
            "pattern": check_pattern(trigger, self.pattern),
            "scope": check_choice(self.scope, WiringScope, "The scope"),
            "unmatched": check_choice(self.unmatched, UnmatchedPolicy, "The unmatched policy"),
            "mode": mode,
            "priority": check_priority(self.priority),
        }


def create_wiring(
    tx: Tx,
    agent: str,
    rules: WiringRules,
    *,
    place: str | None = None,
    channel: str | None = None,
    project: str | None = None,
) -> Wiring:
    """Create a wiring, and the destination that lets the agent answer in its place.

    Held messages stay held; `inbound.approvals.wire_agent` also routes them. Raises
    Conflict when the agent is wired there already.
    """
    listener = agents.get_active(tx, agent)
    target = places.get_place(tx, place) if place else None
    if target is None and channel is None:
        raise Invalid("Give a place (--place), or a channel for all its places (--channel).")
    target_channel = _get_active_channel(tx, target.channel_id if target else str(channel))
    wiring = create_if_absent(
        tx,
        sql.WIRINGS,
        {
            "id": tx.new_id("wir"),
            "channel_id": target_channel.id,
            "place_id": target.id if target else None,
            "agent_id": listener.id,
            **rules.to_columns(),
            "project_id": projects.get(tx, project).id if project else None,
            "created_at": tx.now,
            "created_by": tx.actor,
        },
        on_conflict="(channel_id, coalesce(place_id, ''), agent_id) WHERE state = 'active'",
        event_data={"agent": listener.name, "channel": target_channel.name},
    )
    if wiring is None:
        raise Conflict(
            f"{listener.name} is already wired there. Change the wiring with `corral wiring "
            "edit`; list wirings with `corral wiring list`.",
            agent_id=listener.id,
        )
    if target is not None:
        destinations.ensure_destination(tx, listener.id, target)
    return wiring


def _get_active_channel(tx: Tx, channel: str) -> Channel:
    target = ops.get_channel(tx, channel)
    if target.state is not ChannelState.ACTIVE:
        raise Refused(f"Channel {target.name} was removed. Add it again first.", channel=target.id)
    return target


def change_wiring(
    tx: Tx,
    wiring: str,
    *,
    trigger: str = UNSET,
    pattern: str | None = UNSET,
    scope: str = UNSET,
    unmatched: str = UNSET,
    mode: str = UNSET,
    priority: int = UNSET,
) -> Wiring:
    """Change the rules of a wiring. Options that are left out keep their values.

    A new trigger needs its own pattern, or none. Existing sessions keep the messages that they
    received.
    """
    id = sql.WIRING_IDS.resolve(tx, wiring)
    tx.serialize(f"wiring:{id}")
    before = sql.WIRINGS.get(tx, id)
    if pattern is UNSET and trigger not in (UNSET, before.trigger):
        pattern = None
    changes: dict[str, Any] = {
        "trigger": trigger,
        "pattern": pattern,
        "scope": scope,
        "unmatched": unmatched,
        "mode": mode,
        "priority": priority,
    }
    rules = WiringRules(
        **{
            name: getattr(before, name) if value is UNSET else value
            for name, value in changes.items()
        }
    )
    return transition(
        tx,
        sql.WIRINGS,
        "change",
        id,
        event_data={"trigger": rules.trigger},
        **rules.to_columns(),
    )


def check_pattern(trigger: Trigger, pattern: str | None) -> str | None:
    """Validate the pattern of a trigger: a regular expression, a command's name, or None."""
    if trigger is Trigger.PATTERN and pattern:
        compile_pattern(pattern)
        return check_text(pattern, "The pattern", max_bytes=4 * MAX_NAME)
    if trigger is Trigger.COMMAND and pattern:
        return check_name(pattern.removeprefix("/"), "The command").lower()
    if trigger in (Trigger.PATTERN, Trigger.COMMAND):
        needed = "a pattern" if trigger is Trigger.PATTERN else "the name of a command"
        raise Invalid(f"The trigger {trigger} needs {needed}: use --pattern.", trigger=trigger)
    if pattern:
        raise Invalid(f"The trigger {trigger} takes no pattern. Omit it.", trigger=trigger)
    return None


def remove_wiring(tx: Tx, wiring: str) -> Wiring:
    """End a wiring: the agent no longer receives these messages.

    It may still send there; see `destinations.revoke`.
    """
    return transition(
        tx, sql.WIRINGS, "remove", sql.WIRING_IDS.resolve(tx, wiring), ended_at=tx.now
    )


def get_wiring(tx: Tx, wiring: str) -> Wiring:
    """Return a wiring by its id or a unique prefix of it."""
    return sql.WIRINGS.get(tx, sql.WIRING_IDS.resolve(tx, wiring))


def list_wirings(
    tx: Tx, *, all: bool = False, after: str | None = None, limit: int = 50
) -> Page[Wiring]:
    """List active wirings, oldest first. With `all`, also list removed ones."""
    listing = sql.ALL_WIRINGS if all else sql.ACTIVE_WIRINGS
    return listing.page(tx, after=after, limit=limit)


def list_covering(tx: Tx, target: Place | Channel) -> list[Wiring]:
    """Return the wirings that apply to a place: its own and those of its whole channel.

    When an agent has both, only that of the place applies. For a channel, return the wirings that
    apply to any new place on it.
    """
    channel_id, place_id = (
        (target.channel_id, target.id) if isinstance(target, Place) else (target.id, "")
    )
    rows = tx.all(sql.WIRINGS_OF_PLACE, channel_id=channel_id, place_id=place_id, limit=MAX_WIRINGS)
    wired_here = {row.agent_id for row in rows if row.place_id is not None}
    return [row for row in rows if row.place_id is not None or row.agent_id not in wired_here]
