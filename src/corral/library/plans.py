from corral.db.tx import Tx
from corral.library.operation import Room, read, write
from corral.rooms.plans import ops
from corral.rooms.plans.model import Progress as Reported
from corral.rooms.tasks import ops as tasks


def report(
    tx: Tx,
    summary: str,
    *,
    agent: str,
    percent: int | None = None,
    task: str | None = None,
    run: str | None = None,
    project: str | None = None,
) -> Reported:
    """Say how far an agent is, with a task or in general; it takes the place of what it said of
    that before."""
    found = tasks.find(tx, task, project) if task else None
    return ops.report(
        tx,
        summary,
        agent=agent,
        percent=percent,
        task_id=found.id if found else None,
        run=run,
        project_id=found.project_id if found else project,
    )


class Plans(Room):
    """What agents say they will do."""

    noun = "plan"

    set = write(ops.set_plan, repeatable=True)
    get = read(ops.get_plan)
    list = read(ops.list_plans, mode="one")


class Progress(Room):
    """How far agents say they have come."""

    noun = "progress"

    report = write(report, repeatable=True)
    list = read(ops.list_progress)
