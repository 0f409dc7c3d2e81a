"""Deletion of rows together with everything that belongs to them, such as search index entries.

Each function runs in the caller's transaction.
"""

from collections.abc import Sequence

from corral.db.tx import Tx
from corral.domain.notes import ops as notes
from corral.domain.notes.model import Note
from corral.domain.projects import ops as projects
from corral.domain.projects.model import Project
from corral.domain.runs import ops as runs
from corral.domain.runs.model import Run


def delete_run(tx: Tx, id: str) -> Run:
    """Delete a finished run with its output, in the store and in the search index.

    Raises Conflict while the run is live. Files are removed later: `remove_deleted_files`.
    """
    from corral.domain.search import ops as search

    run = runs.delete(tx, id)
    while not search.remove_subject(tx, "output", run.id):
        pass
    return run


def delete_runs(tx: Tx, ids: Sequence[str]) -> int:
    """Delete finished runs with `delete_run`; returns how many."""
    for id in ids:
        delete_run(tx, id)
    return len(ids)


def delete_note(tx: Tx, note: str) -> Note:
    """Delete a note: its text is removed from the store and from the search index."""
    from corral.domain.search import ops as search

    deleted = notes.forget(tx, note)
    search.remove_subject(tx, "note", deleted.id)
    return deleted


def delete_notes(tx: Tx, ids: Sequence[str]) -> int:
    """Delete notes with `delete_note`; returns how many."""
    for id in ids:
        delete_note(tx, id)
    return len(ids)


def delete_sessions(tx: Tx, ids: Sequence[str]) -> int:
    """Delete sessions with their turns and search index entries; returns how many.

    Stops at a session with many turns: the next call continues with it, in another transaction.
    """
    for deleted, id in enumerate(ids):
        if not _delete_session_batch(tx, id):
            return deleted
    return len(ids)


def delete_project(tx: Tx, id: str) -> Project:
    """Delete a project that has no runs.

    Its settings, budgets, schedules, sessions, notes, tasks, races, delegations, plans and locks
    are deleted with it. Open questions and proposed decisions are withdrawn; groups are archived.
    """
    from corral.domain.charges import budgets
    from corral.domain.decisions import ops as decisions
    from corral.domain.delegations import ops as delegations
    from corral.domain.groups import ops as groups
    from corral.domain.locks import ops as locks
    from corral.domain.plans import ops as plans
    from corral.domain.questions import ops as questions
    from corral.domain.races import retention as race_retention
    from corral.domain.schedules import ops as schedules  # imports the calendar libraries
    from corral.domain.tasks import retention as task_retention

    project = projects.get(tx, id)
    schedules.release_project(tx, project.id)
    budgets.delete_budgets_of_scope(tx, f"project:{project.id}")
    _delete_sessions_of_project(tx, project.id)
    task_retention.delete_project_rows(tx, project.id)
    race_retention.delete_project_rows(tx, project.id)
    delegations.delete_project_rows(tx, project.id)
    plans.delete_project_rows(tx, project.id)
    locks.release_project(tx, project.id)
    questions.release_project(tx, project.id)
    while note_ids := notes.list_ids_of_project(tx, project.id):
        delete_notes(tx, note_ids)
    decisions.release_project(tx, project.id)
    groups.release_project(tx, project.id)
    return projects.delete(tx, project.id)


def _delete_sessions_of_project(tx: Tx, project_id: str) -> None:
    from corral.domain.sessions import retention

    while ids := retention.list_ids_of_project(tx, project_id):
        delete_sessions(tx, ids)


def _delete_session_batch(tx: Tx, id: str) -> bool:
    """Delete a batch of a session's index entries, then of its turns; False while some remain."""
    from corral.domain.search import ops as search
    from corral.domain.sessions import retention

    return search.remove_subject(tx, "turn", id) and retention.delete_batch(tx, id)
