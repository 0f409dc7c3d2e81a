"""What a change of one task does to those that need it, and to those that need them.

Each task keeps two counts of what it needs: how much is still open, and how much of that is broken
(failed, cancelled, or blocked itself). A change adds to the counts of those next to it alone; it
goes on from where a count came to 0, or left it. So the work is that of the tasks that are touched,
however large the graph is.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from corral.db.bulk_transitions import encode_rows, move_many
from corral.db.transitions import move
from corral.db.tx import Tx
from corral.domain.delegations import ops as delegations
from corral.domain.tasks import sql
from corral.domain.tasks.model import WAITING, Standing, Task, TaskState

S = TaskState
ROOTS = (S.FAILED, S.CANCELLED)  # what others can be blocked for
MAX_REASON = 1_000


class Cause(NamedTuple):
    """The task at the root of it, and what is said of that where it blocks others."""

    id: str | None
    words: str | None


NONE = Cause(None, None)


class Changed(NamedTuple):
    """A task whose counts have changed."""

    id: str
    state: TaskState
    open_needs: int
    broken_needs: int
    was_broken: bool
    """Whether something that it needs was broken before."""


def follow_up(tx: Tx, before: Task, after: Task) -> Task:
    """See to all that a move brings with it: for the task itself, for those whose files it kept
    busy, for those that need it, and for whoever delegated it."""
    if before.state is S.RUNNING:
        tx.run(sql.LET_GO, held_by=before.id)
    now = settle(tx, after)
    spread(tx, before, now)
    if now.ended_at is not None and before.ended_at is None:
        delegations.end_of_task(tx, now.id, done=now.is_satisfied, result=_result(now))
    return now


def _result(task: Task) -> dict[str, Any]:
    return {
        "task": task.id,
        "key": task.key,
        "state": task.state,
        "reason": task.reason,
        "evidence": task.evidence,
    }


def settle(tx: Tx, task: Task) -> Task:
    """Bring a task that waits into the state that its own counts ask for."""
    if task.state is S.BLOCKED and not task.broken_needs:
        task = move(tx, sql.TASKS, "unblock", task.id, cause_id=None, reason=None)
    if task.state in (S.PENDING, S.READY) and task.broken_needs:
        cause = _cause_of(tx, task.id)
        return move(
            tx,
            sql.TASKS,
            "block",
            task.id,
            held_by=None,
            cause_id=cause.id,
            reason=cause.words,
            note={"cause": cause.id},
        )
    if task.state is S.READY and task.open_needs:
        return move(tx, sql.TASKS, "wait", task.id, held_by=None)
    if task.state is S.PENDING and not task.open_needs:
        return move(tx, sql.TASKS, "promote", task.id, ready_at=task.ready_at or tx.now)
    if task.state is S.PAUSED:
        _set_cause(tx, [task.id], _cause_of(tx, task.id) if task.broken_needs else NONE)
        return sql.TASKS.get(tx, task.id)  # those that need it are told its cause
    return task


def spread(tx: Tx, before: Task, now: Task) -> None:
    """Tell those that need a task what became of it, and so on."""
    opened = before.is_satisfied - now.is_satisfied
    broke = now.is_broken - before.is_broken
    cause = cause_in(now) if broke > 0 else NONE
    level = [now.id] if opened or broke else []
    while level:
        shifted = _shift(tx, level, opened, broke)
        changed = [each for each in shifted if each.state in WAITING]
        react(tx, changed, cause)
        level = [each.id for each in changed if (each.broken_needs > 0) != each.was_broken]
        opened = 0
    # Some may be blocked for more than one: below a task that was cancelled meanwhile, say.
    if before.state in ROOTS and now.state not in ROOTS:
        _find_other_causes(tx, before.id)
    elif broke < 0 and before.cause_id is not None:
        _find_other_causes(tx, before.cause_id)


def _shift(tx: Tx, ids: Sequence[str], opened: int, broke: int) -> list[Changed]:
    """Bring the counts of all that need these tasks up to date."""
    hits: dict[str, list[Standing]] = {}
    for each in tx.all(sql.DEPENDENTS, keys_=encode_rows(ids)):
        hits.setdefault(each.id, []).append(each)
    shifted = [
        Changed(
            id,
            found[0].state,
            found[0].open_needs + opened * len(found),
            found[0].broken_needs + broke * len(found),
            found[0].broken_needs > 0,
        )
        for id, found in hits.items()
    ]
    if shifted:
        counts = [(each.id, each.open_needs, each.broken_needs) for each in shifted]
        tx.run(sql.SHIFT, rows=encode_rows(counts))
    return shifted


def react(tx: Tx, changed: Sequence[Changed], cause: Cause) -> None:
    """Bring tasks into the states that their new counts ask for."""
    broken = [each for each in changed if each.broken_needs]
    whole = [each for each in changed if not each.broken_needs]
    block = _ids(broken, S.PENDING, S.READY)
    unblock = _ids(whole, S.BLOCKED)
    promote = _ids([each for each in whole if not each.open_needs], S.PENDING, S.BLOCKED)
    wait = _ids([each for each in whole if each.open_needs], S.READY)
    move_many(tx, sql.TASKS, "block", block, held_by=None, cause_id=cause.id, reason=cause.words)
    move_many(tx, sql.TASKS, "unblock", unblock, cause_id=None, reason=None)
    move_many(tx, sql.TASKS, "promote", promote, ready_at=tx.now)
    move_many(tx, sql.TASKS, "wait", wait, held_by=None)
    # What is paused stays so; its cause is known when it is resumed.
    _set_cause(tx, _ids([each for each in broken if not each.was_broken], S.PAUSED), cause)
    _set_cause(tx, _ids([each for each in whole if each.was_broken], S.PAUSED), NONE)


def _ids(changed: Sequence[Changed], *states: TaskState) -> list[str]:
    return [each.id for each in changed if each.state in states]


def _set_cause(tx: Tx, ids: Sequence[str], cause: Cause) -> None:
    if ids:
        tx.run(sql.SET_CAUSE, keys_=encode_rows(ids), cause_id=cause.id, reason=cause.words)


def recount(tx: Tx, before: Task) -> Task:
    """Count anew what a task needs, after its edges have changed."""
    ((opened, broken),) = tx.run(sql.COUNT_NEEDS, id=before.id)
    counted = tx.one(sql.SET_NEEDS, id=before.id, open=opened, broken=broken)
    assert counted is not None
    return follow_up(tx, before, counted)


def cause_in(task: Task | Standing) -> Cause:
    """What a broken task is to those that need it: the cause itself, or blocked for one."""
    if task.state is S.PAUSED:  # its reason is another one
        return Cause(task.cause_id, f"{task.key} is paused, and blocked")
    if task.state not in (S.FAILED, S.CANCELLED):
        return Cause(task.cause_id, task.reason)
    words = f"{task.key} {'failed' if task.state is S.FAILED else 'was cancelled'}"
    return Cause(task.id, f"{words}: {task.reason}"[:MAX_REASON] if task.reason else words)


def _cause_of(tx: Tx, id: str) -> Cause:
    """For what a task is blocked: the first of the broken tasks that it needs tells."""
    first = tx.one(sql.BROKEN_NEEDS, id=id, limit=1)
    if first is None:
        return NONE
    if first.state is S.PAUSED and first.cause_id is not None:
        return cause_in(sql.TASKS.get(tx, first.cause_id))
    return cause_in(first)


def _find_other_causes(tx: Tx, root: str) -> None:
    """Name another cause where a task was blocked for this one, which holds no longer, and still
    is for another."""
    known: dict[str, str] = {}
    inside: dict[str, list[str]] = {}
    for id, need, state, cause in tx.run(sql.CAUSED, cause=root):
        if state in (S.FAILED, S.CANCELLED):
            known.setdefault(id, need)
        elif cause is not None and cause != root:
            known.setdefault(id, cause)
        else:
            inside.setdefault(need, []).append(id)
    found = list(known)
    for need in found:  # it grows while we go
        for id in inside.get(need, ()):
            if id not in known:
                known[id] = known[need]
                found.append(id)
    others: dict[str, list[str]] = {}
    for id, cause in known.items():
        if cause != root:
            others.setdefault(cause, []).append(id)
    for cause, ids in others.items():
        _set_cause(tx, ids, cause_in(sql.TASKS.get(tx, cause)))
