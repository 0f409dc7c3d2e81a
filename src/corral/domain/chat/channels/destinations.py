"""Destinations: the places that an agent may send to, each under the agent's own name for it."""

from corral.db.transitions import create, transition
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.chat import sql
from corral.domain.chat.channels import places
from corral.domain.chat.model import Destination, DestinationState, Place, check_name
from corral.kernel.errors import Conflict, NotFound
from corral.kernel.pagination import Page
from corral.kernel.validation import MAX_NAME, check_text

MAX_DEFAULT_NAME = 60


def grant(tx: Tx, agent: str, place: str, *, name: str | None = None) -> Destination:
    """Allow an agent to send to a place. Takes effect at once; idempotent.

    Raises Conflict when the agent uses `name` for another place.
    """
    holder = agents.get(tx, agent)
    target = places.get_place(tx, place)
    tx.serialize(f"destinations:{holder.id}")
    chosen_name = check_name(name, "The name") if name else _derive_name(tx, holder.id, target)
    current = tx.first(sql.DESTINATION_OF, agent_id=holder.id, place_id=target.id)
    same_name = tx.first(sql.DESTINATION_BY_NAME, agent_id=holder.id, name=chosen_name)
    if same_name is not None and same_name.place_id != target.id:
        raise Conflict(
            f"{holder.name} uses the name {chosen_name} for another place. Choose another name.",
            name=chosen_name,
        )
    if current is None:
        return _create(tx, holder.id, target, chosen_name)
    keep_name = name is None and current.state is DestinationState.GRANTED
    return transition(
        tx,
        sql.DESTINATIONS,
        "regrant",
        current.id,
        event_data={"agent": holder.name},
        name=current.name if keep_name else chosen_name,
        ended_at=None,
    )


def revoke(tx: Tx, agent: str, destination: str) -> Destination:
    """Forbid an agent to send to a place. Takes effect at once, also for queued messages."""
    holder = agents.get(tx, agent)
    granted = find_granted(tx, holder.id, check_text(destination, "The name", max_bytes=MAX_NAME))
    if granted is None:
        raise NotFound(
            f"{holder.name} has no destination {destination!r}. List them with "
            f"`corral destination list --agent {holder.name}`.",
            agent_id=holder.id,
        )
    return transition(
        tx,
        sql.DESTINATIONS,
        "revoke",
        granted.id,
        event_data={"agent": holder.name},
        ended_at=tx.now,
    )


def get_destination(tx: Tx, destination: str) -> Destination:
    """Return a destination by its id or a unique prefix of it."""
    return sql.DESTINATIONS.get(tx, sql.DESTINATION_IDS.resolve(tx, destination))


def list_destinations(
    tx: Tx, *, agent: str | None = None, after: str | None = None, limit: int = 50
) -> Page[Destination]:
    """List an agent's destinations by name, or all that were ever granted, oldest first."""
    if agent is None:
        return sql.ALL_DESTINATIONS.page(tx, after=after, limit=limit)
    agent_id = agents.get(tx, agent).id
    return sql.DESTINATIONS_OF_AGENT.page(tx, after=after, limit=limit, agent_id=agent_id)


def ensure_destination(tx: Tx, agent_id: str, place: Place) -> None:
    """Allow an agent to answer where it listens, unless the destination was revoked."""
    # Serialized: two messages that reach the agent at the same time would both grant it.
    tx.serialize(f"destinations:{agent_id}")
    if tx.first(sql.DESTINATION_OF, agent_id=agent_id, place_id=place.id) is None:
        _create(tx, agent_id, place, _derive_name(tx, agent_id, place))


def find_granted(tx: Tx, agent_id: str, name: str) -> Destination | None:
    """Return a granted destination by the agent's name for it or by the place's id, or None."""
    row = tx.first(sql.DESTINATION_BY_NAME, agent_id=agent_id, name=name)
    if row is None and name.startswith("plc_"):
        row = tx.first(sql.DESTINATION_OF, agent_id=agent_id, place_id=name)
    return row if row is not None and row.state is DestinationState.GRANTED else None


def _create(tx: Tx, agent_id: str, place: Place, name: str) -> Destination:
    return create(
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
        event_data={"agent_id": agent_id, "place": place.id},
    )


def _derive_name(tx: Tx, agent_id: str, place: Place) -> str:
    """Derive a name from the place's display name; use its id when that name is taken."""
    display = place.display_name.lower()
    slug = "".join(c if c.isalnum() or c in "._-" else "-" for c in display)[:MAX_DEFAULT_NAME]
    slug = slug.strip("-._") or place.id
    holder = tx.first(sql.DESTINATION_BY_NAME, agent_id=agent_id, name=slug)
    return slug if holder is None or holder.place_id == place.id else place.id
