"""Membership of machines, heartbeats, and leader election of the daemon loops."""

from collections.abc import Sequence
from typing import Any

from corral.db.transitions import create_if_absent, transition
from corral.db.tx import Tx
from corral.domain.nodes import sql
from corral.domain.nodes.model import Leadership, Node, NodeHeartbeat
from corral.kernel.clock import SECOND
from corral.kernel.errors import Held, Invalid
from corral.kernel.lease import lease_expiry, stale_fence_error
from corral.kernel.pagination import Page, check_limit
from corral.kernel.validation import MAX_NAME, check_int, check_text, encode_json

RETENTION = sql.RETENTION
LEASE_MS = 15 * SECOND
MAX_SLOTS = 10_000
MAX_LABELS = 8_192  # bytes of all labels together


def join(
    tx: Tx,
    name: str,
    boot_id: str,
    *,
    owner: str,
    slots: int = 0,
    labels: Sequence[str] = (),
    lease_ms: int = LEASE_MS,
) -> Node:
    """Join with this boot of this host, or take over from an earlier daemon of it.

    Heartbeats must carry the returned fence. Heartbeats of the earlier daemon are rejected.
    """
    if not 0 <= check_int(slots, "The number of slots") <= MAX_SLOTS:
        raise Invalid(f"Invalid slots {slots}: expected 0 to {MAX_SLOTS}.", slots=slots)
    check_text(name, "The node's name", max_bytes=MAX_NAME)
    check_text(boot_id, "The boot id", max_bytes=MAX_NAME)
    columns: dict[str, Any] = {
        "owner": check_text(owner, "The owner", max_bytes=MAX_NAME),
        "slots": slots,
        "labels": encode_json(
            sorted({check_text(label, "A label", max_bytes=MAX_NAME) for label in labels}),
            "The labels",
            max_bytes=MAX_LABELS,
        ),
        "lease_until": lease_expiry(tx.now, lease_ms),
        "seen_at": tx.now,
    }
    created = create_if_absent(
        tx,
        sql.NODES,
        {
            "id": tx.new_id("nod"),
            "name": name,
            "boot_id": boot_id,
            "fence": 1,
            "joined_at": tx.now,
            **columns,
        },
        on_conflict="(name, boot_id)",
    )
    if created is not None:
        return created
    tx.serialize(f"node:{name}")
    node = tx.one(sql.BY_BOOT, name=name, boot_id=boot_id)
    return transition(
        tx, sql.NODES, "rejoin", node.id, fence=node.fence + 1, expected_fence=node.fence, **columns
    )


def heartbeat(tx: Tx, node: Node, *, lease_ms: int = LEASE_MS) -> Node:
    """Renew a node's lease; raises Held when another daemon joined as this node, or it is lost."""
    renewed = tx.first(
        sql.HEARTBEAT,
        id=node.id,
        fence=node.fence,
        now=tx.now,
        until=lease_expiry(tx.now, lease_ms),
    )
    if renewed is None:
        current = sql.NODES.get(tx, node.id)
        if current.fence != node.fence:
            raise stale_fence_error(
                f"Node {node.name}", yours=node.fence, current=current.fence, owner=current.owner
            )
        raise Held(
            f"The node {node.name} is {current.state}. Restart its daemon with `corral up`.",
            state=current.state,
        )
    return renewed


def renew(
    tx: Tx, node: Node, *, loops: Sequence[str] = (), lease_ms: int = LEASE_MS
) -> NodeHeartbeat:
    """Renew a node's lease, and acquire or renew the leadership of every loop that is free.

    Raises Held as `heartbeat` does; no leadership is acquired then.
    """
    renewed = heartbeat(tx, node, lease_ms=lease_ms)
    owner = renewed.owner or renewed.id
    # Sorted, to avoid deadlocks between daemons.
    return NodeHeartbeat(renewed, [_try_lead(tx, name, owner, lease_ms) for name in sorted(loops)])


def _try_lead(tx: Tx, name: str, owner: str, lease_ms: int) -> Leadership:
    """Try to lead a loop; returns its current leadership."""
    try:
        return acquire_leadership(tx, name, owner=owner, lease_ms=lease_ms)
    except Held as error:
        return Leadership(name, str(error.details["owner"]), 0, error.details["lease_until"] or 0)


def leave(tx: Tx, node: Node) -> Node:
    """Leave the store, so that others need not wait for the lease to expire."""
    return transition(tx, sql.NODES, "leave", node.id, expected_fence=node.fence)


def mark_lost(tx: Tx, *, limit: int = 100) -> list[Node]:
    """Mark nodes with an expired lease as lost; their late heartbeats are rejected."""
    return [
        transition(tx, sql.NODES, "lose", id)
        for (id,) in tx.run(sql.EXPIRED, now=tx.now, limit=check_limit(limit))
    ]


def get(tx: Tx, id: str) -> Node:
    """Return a node by its id, which may be shortened."""
    return sql.NODES.get(tx, sql.IDS.resolve(tx, id))


def daemon_of(tx: Tx, name: str) -> Node | None:
    """Return the node of a host with a live daemon; None: no daemon serves the store there."""
    return tx.first(
        sql.SERVED_HOST, name=check_text(name, "The node's name", max_bytes=MAX_NAME), now=tx.now
    )


def is_silent(tx: Tx, name: str, *, since: int) -> bool:
    """Whether no daemon of a host has sent a heartbeat since a time."""
    return int(tx.value(sql.LAST_SEEN, name=name) or 0) < since


def list_nodes(tx: Tx, *, after: str | None = None, limit: int = 50) -> Page[Node]:
    """List all nodes, newest first."""
    return sql.ALL.page(tx, after=after, limit=limit)


def acquire_leadership(tx: Tx, name: str, *, owner: str, lease_ms: int = LEASE_MS) -> Leadership:
    """Acquire or renew the leadership of a loop; raises Held while another owner leads it."""
    leadership = tx.first(
        sql.ACQUIRE_LEADERSHIP,
        name=check_text(name, "The loop's name", max_bytes=MAX_NAME),
        owner=check_text(owner, "The owner", max_bytes=MAX_NAME),
        now=tx.now,
        until=lease_expiry(tx.now, lease_ms),
    )
    if leadership is None:
        leader = tx.first(sql.LEADER, name=name)
        holder = leader.owner if leader else "another daemon"
        raise Held(
            f"The loop {name} is led by {holder} until its lease expires.",
            owner=holder,
            lease_until=leader.lease_until if leader else None,
        )
    return leadership


def list_leaders(tx: Tx) -> list[Leadership]:
    """List the current or last leader of each loop; compare `lease_until` with the time."""
    return tx.all(sql.LEADERS)


def release_leadership(tx: Tx, name: str, *, owner: str) -> bool:
    """Release the leadership of a loop immediately; False when this owner did not lead it."""
    check_text(name, "The loop's name", max_bytes=MAX_NAME)
    check_text(owner, "The owner", max_bytes=MAX_NAME)
    return bool(tx.run(sql.RELEASE_LEADERSHIP, name=name, owner=owner))
