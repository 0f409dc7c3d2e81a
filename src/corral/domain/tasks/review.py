"""Review submitted tasks: approve (accept) or reject them, by a reviewer or by a check.

The agent that did the work can neither approve nor reject it (`permissions.require_reviewer`). Any
other agent and any person can. A task with a check is reviewed by the exit code of that check, and
`lifecycle.submit` accepts by policy where `tasks.auto_accept` is set.
"""

import msgspec

from corral.db.transitions import transition
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.settings import ops as settings
from corral.domain.tasks import sql
from corral.domain.tasks.graph_lock import lock_task
from corral.domain.tasks.model import CommandResult, Evidence, LocatedTask, Task, TaskState
from corral.domain.tasks.notifications import notify
from corral.domain.tasks.permissions import require_reviewer
from corral.domain.tasks.propagation import apply_consequences
from corral.domain.tasks.queries import find, with_dependencies
from corral.kernel.clock import MINUTE
from corral.kernel.errors import Conflict, Invalid
from corral.kernel.validation import check_optional_text, check_text, encode_json

MAX_CHECKS = 20
"""How many results of checks the evidence of a task keeps; older ones are dropped."""


def accept(tx: Tx, task: Task | str, *, note: str | None = None, agent: str | None = None) -> Task:
    """Approve a submitted task. Idempotent.

    Raises Refused when the caller is the agent that did the work.
    """
    reviewed = require_reviewer(tx, task, agent)
    if reviewed.state is TaskState.DONE:
        return with_dependencies(tx, reviewed)
    note = check_optional_text(note, "The note")
    after = transition(
        tx,
        sql.TASKS,
        "accept",
        reviewed.id,
        event_data={"by": agents.resolve_actor(tx, agent)} | ({"note": note} if note else {}),
        ended_at=tx.now,
        reason=note,
    )
    return with_dependencies(tx, apply_consequences(tx, reviewed, after))


def reject(tx: Tx, task: Task | str, reason: str, *, agent: str | None = None) -> Task:
    """Send a submitted task back to be done again, with a reason.

    Raises Refused when the caller is the agent that did the work.
    """
    reason = check_text(reason, "The reason")
    reviewed = require_reviewer(tx, task, agent)
    return with_dependencies(tx, _reject(tx, reviewed, reason, by=agents.resolve_actor(tx, agent)))


def _reject(
    tx: Tx, submitted: Task, reason: str, *, by: str, evidence: Evidence | None = None
) -> Task:
    recorded = evidence or submitted.evidence
    after = transition(
        tx,
        sql.TASKS,
        "reject",
        submitted.id,
        expected_fence=submitted.fence,
        event_data={"by": by, "reason": reason},
        reason=reason,
        check_lease_until=None,
        evidence=encode_json(recorded, "The evidence") if recorded else None,
    )
    if submitted.agent_id is not None:
        name = agents.get(tx, submitted.agent_id).name
        notify(tx, f"agent:{name}", after, "rejected", reason)
    return apply_consequences(tx, submitted, after)


# -- checks ------------------------------------------------------------------------------------


def begin_check(tx: Tx, located: LocatedTask) -> Task:
    """Claim the check of a submitted task, so that no other process runs it meanwhile.

    The claim is a lease. Raises Invalid when the task has no check, and Conflict when the check
    cannot be run now, or when the task was claimed again since it was located.
    """
    candidate = lock_task(tx, located.id)
    if candidate.check_command is None:
        raise Invalid(f"{candidate.id} has no check. Accept or reject it instead.", id=candidate.id)
    claimed = _claim_check(tx, candidate, located.fence)
    if claimed is None:
        current = sql.TASKS.get(tx, candidate.id)
        problem = f"it is {current.state}"
        if current.state is TaskState.SUBMITTED:
            problem = "its check is already running"
        raise Conflict(f"Cannot check {current.id}: {problem}.", id=current.id, state=current.state)
    return claimed


def locate_check(tx: Tx, task: str) -> LocatedTask:
    """Return a task with the directory in which its check runs."""
    return tx.one(sql.LOCATED, id=find(tx, task).id)


def list_pending_checks(tx: Tx) -> list[LocatedTask]:
    """List the tasks of all machines whose check waits and is not claimed, oldest first."""
    return tx.all(sql.PENDING_CHECKS, now=tx.now)


def _claim_check(tx: Tx, task: Task, fence: int) -> Task | None:
    timeout_ms = int(settings.get_value(tx, "tasks.check_timeout_ms", project=task.project_id))
    return tx.first(
        sql.CLAIM_CHECK,
        id=task.id,
        fence=fence,
        now=tx.now,
        until=tx.now + timeout_ms + MINUTE,
    )


def conclude_check(tx: Tx, task: Task, result: CommandResult) -> Task:
    """Accept the task when its check exited with 0, or else reject it; the output is evidence.

    Does nothing when the task was reviewed or claimed again meanwhile.
    """
    locked = lock_task(tx, task)
    if locked.state is not TaskState.SUBMITTED or locked.fence != task.fence:
        return with_dependencies(tx, locked)
    evidence = locked.evidence or Evidence()
    evidence = msgspec.structs.replace(evidence, checks=[*evidence.checks, result][-MAX_CHECKS:])
    if result.exit_code == 0:
        after = transition(
            tx,
            sql.TASKS,
            "accept",
            locked.id,
            expected_fence=locked.fence,
            event_data={"by": "check"},
            ended_at=tx.now,
            check_lease_until=None,
            evidence=encode_json(evidence, "The evidence"),
        )
        return with_dependencies(tx, apply_consequences(tx, locked, after))
    reason = f"its check exited with {result.exit_code}"
    last_line = (result.output or "").strip().rpartition("\n")[2][:200]
    if last_line:
        reason += f": {last_line}"
    rejected = _reject(tx, locked, reason, by="check", evidence=evidence)
    notify(tx, rejected.lead, rejected, "rejected", reason)
    return with_dependencies(tx, rejected)
