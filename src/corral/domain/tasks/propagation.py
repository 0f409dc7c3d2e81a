"""Propagating a state change of one task through the tasks that depend on it.

Each task stores two counts: how many of its dependencies are still open, and how many have
failed (failed, cancelled or blocked themselves). A change updates the counts of the direct
dependents only, and continues from those whose count of failed dependencies became zero or stopped
being zero. The cost is therefore proportional to the affected tasks, not to the size of the graph.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from corral.db.bulk_transitions import transition_many
from corral.db.statement import encode_rows
from corral.db.transitions import transition
from corral.db.tx import Tx
from corral.domain.delegations import ops as delegations
from corral.domain.tasks import sql
from corral.domain.tasks.model import WAITING, Task, TaskState, TaskStatus

BLOCKING_ROOTS = (TaskState.FAILED, TaskState.CANCELLED)
"""The states in which a task blocks its dependents by itself."""
MAX_REASON = 1_000


class Blocker(NamedTuple):
    """The failed or cancelled task at the root of a block, and the reason given to dependents."""

    id: str | None
    reason: str | None


NO_BLOCKER = Blocker(None, None)


class UpdatedCounts(NamedTuple):
    """A dependent task and its new counts."""

    id: str
    state: TaskState
    open_dependencies: int
    failed_dependencies: int
    was_blocked: bool
    """Whether it had a failed dependency before."""


def apply_consequences(tx: Tx, before: Task, after: Task) -> Task:
    """Apply all consequences of a transition, and return the task as it is then.

    Moves the task itself to the state that its counts require, frees the tasks that were held back
    for its files, updates its dependents, and ends its delegations when the task has ended.
    """
    if before.state is TaskState.RUNNING:
        tx.run(sql.RELEASE_HELD_BACK, running=before.id)
    current = move_to_required_state(tx, after)
    update_dependents(tx, before, current)
    if current.ended_at is not None and before.ended_at is None:
        delegations.end_for_task(
            tx, current.id, done=current.is_satisfied, result=_build_delegation_result(current)
        )
    return current


def _build_delegation_result(task: Task) -> dict[str, Any]:
    return {
        "task": task.id,
        "key": task.key,
        "state": task.state,
        "reason": task.reason,
        "evidence": task.evidence,
    }


def move_to_required_state(tx: Tx, task: Task) -> Task:
    """Move a waiting task to the state that its own counts require."""
    if task.state is TaskState.BLOCKED and not task.failed_dependencies:
        task = transition(tx, sql.TASKS, "unblock", task.id, blocked_by_id=None, reason=None)
    if task.state in (TaskState.PENDING, TaskState.READY) and task.failed_dependencies:
        blocker = _find_blocker(tx, task.id)
        return transition(
            tx,
            sql.TASKS,
            "block",
            task.id,
            conflicts_with_id=None,
            blocked_by_id=blocker.id,
            reason=blocker.reason,
            event_data={"blocked_by": blocker.id},
        )
    if task.state is TaskState.READY and task.open_dependencies:
        return transition(tx, sql.TASKS, "wait", task.id, conflicts_with_id=None)
    if task.state is TaskState.PENDING and not task.open_dependencies:
        return transition(tx, sql.TASKS, "promote", task.id, ready_at=task.ready_at or tx.now)
    if task.state is TaskState.PAUSED:
        _set_blocker(
            tx, [task.id], _find_blocker(tx, task.id) if task.failed_dependencies else NO_BLOCKER
        )
        return sql.TASKS.get(tx, task.id)  # dependents copy the new blocker
    return task


def update_dependents(tx: Tx, before: Task, after: Task) -> None:
    """Update the counts and states of all direct and indirect dependents, level by level."""
    open_delta = before.is_satisfied - after.is_satisfied
    blocking_delta = after.is_blocking - before.is_blocking
    blocker = make_blocker(after) if blocking_delta > 0 else NO_BLOCKER
    level = [after.id] if open_delta or blocking_delta else []
    while level:
        updated = _update_counts(tx, level, open_delta, blocking_delta)
        waiting = [task for task in updated if task.state in WAITING]
        _move_waiting(tx, waiting, blocker)
        level = [task.id for task in waiting if (task.failed_dependencies > 0) != task.was_blocked]
        open_delta = 0  # only direct dependents count the task itself
    # A dependent can have several blockers, for example another task that was cancelled meanwhile.
    if before.state in BLOCKING_ROOTS and after.state not in BLOCKING_ROOTS:
        _replace_blocker(tx, before.id)
    elif blocking_delta < 0 and before.blocked_by_id is not None:
        _replace_blocker(tx, before.blocked_by_id)


def _update_counts(
    tx: Tx, ids: Sequence[str], open_delta: int, blocking_delta: int
) -> list[UpdatedCounts]:
    """Add the deltas to the counts of all dependents of these tasks, once for each edge."""
    rows_by_id: dict[str, list[TaskStatus]] = {}
    for dependent in tx.all(sql.DEPENDENTS, keys_=encode_rows(ids)):
        rows_by_id.setdefault(dependent.id, []).append(dependent)
    updated = [
        UpdatedCounts(
            id,
            rows[0].state,
            rows[0].open_dependencies + open_delta * len(rows),
            rows[0].failed_dependencies + blocking_delta * len(rows),
            rows[0].failed_dependencies > 0,
        )
        for id, rows in rows_by_id.items()
    ]
    if updated:
        counts = [(task.id, task.open_dependencies, task.failed_dependencies) for task in updated]
        tx.run(sql.SET_DEPENDENCY_COUNTS, rows=encode_rows(counts))
    return updated


def _move_waiting(tx: Tx, tasks: Sequence[UpdatedCounts], blocker: Blocker) -> None:
    """Move waiting tasks to the states that their new counts require."""
    blocked = [task for task in tasks if task.failed_dependencies]
    unblocked = [task for task in tasks if not task.failed_dependencies]
    satisfied = [task for task in unblocked if not task.open_dependencies]
    unsatisfied = [task for task in unblocked if task.open_dependencies]
    transition_many(
        tx,
        sql.TASKS,
        "block",
        _list_ids(blocked, TaskState.PENDING, TaskState.READY),
        conflicts_with_id=None,
        blocked_by_id=blocker.id,
        reason=blocker.reason,
    )
    transition_many(
        tx,
        sql.TASKS,
        "unblock",
        _list_ids(unblocked, TaskState.BLOCKED),
        blocked_by_id=None,
        reason=None,
    )
    # BLOCKED: the state before the transition above; these tasks are pending now.
    promotable = _list_ids(satisfied, TaskState.PENDING, TaskState.BLOCKED)
    transition_many(tx, sql.TASKS, "promote", promotable, ready_at=tx.now)
    transition_many(
        tx, sql.TASKS, "wait", _list_ids(unsatisfied, TaskState.READY), conflicts_with_id=None
    )
    # A paused task stays paused. Its blocker is stored for the time when it is resumed.
    newly_blocked = [task for task in blocked if not task.was_blocked]
    newly_unblocked = [task for task in unblocked if task.was_blocked]
    _set_blocker(tx, _list_ids(newly_blocked, TaskState.PAUSED), blocker)
    _set_blocker(tx, _list_ids(newly_unblocked, TaskState.PAUSED), NO_BLOCKER)


def _list_ids(tasks: Sequence[UpdatedCounts], *states: TaskState) -> list[str]:
    return [task.id for task in tasks if task.state in states]


def _set_blocker(tx: Tx, ids: Sequence[str], blocker: Blocker) -> None:
    if ids:
        tx.run(
            sql.SET_BLOCKER, keys_=encode_rows(ids), blocked_by_id=blocker.id, reason=blocker.reason
        )


def recount_dependencies(tx: Tx, before: Task) -> Task:
    """Recompute the counts of a task after its dependencies changed, and apply the consequences."""
    ((open_count, failed_count),) = tx.run(sql.COUNT_DEPENDENCIES, id=before.id)
    counted = tx.one(
        sql.SET_DEPENDENCY_COUNTS_OF, id=before.id, open=open_count, failed=failed_count
    )
    return apply_consequences(tx, before, counted)


# -- blockers --------------------------------------------------------------------------------------


def make_blocker(task: Task | TaskStatus) -> Blocker:
    """Return what blocks the dependents of a task: the task itself, or its own blocker."""
    if task.state is TaskState.PAUSED:  # the reason of a paused task says why it was paused
        return Blocker(task.blocked_by_id, f"{task.key} is paused, and blocked")
    if task.state not in BLOCKING_ROOTS:
        return Blocker(task.blocked_by_id, task.reason)
    text = f"{task.key} {'failed' if task.state is TaskState.FAILED else 'was cancelled'}"
    return Blocker(task.id, f"{text}: {task.reason}"[:MAX_REASON] if task.reason else text)


def _find_blocker(tx: Tx, id: str) -> Blocker:
    """Return the blocker of the first failed dependency of a task."""
    first = tx.first(sql.FAILED_DEPENDENCIES, id=id, limit=1)
    if first is None:
        return NO_BLOCKER
    if first.state is TaskState.PAUSED and first.blocked_by_id is not None:
        return make_blocker(sql.TASKS.get(tx, first.blocked_by_id))
    return make_blocker(first)


def _replace_blocker(tx: Tx, root: str) -> None:
    """Give a new blocker to the tasks that `root` no longer blocks but another task still does."""
    blockers: dict[str, str] = {}
    dependents: dict[str, list[str]] = {}
    for id, dependency_id, state, blocker in tx.run(sql.BLOCKED_BY, blocker=root):
        if state in BLOCKING_ROOTS:
            blockers.setdefault(id, dependency_id)
        elif blocker is not None and blocker != root:
            blockers.setdefault(id, blocker)
        else:  # the dependency itself has `root` as its blocker
            dependents.setdefault(dependency_id, []).append(id)
    queue = list(blockers)
    for dependency_id in queue:  # the queue grows during the loop
        for id in dependents.get(dependency_id, ()):
            if id not in blockers:
                blockers[id] = blockers[dependency_id]
                queue.append(id)
    ids_by_blocker: dict[str, list[str]] = {}
    for id, blocker in blockers.items():
        if blocker != root:
            ids_by_blocker.setdefault(blocker, []).append(id)
    for blocker, ids in ids_by_blocker.items():
        _set_blocker(tx, ids, make_blocker(sql.TASKS.get(tx, blocker)))
