"""Dispatch of queued runs: which run starts next on a machine, and the claim to start it."""

from collections.abc import Sequence

from corral.db.tx import Tx
from corral.domain.nodes import ops as nodes
from corral.domain.nodes.model import Node
from corral.domain.runs import sql
from corral.domain.runs.model import Run
from corral.domain.settings import ops as settings
from corral.kernel.clock import SECOND
from corral.kernel.errors import NotFound
from corral.kernel.validation import encode_json

CLAIM_MS = 30 * SECOND
"""How long a claim on a queued run lasts. Another dispatcher may start the run afterwards."""


def count_free_slots(tx: Tx, *, host: str | None = None) -> int:
    """Count how many more runs may start now.

    Bounded by `runs.max_concurrent`, and on a host with a daemon by the slots of its node.
    """
    limit = int(settings.get_value(tx, "runs.max_concurrent"))
    free = limit - int(tx.value(sql.COUNT_ACTIVE))
    node = nodes.daemon_of(tx, host) if host is not None else None
    if node is not None:
        free = min(free, _count_free_slots_of(tx, node))
    return max(0, free)


def _count_free_slots_of(tx: Tx, node: Node) -> int:
    return node.slots - int(tx.value(sql.COUNT_ACTIVE_OF_HOST, host=node.name))


def can_claim(tx: Tx, *, host: str) -> bool:
    """Whether a slot is free after subtracting the runs that are claimed but not started yet.

    Both the global limit and the slots of the host's node must leave room.
    """
    if count_free_slots(tx) <= int(tx.value(sql.COUNT_CLAIMED, now=tx.now)):
        return False
    node = nodes.daemon_of(tx, host)
    if node is None:
        return True
    claimed = tx.value(sql.COUNT_CLAIMED_OF_HOST, now=tx.now, host=host, node_id=node.id)
    return _count_free_slots_of(tx, node) > int(claimed)


def is_blocked_by_claims(tx: Tx, *, host: str) -> bool:
    """Whether a queued run could start here if pending claims did not hold all free slots."""
    if not count_free_slots(tx, host=host) or can_claim(tx, host=host):
        return False
    return find_next_queued(tx, host=host) is not None


def find_next_queued(tx: Tx, *, host: str, skipped: Sequence[str] = ()) -> Run | None:
    """Return the run to start next on a host: fair between projects, then oldest first.

    The run is pinned to the host or may run anywhere, and the host's node offers all its labels.
    `skipped` contains ids of runs, of agents (all their runs), and of projects (all their runs
    that are not pinned to this host).
    """
    node = nodes.daemon_of(tx, host)
    return tx.first(
        sql.NEXT_QUEUED,
        now=tx.now,
        host=host,
        labels=encode_json(node.labels if node is not None else [], "The labels"),
        skipped=encode_json(list(skipped), "The skipped ids"),
    )


def claim(tx: Tx, id: str, *, host: str) -> bool:
    """Claim a queued run and a slot for `CLAIM_MS`; False when another dispatcher was faster.

    The slot is part of the claim: otherwise two dispatchers would start two runs for one free slot,
    and the run that was next could lose it to a later one.
    """
    tx.serialize("runs")
    if not can_claim(tx, host=host):
        return False
    node = nodes.daemon_of(tx, host)
    node_id = node.id if node is not None else None
    return bool(tx.run(sql.CLAIM, id=id, now=tx.now, until=tx.now + CLAIM_MS, node_id=node_id))


def release_claim(tx: Tx, id: str) -> None:
    """Release the claim on a queued run, so that another dispatcher can start it."""
    tx.run(sql.RELEASE_CLAIM, id=id)


def defer(tx: Tx, id: str, *, reason: str) -> None:
    """Defer a queued run that could not be started, so that the runs behind it go first."""
    tx.begin()
    due = tx.now + CLAIM_MS
    if (run := tx.first(sql.DEFER, id=id, due=due, reason=reason)) is not None:
        data = {"until": due, "reason": reason}
        tx.emit("run", "defer", run.id, project_id=run.project_id, data=data)


def has_agent_capacity(tx: Tx, agent_id: str) -> bool:
    """Whether an agent may have one more active run."""
    from corral.domain.agents import ops as agents

    try:
        limit = agents.get(tx, agent_id).limits.max_runs
    except NotFound:
        return True  # a deleted agent has no limits
    return limit is None or int(tx.value(sql.COUNT_ACTIVE_OF_AGENT, agent_id=agent_id)) < limit


def get_next_due(tx: Tx) -> int | None:
    """Return the next time at which a queued run becomes due or its claim expires."""
    due: int | None = tx.value(sql.NEXT_DUE, now=tx.now)
    return due
