"""Checks of submitted tasks: run the check command, and accept or reject by its result."""

import os
from typing import TYPE_CHECKING

from corral.db.tx import Tx
from corral.domain.projects import ops as projects
from corral.domain.settings import ops as settings
from corral.domain.tasks import review
from corral.domain.tasks.model import CommandResult, Task
from corral.kernel.errors import Refused
from corral.services.identity import check_environment

if TYPE_CHECKING:
    from corral.db.database import Database


def check(database: "Database", task: str) -> Task:
    """Run the check of a submitted task; see `Tasks.check`."""
    return _run_check(database, database.write(lambda tx: review.begin_check(tx, task)))


def check_next(database: "Database") -> Task | None:
    """Run the oldest pending check; see `Tasks.check_next`."""
    while (task := database.write(review.begin_next_check)) is not None:
        try:
            return _run_check(database, task)
        except Refused:
            continue
    return None


def _run_check(database: "Database", task: Task) -> Task:
    from corral.adapters.sandbox.checks import run_check

    def read_limits(tx: Tx) -> tuple[str, int]:
        project = task.project_id
        timeout_ms = settings.get_value(tx, "tasks.check_timeout_ms", project=project)
        return task.dir or projects.get(tx, project).dir, int(timeout_ms)

    dir, timeout_ms = database.read(read_limits)
    if not os.path.isdir(dir):
        raise Refused(
            f"{task.id} was done in {dir}, which is not on this machine. Check it there.",
            id=task.id,
            dir=dir,
        )
    assert task.check_command is not None
    ended = run_check(
        task.check_command,
        dir,
        timeout_ms=timeout_ms,
        environment={"CORRAL_TASK": task.id} | check_environment(database),
    )
    result = CommandResult(task.check_command, ended.exit_code, ended.output)
    return database.write(lambda tx: review.conclude_check(tx, task, result), repeatable=True)
