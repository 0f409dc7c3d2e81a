"""Propagating a state change of one task through the tasks that depend on it.

Each task stores two counts: how many of its dependencies are still open, and how many are broken
(failed, cancelled or blocked themselves). A change updates the counts of the direct dependents
only, and continues from those whose broken count became zero or stopped being zero. The cost is
therefore proportional to the affected tasks, not to the size of the graph.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from corral.db.transitions import encode_rows, transition, transition_many
from corral.db.tx import Tx
from corral.domain.delegations import ops as delegations
from corral.domain.tasks import sql
from corral.domain.tasks.model import WAITING, Task, TaskState, TaskStatus

S = TaskState
ROOTS = (S.FAILED, S.CANCELLED)  # states that block dependents
MAX_REASON = 1_000


class Cause(NamedTuple):
    """The failed or cancelled task at the root of a block, and the reason given to dependents."""

    id: str | None
    reason: str | None


NO_CAUSE = Cause(None, None)


class UpdatedCounts(NamedTuple):
    """A dependent task and its new counts."""

    id: str
    state: TaskState
    open_needs: int
    broken_needs: int
    was_broken: bool
    """Whether it had a broken dependency before."""


def follow_up(tx: Tx, before: Task, after: Task) -> Task:
    """Apply all consequences of a transition, and return the task as it is then.

    Settles the task itself, frees the tasks that were held back for its files, updates its
    dependents, and ends its delegations when the task has ended.
    """
    if before.state is S.RUNNING:
        tx.run(sql.RELEASE_HELD_BACK, held_by=before.id)
    settled = settle(tx, after)
    update_dependents(tx, before, settled)
    if settled.ended_at is not None and before.ended_at is None:
        delegations.end_for_task(
            tx, settled.id, done=settled.is_satisfied, result=_delegation_result(settled)
        )
    return settled


def _delegation_result(task: Task) -> dict[str, Any]:
    return {
        "task": task.id,
        "key": task.key,
        "state": task.state,
        "reason": task.reason,
        "evidence": task.evidence,
    }


def settle(tx: Tx, task: Task) -> Task:
    """Move a waiting task to the state that its own counts require."""
    if task.state is S.BLOCKED and not task.broken_needs:
        task = transition(tx, sql.TASKS, "unblock", task.id, cause_id=None, reason=None)
    if task.state in (S.PENDING, S.READY) and task.broken_needs:
        cause = _find_cause(tx, task.id)
        return transition(
            tx,
            sql.TASKS,
            "block",
            task.id,
            held_by=None,
            cause_id=cause.id,
            reason=cause.reason,
            event_data={"cause": cause.id},
        )
    if task.state is S.READY and task.open_needs:
        return transition(tx, sql.TASKS, "wait", task.id, held_by=None)
    if task.state is S.PENDING and not task.open_needs:
        return transition(tx, sql.TASKS, "promote", task.id, ready_at=task.ready_at or tx.now)
    if task.state is S.PAUSED:
        _set_cause(tx, [task.id], _find_cause(tx, task.id) if task.broken_needs else NO_CAUSE)
        return sql.TASKS.get(tx, task.id)  # dependents copy the new cause
    return task


def update_dependents(tx: Tx, before: Task, after: Task) -> None:
    """Update the counts and states of all direct and indirect dependents, level by level."""
    open_delta = before.is_satisfied - after.is_satisfied
    broken_delta = after.is_broken - before.is_broken
    cause = cause_in(after) if broken_delta > 0 else NO_CAUSE
    level = [after.id] if open_delta or broken_delta else []
    while level:
        updated = _update_counts(tx, level, open_delta, broken_delta)
        waiting = [task for task in updated if task.state in WAITING]
        _move_waiting(tx, waiting, cause)
        level = [task.id for task in waiting if (task.broken_needs > 0) != task.was_broken]
        open_delta = 0  # only direct dependents count the task itself
    # A dependent can have several causes, for example another task that was cancelled meanwhile.
    if before.state in ROOTS and after.state not in ROOTS:
        _replace_cause(tx, before.id)
    elif broken_delta < 0 and before.cause_id is not None:
        _replace_cause(tx, before.cause_id)


def _update_counts(
    tx: Tx, ids: Sequence[str], open_delta: int, broken_delta: int
) -> list[UpdatedCounts]:
    """Add the deltas to the counts of all dependents of these tasks, once for each edge."""
    edges: dict[str, list[TaskStatus]] = {}
    for dependent in tx.all(sql.DEPENDENTS, keys_=encode_rows(ids)):
        edges.setdefault(dependent.id, []).append(dependent)
    updated = [
        UpdatedCounts(
            id,
            rows[0].state,
            rows[0].open_needs + open_delta * len(rows),
            rows[0].broken_needs + broken_delta * len(rows),
            rows[0].broken_needs > 0,
        )
        for id, rows in edges.items()
    ]
    if updated:
        counts = [(task.id, task.open_needs, task.broken_needs) for task in updated]
        tx.run(sql.SET_NEED_COUNTS, rows=encode_rows(counts))
    return updated


def _move_waiting(tx: Tx, tasks: Sequence[UpdatedCounts], cause: Cause) -> None:
    """Move waiting tasks to the states that their new counts require."""
    broken = [task for task in tasks if task.broken_needs]
    intact = [task for task in tasks if not task.broken_needs]
    block = _ids(broken, S.PENDING, S.READY)
    unblock = _ids(intact, S.BLOCKED)
    promote = _ids([task for task in intact if not task.open_needs], S.PENDING, S.BLOCKED)
    wait = _ids([task for task in intact if task.open_needs], S.READY)
    transition_many(
        tx, sql.TASKS, "block", block, held_by=None, cause_id=cause.id, reason=cause.reason
    )
    transition_many(tx, sql.TASKS, "unblock", unblock, cause_id=None, reason=None)
    transition_many(tx, sql.TASKS, "promote", promote, ready_at=tx.now)
    transition_many(tx, sql.TASKS, "wait", wait, held_by=None)
    # A paused task stays paused. Its cause is stored for the time when it is resumed.
    _set_cause(tx, _ids([task for task in broken if not task.was_broken], S.PAUSED), cause)
    _set_cause(tx, _ids([task for task in intact if task.was_broken], S.PAUSED), NO_CAUSE)


def _ids(tasks: Sequence[UpdatedCounts], *states: TaskState) -> list[str]:
    return [task.id for task in tasks if task.state in states]


def _set_cause(tx: Tx, ids: Sequence[str], cause: Cause) -> None:
    if ids:
        tx.run(sql.SET_CAUSE, keys_=encode_rows(ids), cause_id=cause.id, reason=cause.reason)


def recount_needs(tx: Tx, before: Task) -> Task:
    """Recompute the counts of a task whose edges have changed, and apply the consequences."""
    ((open_count, broken_count),) = tx.run(sql.COUNT_NEEDS, id=before.id)
    counted = tx.one(sql.SET_NEED_COUNTS_OF, id=before.id, open=open_count, broken=broken_count)
    return follow_up(tx, before, counted)


# -- causes --------------------------------------------------------------------------------------


def cause_in(task: Task | TaskStatus) -> Cause:
    """Return why the dependents of a broken task are blocked: the task itself, or its own cause."""
    if task.state is S.PAUSED:  # the reason of a paused task says why it was paused
        return Cause(task.cause_id, f"{task.key} is paused, and blocked")
    if task.state not in (S.FAILED, S.CANCELLED):
        return Cause(task.cause_id, task.reason)
    text = f"{task.key} {'failed' if task.state is S.FAILED else 'was cancelled'}"
    return Cause(task.id, f"{text}: {task.reason}"[:MAX_REASON] if task.reason else text)


def _find_cause(tx: Tx, id: str) -> Cause:
    """Return the cause of the first broken dependency of a task."""
    first = tx.first(sql.BROKEN_NEEDS, id=id, limit=1)
    if first is None:
        return NO_CAUSE
    if first.state is S.PAUSED and first.cause_id is not None:
        return cause_in(sql.TASKS.get(tx, first.cause_id))
    return cause_in(first)


def _replace_cause(tx: Tx, root: str) -> None:
    """Give a new cause to the tasks that `root` no longer blocks but another task still does."""
    causes: dict[str, str] = {}
    dependents: dict[str, list[str]] = {}
    for id, need, state, cause in tx.run(sql.BLOCKED_BY_CAUSE, cause=root):
        if state in (S.FAILED, S.CANCELLED):
            causes.setdefault(id, need)
        elif cause is not None and cause != root:
            causes.setdefault(id, cause)
        else:  # the dependency itself has `root` as its cause
            dependents.setdefault(need, []).append(id)
    queue = list(causes)
    for need in queue:  # the queue grows during the loop
        for id in dependents.get(need, ()):
            if id not in causes:
                causes[id] = causes[need]
                queue.append(id)
    ids_by_cause: dict[str, list[str]] = {}
    for id, cause in causes.items():
        if cause != root:
            ids_by_cause.setdefault(cause, []).append(id)
    for cause, ids in ids_by_cause.items():
        _set_cause(tx, ids, cause_in(sql.TASKS.get(tx, cause)))
