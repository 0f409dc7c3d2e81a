"""The life of a task while an agent works on it: claim, renew, submit, fail and release.

A claim holds a lease with a fencing token. When the lease expires, or the run of the task ends
without a submission, the task can be claimed again; at `tasks.max_attempts` it fails. Its lead is
notified once for each such event.
"""

from collections.abc import Sequence
from heapq import merge
from typing import Any

from corral.db.statement import encode_rows
from corral.db.transitions import transition
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.agents.model import Agent
from corral.domain.projects import ops as projects
from corral.domain.settings import ops as settings
from corral.domain.tasks import sql
from corral.domain.tasks.graph import can_share_files
from corral.domain.tasks.graph_lock import lock_graph
from corral.domain.tasks.model import Evidence, RunningTask, Task, TaskState, parse_evidence
from corral.domain.tasks.notifications import notify
from corral.domain.tasks.permissions import (
    require_claimant,
    require_claimant_or_lead,
)
from corral.domain.tasks.propagation import apply_consequences
from corral.domain.tasks.queries import find_in_project, with_dependencies
from corral.kernel.errors import Held, Refused
from corral.kernel.lease import lease_expiry
from corral.kernel.validation import MAX_NAME, check_optional_text, check_text, encode_json

CLAIM_BATCH = 20
"""How many claimable tasks a claim reads at a time."""
MAX_EVIDENCE = 256 * 1024
LEASE_EXPIRED = "the lease of its agent expired"


# -- claims --------------------------------------------------------------------------------------


def claim(
    tx: Tx,
    project: str,
    agent: str,
    *,
    key: str | None = None,
    role: str | None = None,
    run: str | None = None,
    lease_ms: int | None = None,
) -> Task | None:
    """Claim the next ready task, or the task with this key; None when there is none.

    Highest priority first, then ready for the longest time. Considers tasks of `role`, or else of
    the agent's own role and without a role. A task that shares files with a running task is held
    back. Renew the lease with `renew`; with `run`, the heartbeats of the run renew it.
    """
    claimant = agents.get_active(tx, agent)
    project_id = lock_graph(tx, projects.get(tx, project).id)
    until = _compute_lease_end(tx, project_id, lease_ms)
    for expired in tx.all(sql.EXPIRED, project=project_id, now=tx.now, limit=100):
        _return_task(tx, expired, LEASE_EXPIRED)
    if key is not None:
        task: Task | None = _require_claimable(tx, find_in_project(tx, key, project_id), claimant)
    else:
        requested_role = check_optional_text(role, "The role", max_bytes=MAX_NAME)
        task = _pick_claimable(tx, project_id, claimant, requested_role)
    return None if task is None else with_dependencies(tx, _claim(tx, task, claimant, until, run))


def claim_started(tx: Tx, task: Task, agent: str, *, run: str, dir: str) -> Task:
    """Claim a task for an agent that Corral starts, in a directory that Corral made.

    The check of the task runs in `dir`, so only this internal path can set it.
    """
    claimant = agents.get_active(tx, agent)
    until = _compute_lease_end(tx, lock_graph(tx, task.project_id), None)
    claimable = _require_claimable(tx, sql.TASKS.get(tx, task.id), claimant)
    return _claim(tx, claimable, claimant, until, run, dir)


def _claim(
    tx: Tx, task: Task, claimant: Agent, until: int, run: str | None, dir: str | None = None
) -> Task:
    return transition(
        tx,
        sql.TASKS,
        "claim",
        task.id,
        event_data={"agent": claimant.name, "fence": task.fence + 1}
        | ({"run": run} if run else {}),
        agent_id=claimant.id,
        run_id=check_optional_text(run, "The run", max_bytes=MAX_NAME),
        dir=dir,
        fence=task.fence + 1,
        lease_until=until,
        attempts=task.attempts + 1,
        started_at=tx.now,
    )


def _compute_lease_end(tx: Tx, project_id: str, lease_ms: int | None) -> int:
    if lease_ms is None:
        lease_ms = int(settings.get_value(tx, "tasks.lease_ms", project=project_id))
    return lease_expiry(tx.now, lease_ms)


def _require_claimable(tx: Tx, task: Task, claimant: Agent) -> Task:
    """Check a task that was requested by key, and raise an error that says what prevents the claim.

    A state other than ready is rejected by the transition itself.
    """
    if task.assignee_id not in (None, claimant.id):
        name = agents.get(tx, task.assignee_id or "").name
        raise Refused(f"{task.key} is assigned to {name}. Claim another task.", id=task.id)
    if task.state is TaskState.READY:
        conflicting = _find_conflicting(task, tx.all(sql.RUNNING_TASKS, project=task.project_id))
        if conflicting is not None:
            raise Held(
                f"{task.key} shares files with {conflicting.id}, which is running. Claim another "
                "task, or wait until that one is submitted.",
                id=task.id,
                conflicts_with_id=conflicting.id,
            )
    return task


def _pick_claimable(tx: Tx, project_id: str, claimant: Agent, role: str | None) -> Task | None:
    """Return the first claimable task that shares no file with a running one.

    Tasks that do share a file are marked as held back until the running task ends, so no later
    claim reads them again.
    """
    running: list[RunningTask] | None = None
    while True:
        candidates = _list_claimable(tx, project_id, claimant, role)
        held_back: dict[str, list[str]] = {}
        for task in candidates:
            conflicting = None
            if task.files:
                if running is None:
                    running = tx.all(sql.RUNNING_TASKS, project=project_id)
                conflicting = _find_conflicting(task, running)
            if conflicting is None:
                _hold_back(tx, held_back)
                return task
            held_back.setdefault(conflicting.id, []).append(task.id)
        if not candidates:
            return None
        _hold_back(tx, held_back)


def _list_claimable(tx: Tx, project_id: str, claimant: Agent, role: str | None) -> list[Task]:
    """Return the first tasks that an agent may claim, in the order of claims."""
    params: dict[str, Any] = {"project": project_id, "limit": CLAIM_BATCH}
    queues = [tx.all(sql.CLAIMABLE_BY_ASSIGNEE, agent=claimant.id, **params)]
    effective_role = role or claimant.role
    if effective_role is None:
        queues.append(tx.all(sql.CLAIMABLE, **params))
    else:
        queues.append(tx.all(sql.CLAIMABLE_FOR_ROLE, role=effective_role, **params))
        if role is None:
            queues.append(tx.all(sql.CLAIMABLE_WITHOUT_ROLE, **params))
    ordered = merge(*queues, key=lambda task: (-task.priority, task.ready_at, task.id))
    return list(ordered)[:CLAIM_BATCH]


def _find_conflicting(task: Task, running: Sequence[RunningTask]) -> RunningTask | None:
    return next((other for other in running if can_share_files(task.files, other.files)), None)


def _hold_back(tx: Tx, held_back: dict[str, list[str]]) -> None:
    for running_id, ids in held_back.items():
        tx.run(sql.HOLD_BACK, running=running_id, keys_=encode_rows(ids))


# -- the claimant --------------------------------------------------------------------------------


def renew(
    tx: Tx,
    task: Task | str,
    *,
    agent: str | None = None,
    fence: int | None = None,
    lease_ms: int | None = None,
) -> Task:
    """Renew the lease of a claimed task. Raises Held when the claim was lost."""
    claimed = require_claimant(tx, task, agent, fence)
    renewed = tx.first(
        sql.RENEW,
        id=claimed.id,
        fence=claimed.fence,
        until=_compute_lease_end(tx, claimed.project_id, lease_ms),
    )
    if renewed is None:
        raise Held(
            f"You no longer hold {claimed.id}; it is {claimed.state}. Claim it again.",
            id=claimed.id,
            state=claimed.state,
        )
    return with_dependencies(tx, renewed)


def submit(
    tx: Tx,
    task: Task | str,
    evidence: Evidence | dict[str, Any] | str,
    *,
    agent: str | None = None,
    fence: int | None = None,
) -> Task:
    """Submit a task with evidence: commits, commands with exit statuses, files or text. Idempotent.

    Only the claimant can submit. The task is done when the evidence is accepted: by another agent
    or a person, by the task's check, or by `tasks.auto_accept` when all commands exited with 0.
    """
    parsed = parse_evidence(evidence)
    claimed = require_claimant(tx, task, agent, fence)
    if claimed.state in (TaskState.SUBMITTED, TaskState.DONE):
        return with_dependencies(tx, claimed)
    submitted = transition(
        tx,
        sql.TASKS,
        "submit",
        claimed.id,
        expected_fence=claimed.fence,
        event_data={"evidence": parsed},
        evidence=encode_json(parsed, "The evidence", max_bytes=MAX_EVIDENCE),
        submitted_at=tx.now,
        check_lease_until=None,
        lease_until=None,
        attempts=0,
        reason=None,
    )
    submitted = apply_consequences(tx, claimed, submitted)
    if submitted.check_command is not None:
        return with_dependencies(tx, submitted)
    if parsed.all_passed and settings.get_value(
        tx, "tasks.auto_accept", project=claimed.project_id
    ):
        after = transition(
            tx,
            sql.TASKS,
            "accept",
            claimed.id,
            event_data={"by": "policy"},
            ended_at=tx.now,
        )
        return with_dependencies(tx, apply_consequences(tx, submitted, after))
    notify(tx, submitted.lead, submitted, "submitted")
    return with_dependencies(tx, submitted)


def fail(
    tx: Tx,
    task: Task | str,
    reason: str,
    *,
    agent: str | None = None,
    fence: int | None = None,
) -> Task:
    """Give a task up with a reason, and block its dependents."""
    reason = check_text(reason, "The reason")
    claimed = require_claimant_or_lead(tx, task, agent, fence)
    return with_dependencies(tx, _fail(tx, claimed, reason))


def release(
    tx: Tx,
    task: Task | str,
    *,
    reason: str | None = None,
    agent: str | None = None,
    fence: int | None = None,
) -> Task:
    """Give a task back so that another agent can claim it. This does not count as an attempt."""
    reason = check_optional_text(reason, "The reason")
    claimed = require_claimant_or_lead(tx, task, agent, fence)
    attempts = max(0, claimed.attempts - 1)
    return with_dependencies(tx, _release(tx, claimed, reason, attempts=attempts))


# -- expiry and the end of runs ------------------------------------------------------------------


def release_due(tx: Tx, *, limit: int = 100) -> list[Task]:
    """Take back tasks of one project whose leases have expired; empty when none is left.

    `claim` does the same for its project, so claims do not depend on this call; the notifications
    to the leads do.
    """
    project_id = tx.value(sql.EXPIRED_PROJECT, now=tx.now)
    if project_id is None:
        return []
    lock_graph(tx, project_id)
    expired = tx.all(sql.EXPIRED, project=project_id, now=tx.now, limit=limit)
    return [_return_task(tx, task, LEASE_EXPIRED) for task in expired]


def release_for_run(tx: Tx, run_id: str, reason: str) -> list[Task]:
    """Take back the tasks of a run that has ended without submitting them."""
    # Sorted, to avoid deadlocks. The tasks are read again under the locks.
    for project_id in sorted(
        {task.project_id for task in tx.all(sql.RUNNING_IN_RUN, run_id=run_id)}
    ):
        lock_graph(tx, project_id)
    return [_return_task(tx, task, reason) for task in tx.all(sql.RUNNING_IN_RUN, run_id=run_id)]


def next_lease_end(tx: Tx) -> int | None:
    """Return when the next lease expires."""
    at: int | None = tx.value(sql.NEXT_LEASE_END)
    return at


def _return_task(tx: Tx, task: Task, reason: str) -> Task:
    """Make an unsubmitted task claimable again, or fail it at `tasks.max_attempts`."""
    max_attempts = int(settings.get_value(tx, "tasks.max_attempts", project=task.project_id))
    if task.attempts >= max_attempts:
        return _fail(tx, task, f"{reason}, {task.attempts} times")
    returned = _release(tx, task, reason, attempts=task.attempts)
    notify(tx, returned.lead, returned, "returned", reason)
    return returned


def _release(tx: Tx, task: Task, reason: str | None, *, attempts: int) -> Task:
    after = transition(
        tx,
        sql.TASKS,
        "release",
        task.id,
        expected_fence=task.fence,
        event_data={"reason": reason} if reason else None,
        agent_id=None,
        run_id=None,
        lease_until=None,
        attempts=attempts,
        reason=reason,
    )
    return apply_consequences(tx, task, after)


def _fail(tx: Tx, task: Task, reason: str) -> Task:
    after = transition(
        tx,
        sql.TASKS,
        "fail",
        task.id,
        expected_fence=task.fence,
        event_data={"reason": reason},
        lease_until=None,
        ended_at=tx.now,
        reason=reason,
    )
    notify(tx, after.lead, after, "failed", reason)
    return apply_consequences(tx, task, after)


# -- automatic start -----------------------------------------------------------------------------


def list_ready_projects(tx: Tx) -> list[str]:
    """Return the ids of the projects that have a claimable task."""
    ids: list[str] = []
    while (id := tx.value(sql.NEXT_READY_PROJECT, after=ids[-1] if ids else "")) is not None:
        ids.append(id)
    return ids


def list_startable(tx: Tx, project_id: str) -> list[Task]:
    """Return the first claimable tasks of a project, for any agent, in the order of claims."""
    tasks = [
        *tx.all(sql.CLAIMABLE, project=project_id, limit=CLAIM_BATCH),
        *tx.all(sql.CLAIMABLE_ASSIGNED, project=project_id, limit=CLAIM_BATCH),
    ]
    return sorted(tasks, key=lambda task: (-task.priority, task.ready_at, task.id))


def count_in_runs(tx: Tx, project_id: str) -> int:
    """Count the running tasks of a project that a run works on."""
    return int(tx.value(sql.COUNT_IN_RUNS, project=project_id))
