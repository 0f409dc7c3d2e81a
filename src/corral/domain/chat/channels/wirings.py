"""Which agents hear which places, and where they may send to."""

from typing import Any

from corral.db.transitions import create, move
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.agents.model import AgentState
from corral.domain.chat import sql
from corral.domain.chat.channels import ops
from corral.domain.chat.inbound.regex import compiled
from corral.domain.chat.model import (
    Channel,
    ChannelState,
    Destination,
    DestinationState,
    Mode,
    Place,
    Scope,
    Trigger,
    Unheard,
    Wiring,
    check_word,
    one_of,
)
from corral.domain.mail import ops as mail
from corral.domain.mail.model import check_priority
from corral.domain.projects import ops as projects
from corral.kernel.errors import Conflict, Invalid, NotFound, Refused
from corral.kernel.pagination import MAX_LIMIT, Page, check_limit, decode_cursor, every, page_of
from corral.kernel.text import MAX_NAME, clean_text

MAX_WIRINGS = 50


def remove_channel(tx: Tx, channel: str) -> Channel:
    """Disconnect a channel: nothing comes or goes any more, its wirings end, and what waited to be
    sent is dropped, and says so."""
    found = ops.get_channel(tx, channel)
    for wiring in list(every(list_wirings, tx, limit=MAX_LIMIT)):
        if wiring.channel_id == found.id:
            remove_wiring(tx, wiring.id)
    for place in every(ops.list_places, tx, channel=found.name, limit=MAX_LIMIT):
        mail.drop_waiting(tx, place.mailbox, reason=f"the channel {found.name} was removed")
    return move(tx, sql.CHANNELS, "remove", found.id, ended_at=tx.now)


# -- wirings --------------------------------------------------------------------------------------


def add_wiring(
    tx: Tx,
    agent: str,
    *,
    place: str | None = None,
    channel: str | None = None,
    trigger: str = "always",
    pattern: str | None = None,
    scope: str = "all",
    unheard: str = "drop",
    mode: str = "shared",
    priority: int = 0,
    project: str | None = None,
) -> Wiring:
    """Let an agent hear one place, or all places of a channel; it may answer there, too.

    `trigger` says what wakes it: always, mention, sticky (and then the whole thread), pattern or
    command, which need `pattern`. What does not wake it is dropped, or kept and told with the next
    message that does. `mode` is shared (a session a place), thread or agent (one for all). What was
    held there because no agent heard it is heard now.
    """
    whose = agents.get(tx, agent)
    if whose.state is not AgentState.ACTIVE:
        raise Refused(f"{whose.name} is retired; restore it, or take another.", agent_id=whose.id)
    where = ops.get_place(tx, place) if place else None
    if where is None and channel is None:
        raise Invalid(
            "Say what it is to hear: one place (--place), or a channel with all its places "
            "(--channel)."
        )
    on = ops.get_channel(tx, where.channel_id if where is not None else str(channel))
    if on.state is not ChannelState.ACTIVE:
        raise Refused(f"{on.name} was removed; add it anew.", channel=on.id)
    if (trigger, mode) == (Trigger.STICKY, Mode.AGENT):
        raise Invalid(
            "A sticky wiring follows the thread or chat in which its agent was addressed, and a "
            "session for all chats follows none; take --session shared or thread.",
            trigger=trigger,
            mode=mode,
            reason="sticky_needs_thread",
        )
    made = create(
        tx,
        sql.WIRINGS,
        {
            "id": tx.new_id("wir"),
            "channel_id": on.id,
            "place_id": where.id if where else None,
            "agent_id": whose.id,
            **_manner(trigger, pattern, scope, unheard, mode, priority),
            "project_id": projects.get(tx, project).id if project else None,
            "created_at": tx.now,
            "created_by": tx.actor,
        },
        unless="(channel_id, coalesce(place_id, ''), agent_id) WHERE state = 'active'",
        note={"agent": whose.name, "channel": on.name},
    )
    if made is None:
        raise Conflict(
            f"{whose.name} hears that already; `corral wiring list` shows how, and `corral wiring "
            "change` says it anew.",
            agent_id=whose.id,
        )
    if where is not None:
        allow(tx, whose.id, where)
    return made


def change_wiring(
    tx: Tx,
    wiring: str,
    *,
    trigger: str,
    pattern: str | None = None,
    scope: str = "all",
    unheard: str = "drop",
    mode: str = "shared",
    priority: int = 0,
) -> Wiring:
    """Let an agent hear a place in another manner from now on; all of it is said anew.

    What it was told already stays with the sessions that it has.
    """
    return move(
        tx,
        sql.WIRINGS,
        "change",
        sql.WIRING_IDS.resolve(tx, wiring),
        note={"trigger": trigger},
        **_manner(trigger, pattern, scope, unheard, mode, priority),
    )


def _manner(
    trigger: str, pattern: str | None, scope: str, unheard: str, mode: str, priority: int
) -> dict[str, Any]:
    """How a wiring hears, as its columns; Invalid says which of it makes no sense."""
    on = one_of(Trigger, trigger)
    return {
        "trigger": on,
        "pattern": check_pattern(on, pattern),
        "scope": one_of(Scope, scope),
        "unheard": one_of(Unheard, unheard),
        "mode": one_of(Mode, mode),
        "priority": check_priority(priority),
    }


def check_pattern(trigger: Trigger, pattern: str | None) -> str | None:
    """A pattern that can be run, or a command's word; None where neither is wanted."""
    if trigger is Trigger.PATTERN and pattern:
        compiled(pattern)
        return clean_text(pattern, "The pattern", most=4 * MAX_NAME)
    if trigger is Trigger.COMMAND and pattern:
        return check_word(pattern.removeprefix("/"), "The command").lower()
    if trigger in (Trigger.PATTERN, Trigger.COMMAND):
        raise Invalid(
            f"The trigger {trigger} needs "
            f"{'a pattern' if trigger is Trigger.PATTERN else 'the word of a command'}; give it "
            "with --pattern.",
            trigger=trigger,
        )
    if pattern:
        raise Invalid(f"The trigger {trigger} has no pattern; leave it out.", trigger=trigger)
    return None


def remove_wiring(tx: Tx, wiring: str) -> Wiring:
    """Let an agent hear a place no more. Where it may send is another matter: see `revoke`."""
    return move(tx, sql.WIRINGS, "remove", sql.WIRING_IDS.resolve(tx, wiring), ended_at=tx.now)


def get_wiring(tx: Tx, wiring: str) -> Wiring:
    """A wiring by its id, which may be shortened."""
    return sql.WIRINGS.get(tx, sql.WIRING_IDS.resolve(tx, wiring))


def list_wirings(
    tx: Tx, *, all: bool = False, after: str | None = None, limit: int = 50
) -> Page[Wiring]:
    """Which agents hear which places, oldest first; with `all` also those that were removed."""
    (last,) = decode_cursor(after, "")
    query = sql.ALL_WIRINGS if all else sql.ACTIVE_WIRINGS
    rows = tx.all(query, after=last, limit=check_limit(limit) + 1)
    return page_of(rows, limit, lambda each: (each.id,))


def wirings_of(tx: Tx, where: Place | Channel) -> list[Wiring]:
    """The wirings that cover a place: its own, and those of its whole channel. Of two of one agent
    its own counts. Of a channel: those that cover whatever place appears on it."""
    on, place = (where.channel_id, where.id) if isinstance(where, Place) else (where.id, "")
    found = tx.all(sql.WIRINGS_OF_PLACE, channel_id=on, place_id=place, limit=MAX_WIRINGS)
    own = {wiring.agent_id for wiring in found if wiring.place_id is not None}
    return [each for each in found if each.place_id is not None or each.agent_id not in own]


# -- destinations ---------------------------------------------------------------------------------


def grant(tx: Tx, agent: str, place: str, *, name: str | None = None) -> Destination:
    """Let an agent send to a place, which it calls by a name of its own; at once."""
    whose = agents.get(tx, agent)
    where = ops.get_place(tx, place)
    tx.serialize(f"destinations:{whose.id}")
    wanted = check_word(name, "The name") if name else _free_name(tx, whose.id, where)
    found = tx.one(sql.DESTINATION_OF, agent_id=whose.id, place_id=where.id)
    named = tx.one(sql.DESTINATION_BY_NAME, agent_id=whose.id, name=wanted)
    if named is not None and named.place_id != where.id:
        raise Conflict(
            f"{whose.name} calls another place {wanted}; take another name.", name=wanted
        )
    if found is None:
        return _grant(tx, whose.id, where, wanted)
    keeps = name is None and found.state is DestinationState.GRANTED
    return move(
        tx,
        sql.DESTINATIONS,
        "regrant",
        found.id,
        note={"agent": whose.name},
        name=found.name if keeps else wanted,
        ended_at=None,
    )


def revoke(tx: Tx, agent: str, destination: str) -> Destination:
    """Let an agent send there no more, at once: what already waits is refused, too."""
    whose = agents.get(tx, agent)
    found = destination_of(tx, whose.id, clean_text(destination, "The name", most=MAX_NAME))
    if found is None:
        raise NotFound(
            f"{whose.name} has no destination {destination!r}; `corral destination list --agent "
            f"{whose.name}` shows those it has.",
            agent_id=whose.id,
        )
    return move(
        tx, sql.DESTINATIONS, "revoke", found.id, note={"agent": whose.name}, ended_at=tx.now
    )


def get_destination(tx: Tx, destination: str) -> Destination:
    """A destination by its id, which may be shortened."""
    return sql.DESTINATIONS.get(tx, sql.DESTINATION_IDS.resolve(tx, destination))


def list_destinations(
    tx: Tx, *, agent: str | None = None, after: str | None = None, limit: int = 50
) -> Page[Destination]:
    """Where an agent may send to, by name; or all that were ever granted, oldest first."""
    (last,) = decode_cursor(after, "")
    if agent is None:
        rows = tx.all(sql.ALL_DESTINATIONS, after=last, limit=check_limit(limit) + 1)
        return page_of(rows, limit, lambda each: (each.id,))
    rows = tx.all(
        sql.DESTINATIONS_OF_AGENT,
        agent_id=agents.get(tx, agent).id,
        after=last,
        limit=check_limit(limit) + 1,
    )
    return page_of(rows, limit, lambda each: (each.name,))


def allow(tx: Tx, agent_id: str, place: Place) -> None:
    """Whoever hears a place may answer there, unless somebody took that back."""
    # Two that hear it for the first time at the same moment would both grant it.
    tx.serialize(f"destinations:{agent_id}")
    if tx.one(sql.DESTINATION_OF, agent_id=agent_id, place_id=place.id) is None:
        _grant(tx, agent_id, place, _free_name(tx, agent_id, place))


def destination_of(tx: Tx, agent_id: str, named: str) -> Destination | None:
    """A destination that an agent has now, by its own name for it, or by the place's id."""
    found = tx.one(sql.DESTINATION_BY_NAME, agent_id=agent_id, name=named)
    if found is None and named.startswith("plc_"):
        found = tx.one(sql.DESTINATION_OF, agent_id=agent_id, place_id=named)
    return found if found is not None and found.state is DestinationState.GRANTED else None


def _grant(tx: Tx, agent_id: str, place: Place, name: str) -> Destination:
    made = create(
        tx,
        sql.DESTINATIONS,
        {
            "id": tx.new_id("dst"),
            "agent_id": agent_id,
            "name": name,
            "place_id": place.id,
            "created_at": tx.now,
            "created_by": tx.actor,
        },
        note={"agent_id": agent_id, "place": place.id},
    )
    assert made is not None
    return made


def _free_name(tx: Tx, agent_id: str, place: Place) -> str:
    """What an agent calls a place when nobody said: as people do, or by its id."""
    plain = "".join(c if c.isalnum() or c in "._-" else "-" for c in place.called.lower())[:60]
    plain = plain.strip("-._") or place.id
    taken = tx.one(sql.DESTINATION_BY_NAME, agent_id=agent_id, name=plain)
    return plain if taken is None or taken.place_id == place.id else place.id
