"""A project's board as it was at a moment, told by the record: its tasks, and who held which files.

Nothing is guessed from how things are now. What the record does not reach back to is not known.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from corral.db.bulk_transitions import encode_rows
from corral.db.tx import Tx
from corral.domain.insights import sql
from corral.domain.insights.model import Deed, Moment, Then
from corral.domain.projects import ops as projects
from corral.domain.tasks.model import MOVES
from corral.domain.tasks.model import TaskState as S
from corral.kernel.errors import Invalid
from corral.kernel.pagination import LAST_ID, check_limit, decode_cursor, page_of
from corral.kernel.text import check_int

# Of the locks that were granted before a moment, so many are looked at, from the last one on.
GRANTS = 5_000
MOST_HELD = 500
_DONE_BY = (S.RUNNING, S.SUBMITTED, S.DONE, S.FAILED)


class _Known(NamedTuple):
    """What a task is called, and the numbers of the events that tell what it was."""

    id: str
    key: str
    title: str
    role: str | None
    archived_at: int
    moved: int | None
    claimed: int | None


def moment(tx: Tx, project: str, at: int, *, after: str | None = None, limit: int = 100) -> Moment:
    """A project's board as it was at a moment, told by the record: the tasks that were on it, each
    with its state, its doer and who had moved it; and the locks that were held.

    Keys and titles are those of today; a state is None where the record does not go back so far.
    What it costs is the past of the tasks on the page, however long the record is.
    """
    if not 0 < check_int(at, "The moment") <= tx.now:
        raise Invalid(
            "Nobody knows what comes; ask for a moment that has been.",
            at=at,
            reason="in_the_future",
        )
    project_id = projects.get(tx, project).id
    page = page_of(
        _on_board(tx, project_id, at, decode_cursor(after, 0, ""), check_limit(limit) + 1),
        limit,
        lambda task: (task.archived_at, task.id),
    )
    deeds = _deeds(tx, page.items)
    held = tx.all(sql.LOCKS_AT, project=project_id, at=at, looked_at=GRANTS, limit=MOST_HELD)
    return Moment(at, [_then(task, deeds) for task in page.items], page.next, held)


def _on_board(tx: Tx, project_id: str, at: int, behind: Sequence[Any], limit: int) -> list[_Known]:
    """Those that are still on it first, in the order in which they were declared; then those that
    were archived since."""
    archived_at, id = behind
    asked = {"project": project_id, "at": at}
    found = []
    if not archived_at:
        found = tx.run(sql.TASKS_AT, **asked, id=id, limit=limit)
        archived_at, id = at, LAST_ID
    if len(found) < limit:
        found += tx.run(
            sql.ARCHIVED_SINCE, **asked, archived_at=archived_at, id=id, limit=limit - len(found)
        )
    return [_Known(*row) for row in found]


def _deeds(tx: Tx, tasks: Sequence[_Known]) -> dict[int, Deed]:
    wanted = {seq for task in tasks for seq in (task.moved, task.claimed) if seq}
    found = tx.all(sql.DEEDS, keys_=encode_rows(sorted(wanted)))
    return {deed.seq: deed for deed in found}


def _then(task: _Known, deeds: dict[int, Deed]) -> Then:
    then = Then(task.id, task.key, task.title, task.role, None, None, None, None, None)
    moved = deeds.get(task.moved or 0)
    if moved is None:
        return then
    state = MOVES.entries.get(moved.verb) or MOVES[moved.verb].to
    claimed = deeds.get(task.claimed or 0) if state in _DONE_BY else None
    return replace(
        then,
        state=state,
        agent=claimed.data.get("agent") if claimed is not None else None,
        verb=moved.verb,
        actor=moved.actor,
        since=moved.at,
    )
