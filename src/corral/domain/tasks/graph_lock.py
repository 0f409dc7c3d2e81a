"""The lock on a project's task graph: serializes changes to it."""

from corral.db.tx import Tx
from corral.domain.tasks import sql
from corral.domain.tasks.model import Task
from corral.domain.tasks.queries import find


def lock_graph(tx: Tx, project_id: str) -> str:
    """Serialize changes to a project's graph, and return the project's id.

    The dependency counts of a task are derived from several rows, so two concurrent changes to one
    graph would compute wrong counts.
    """
    tx.serialize(f"tasks:{project_id}")
    return project_id


def lock_task(tx: Tx, task: Task | str, project: str | None = None) -> Task:
    """Lock the graph of a task, and return the task as it is now."""
    unlocked = task if isinstance(task, Task) else find(tx, task, project)
    lock_graph(tx, unlocked.project_id)
    return sql.TASKS.get(tx, unlocked.id)
