"""The line of queued runs: who is next on a machine, and who is about to start it."""

from collections.abc import Sequence

from corral.db.tx import Tx
from corral.domain.nodes import ops as nodes
from corral.domain.nodes.model import Node
from corral.domain.runs import sql
from corral.domain.runs.model import Run
from corral.domain.settings import ops as settings
from corral.kernel.clock import SECOND
from corral.kernel.errors import NotFound
from corral.kernel.text import encode_json

# Whoever starts a queued run has so long until others think of it again.
CLAIM_MS = 30 * SECOND


def room_for(tx: Tx, *, host: str | None = None) -> int:
    """How many more runs may be started now: of all that may go at once, and on a machine of the
    slots that it has where a daemon serves it."""
    most = int(settings.value(tx, "runs.max_at_once"))
    room = most - int(tx.value(sql.COUNT_ACTIVE))
    node = nodes.serving(tx, host) if host is not None else None
    if node is not None:
        room = min(room, _free_slots(tx, node))
    return max(0, room)


def _free_slots(tx: Tx, node: Node) -> int:
    return node.slots - int(tx.value(sql.COUNT_ACTIVE_OF_HOST, host=node.name))


def can_claim(tx: Tx, *, host: str) -> bool:
    """Whether there is room for one more than those that others are about to start: among all that
    may go at once, and on a machine among those that are to start there."""
    if room_for(tx) <= int(tx.value(sql.COUNT_CLAIMED, now=tx.now)):
        return False
    node = nodes.serving(tx, host)
    if node is None:
        return True
    claimed = tx.value(sql.COUNT_CLAIMED_OF_HOST, now=tx.now, host=host, node_id=node.id)
    return _free_slots(tx, node) > int(claimed)


def waits_for_claims(tx: Tx, *, host: str) -> bool:
    """Whether a run that could start on a machine is kept from it by nothing but those that others
    are about to start."""
    if not room_for(tx, host=host) or can_claim(tx, host=host):
        return False
    return next_queued(tx, host=host) is not None


def next_queued(tx: Tx, *, host: str, passed: Sequence[str] = ()) -> Run | None:
    """The run that is to start next on a machine: fair between projects, then oldest first.

    It must run there, or may run anywhere, and all the labels that it wants are offered there.
    Those in `passed` are passed over: single runs, all of an agent, and of a project all that
    need not run there.
    """
    node = nodes.serving(tx, host)
    return tx.one(
        sql.NEXT_QUEUED,
        now=tx.now,
        host=host,
        labels=encode_json(node.labels if node is not None else [], "The labels"),
        passed=encode_json(list(passed), "What is passed over"),
    )


def claim(tx: Tx, id: str, *, host: str) -> bool:
    """Whoever is about to start a queued run says so: nobody else gets it, nor its place among
    those that go at once, for a while. False when another one did.

    Without the place two would start two runs for one, and the one that should have been next might
    find it taken, and wait behind those that came after it.
    """
    tx.serialize("runs")
    if not can_claim(tx, host=host):
        return False
    node = nodes.serving(tx, host)
    node_id = node.id if node is not None else None
    return bool(tx.run(sql.CLAIM, id=id, now=tx.now, until=tx.now + CLAIM_MS, node_id=node_id))


def unclaim(tx: Tx, id: str) -> None:
    """Whoever wanted to start a queued run does not: others may."""
    tx.run(sql.UNCLAIM, id=id)


def put_off(tx: Tx, id: str, *, reason: str) -> None:
    """Whoever wanted to start a queued run could not, and the next one might not either: those
    behind it go first for a while."""
    tx.several()
    due = tx.now + CLAIM_MS
    if (run := tx.one(sql.PUT_OFF, id=id, due=due, reason=reason)) is not None:
        told = {"until": due, "reason": reason}
        tx.note("run", "put_off", run.id, project_id=run.project_id, data=told)


def agent_has_room(tx: Tx, agent_id: str) -> bool:
    """Whether an agent may have one more run going."""
    from corral.domain.agents import ops as agents

    try:
        most = agents.get(tx, agent_id).limits.max_runs
    except NotFound:
        return True  # nobody can say more of it
    return most is None or int(tx.value(sql.COUNT_ACTIVE_OF_AGENT, agent_id=agent_id)) < most


def next_due(tx: Tx) -> int | None:
    """When the next queued run may be started that may not yet: it is not due, or is claimed."""
    due: int | None = tx.value(sql.NEXT_DUE, now=tx.now)
    return due
