"""The board of a project as it was at a time, reconstructed from events and locks.

Nothing is inferred from the current state. What the events do not reach back to is unknown.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from corral.db.statement import encode_rows
from corral.db.tx import Tx
from corral.domain.insights import sql
from corral.domain.insights.model import PastBoard, PastTask, TaskEvent
from corral.domain.projects import ops as projects
from corral.domain.tasks.model import TRANSITIONS, TaskState
from corral.kernel.errors import Invalid
from corral.kernel.pagination import LAST_ID, check_limit, decode_cursor, make_page
from corral.kernel.validation import check_int

# How many of the locks that were granted before the time are examined, newest first.
MAX_GRANTS_SCANNED = 5_000
MAX_LOCKS = 500
_STATES_WITH_AGENT = (TaskState.RUNNING, TaskState.SUBMITTED, TaskState.DONE, TaskState.FAILED)


class _BoardTask(NamedTuple):
    """A task on the board, with the numbers of the events that determine its state."""

    id: str
    key: str
    title: str
    role: str | None
    archived_at: int
    moved: int | None
    claimed: int | None


def get_board_at(
    tx: Tx, project: str, at: int, *, after: str | None = None, limit: int = 100
) -> PastBoard:
    """Return the board of a project at a time: its tasks with state and agent, and the held locks.

    Keys and titles are the current ones. A state is None where the events do not reach back that
    far. The cost grows with the history of the tasks on the page, not with the event log.
    """
    if not 0 < check_int(at, "The time") <= tx.now:
        raise Invalid("Invalid time: it must be in the past.", at=at, reason="in_the_future")
    project_id = projects.get(tx, project).id
    page = make_page(
        _list_board_tasks(tx, project_id, at, decode_cursor(after, 0, ""), check_limit(limit) + 1),
        limit,
        lambda task: (task.archived_at, task.id),
    )
    events = _load_events(tx, page.items)
    held = tx.all(
        sql.LOCKS_AT, project=project_id, at=at, looked_at=MAX_GRANTS_SCANNED, limit=MAX_LOCKS
    )
    return PastBoard(at, [_to_past_task(task, events) for task in page.items], page.next, held)


def _list_board_tasks(
    tx: Tx, project_id: str, at: int, behind: Sequence[Any], limit: int
) -> list[_BoardTask]:
    """List the tasks that are still on the board in order of declaration, then archived ones."""
    archived_at, id = behind
    params = {"project": project_id, "at": at}
    rows = []
    if not archived_at:
        rows = tx.run(sql.TASKS_AT, **params, id=id, limit=limit)
        archived_at, id = at, LAST_ID
    if len(rows) < limit:
        rows += tx.run(
            sql.ARCHIVED_SINCE, **params, archived_at=archived_at, id=id, limit=limit - len(rows)
        )
    return [_BoardTask(*row) for row in rows]


def _load_events(tx: Tx, tasks: Sequence[_BoardTask]) -> dict[int, TaskEvent]:
    wanted = {seq for task in tasks for seq in (task.moved, task.claimed) if seq}
    rows = tx.all(sql.TASK_EVENTS, keys_=encode_rows(sorted(wanted)))
    return {event.seq: event for event in rows}


def _to_past_task(task: _BoardTask, events: dict[int, TaskEvent]) -> PastTask:
    unknown = PastTask(task.id, task.key, task.title, task.role, None, None, None, None, None)
    moved = events.get(task.moved or 0)
    if moved is None:
        return unknown
    state = TRANSITIONS.initial_states.get(moved.verb) or TRANSITIONS[moved.verb].to
    claimed = events.get(task.claimed or 0) if state in _STATES_WITH_AGENT else None
    return replace(
        unknown,
        state=state,
        agent=claimed.data.get("agent") if claimed is not None else None,
        verb=moved.verb,
        actor=moved.actor,
        since=moved.at,
    )
