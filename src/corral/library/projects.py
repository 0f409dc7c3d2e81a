from corral.db.tx import Tx
from corral.library.operation import Room, read, write
from corral.rooms.projects import ops
from corral.rooms.projects.model import Project


def delete(tx: Tx, id: str) -> Project:
    """Forget a project, its settings and schedules. Letters, events and the directory stay."""
    from corral.rooms.schedules import ops as schedules  # brings calendars along

    project = ops.get(tx, id)
    schedules.cancel_all(tx, project.id)
    return ops.delete(tx, project.id)


class Projects(Room):
    """Directories that agents work in."""

    noun = "project"

    register = write(ops.register, repeatable=True)
    by_dir = read(ops.by_dir, mode="one")
    get = read(ops.get)
    list = read(ops.list_projects, mode="one")
    rename = write(ops.rename, repeatable=True)
    touch = write(ops.touch, repeatable=True)
    archive = write(ops.archive)
    delete = write(delete)
