"""Machines joining and leaving a store, and the lead of each loop."""

from collections.abc import Sequence
from typing import Any

from corral.db.transitions import create, move
from corral.db.tx import Tx
from corral.domain.nodes import sql
from corral.domain.nodes.model import Beat, Lead, Node
from corral.kernel.clock import SECOND
from corral.kernel.errors import Held, Invalid
from corral.kernel.lease import lease_end, taken_over
from corral.kernel.pagination import LAST_ID, Page, check_limit, decode_cursor, page_of
from corral.kernel.text import MAX_NAME, check_int, clean_text, encode_json

KEPT = sql.KEPT
LEASE_MS = 15 * SECOND
MAX_SLOTS = 10_000
MAX_LABELS = 8_192  # bytes, all together


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
    """Enter this boot of this host, or take over from the daemon that heartbeat for it before.

    The fence in the answer is what heartbeats must show; it ends the earlier daemon's.
    """
    if not 0 <= check_int(slots, "The number of slots") <= MAX_SLOTS:
        raise Invalid(f"A node has 0 to {MAX_SLOTS} slots, not {slots}.", slots=slots)
    clean_text(name, "The node's name", most=MAX_NAME)
    clean_text(boot_id, "The boot id", most=MAX_NAME)
    fresh: dict[str, Any] = {
        "owner": clean_text(owner, "The owner", most=MAX_NAME),
        "slots": slots,
        "labels": encode_json(
            sorted({clean_text(label, "A label", most=MAX_NAME) for label in labels}),
            "The labels",
            most=MAX_LABELS,
        ),
        "lease_until": lease_end(tx.now, lease_ms),
        "seen_at": tx.now,
    }
    made = create(
        tx,
        sql.NODES,
        {
            "id": tx.new_id("nod"),
            "name": name,
            "boot_id": boot_id,
            "fence": 1,
            "joined_at": tx.now,
            **fresh,
        },
        unless="(name, boot_id)",
    )
    if made is not None:
        return made
    tx.serialize(f"node:{name}")
    found = tx.one(sql.BY_BOOT, name=name, boot_id=boot_id)
    assert found is not None
    return move(
        tx, sql.NODES, "rejoin", found.id, fence=found.fence + 1, guard=found.fence, **fresh
    )


def heartbeat(tx: Tx, node: Node, *, lease_ms: int = LEASE_MS) -> Node:
    """Renew a node's lease; Held when another daemon joined as this node, or it was given up."""
    renewed = tx.one(
        sql.HEARTBEAT, id=node.id, fence=node.fence, now=tx.now, until=lease_end(tx.now, lease_ms)
    )
    if renewed is None:
        found = sql.NODES.get(tx, node.id)
        if found.fence != node.fence:
            raise taken_over(
                f"Node {node.name}", yours=node.fence, found=found.fence, owner=found.owner
            )
        raise Held(f"Node {node.name} is {found.state}; join again.", state=found.state)
    return renewed


def beat(tx: Tx, node: Node, *, leads: Sequence[str] = (), lease_ms: int = LEASE_MS) -> Beat:
    """Renew a node's lease, and take or keep the lead of every loop that nobody else leads.

    Held as with `heartbeat`; no lead is taken then.
    """
    renewed = heartbeat(tx, node, lease_ms=lease_ms)
    owner = renewed.owner or renewed.id
    # In one order for all daemons: none waits for another that waits for it.
    return Beat(renewed, [_lead(tx, name, owner, lease_ms) for name in sorted(leads)])


def _lead(tx: Tx, name: str, owner: str, lease_ms: int) -> Lead:
    """Who leads a loop, after this owner tried to."""
    try:
        return take_lead(tx, name, owner=owner, lease_ms=lease_ms)
    except Held as error:
        return Lead(name, str(error.details["owner"]), 0, error.details["lease_until"] or 0)


def leave(tx: Tx, node: Node) -> Node:
    """Say good-bye, so that nobody waits for the lease to run out."""
    return move(tx, sql.NODES, "leave", node.id, guard=node.fence)


def lose_silent(tx: Tx, *, limit: int = 100) -> list[Node]:
    """Mark the nodes lost whose lease has run out; their late heartbeats are refused from then."""
    return [
        move(tx, sql.NODES, "lose", id)
        for (id,) in tx.run(sql.SILENT, now=tx.now, limit=check_limit(limit))
    ]


def get(tx: Tx, id: str) -> Node:
    """A node by its id, which may be shortened."""
    return sql.NODES.get(tx, sql.IDS.resolve(tx, id))


def serving(tx: Tx, name: str) -> Node | None:
    """The node of a host whose daemon is there now; None: nobody serves this store there."""
    return tx.one(sql.SERVING, name=clean_text(name, "The node's name", most=MAX_NAME), now=tx.now)


def is_silent(tx: Tx, name: str, *, since: int) -> bool:
    """Whether no daemon of a host was heard since a moment."""
    return int(tx.value(sql.LAST_SEEN, name=name) or 0) < since


def list_nodes(tx: Tx, *, after: str | None = None, limit: int = 50) -> Page[Node]:
    """All nodes that joined and were not forgotten yet, newest first."""
    (id,) = decode_cursor(after, LAST_ID)
    rows = tx.all(sql.LIST, id=id, limit=check_limit(limit) + 1)
    return page_of(rows, limit, lambda node: (node.id,))


def take_lead(tx: Tx, name: str, *, owner: str, lease_ms: int = LEASE_MS) -> Lead:
    """Become, or stay, the one who runs a loop; Held while another one leads."""
    taken = tx.one(
        sql.TAKE_LEAD,
        name=clean_text(name, "The loop's name", most=MAX_NAME),
        owner=clean_text(owner, "The owner", most=MAX_NAME),
        now=tx.now,
        until=lease_end(tx.now, lease_ms),
    )
    if taken is None:
        leader = tx.one(sql.LEADER, name=name)
        by = leader.owner if leader else "another"
        raise Held(
            f"{by} leads {name}.", owner=by, lease_until=leader.lease_until if leader else None
        )
    return taken


def leaders(tx: Tx) -> list[Lead]:
    """Who leads each loop, or led it last; whose lease has run out leads no more."""
    return tx.all(sql.LEADERS)


def yield_lead(tx: Tx, name: str, *, owner: str) -> bool:
    """Let another one lead at once; False when it was not ours any more."""
    clean_text(name, "The loop's name", most=MAX_NAME)
    clean_text(owner, "The owner", most=MAX_NAME)
    return bool(tx.run(sql.YIELD_LEAD, name=name, owner=owner))
