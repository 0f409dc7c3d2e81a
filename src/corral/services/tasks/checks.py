"""Checks of submitted tasks: run the check command, and accept or reject by its result."""

import os
from functools import partial
from typing import TYPE_CHECKING

from corral.domain.settings import ops as settings
from corral.domain.tasks import review
from corral.domain.tasks.model import CommandResult, LocatedTask, Task
from corral.kernel.errors import Conflict, Invalid, NotFound, Refused
from corral.services.identity import check_environment

if TYPE_CHECKING:
    from corral.db.database import Database


def check(database: "Database", task: str) -> Task:
    """Run the check of a submitted task; see `Tasks.check`."""
    located = database.read(lambda tx: review.locate_check(tx, task))
    if not os.path.isdir(located.dir):
        raise Refused(
            f"{located.id} was done in {located.dir}, which is not on this machine. "
            "Check it there.",
            id=located.id,
            dir=located.dir,
        )
    return _run_check(database, database.write(lambda tx: review.begin_check(tx, located)), located)


def check_next(database: "Database") -> Task | None:
    """Run the oldest pending check of this machine; see `Tasks.check_next`."""
    for located in database.read(review.list_pending_checks):
        # Before the claim, because a claim prevents the right machine from running the check.
        if not os.path.isdir(located.dir):
            continue
        try:
            task = database.write(partial(review.begin_check, located=located))
        except (Conflict, Invalid, NotFound):
            continue  # claimed, reviewed, edited or deleted since it was listed
        return _run_check(database, task, located)
    return None


def _run_check(database: "Database", task: Task, located: LocatedTask) -> Task:
    from corral.adapters.sandbox.checks import run_check

    timeout_ms = database.read(
        lambda tx: int(settings.get_value(tx, "tasks.check_timeout_ms", project=task.project_id))
    )
    assert task.check_command is not None
    ended = run_check(
        task.check_command,
        located.dir,
        timeout_ms=timeout_ms,
        environment={"CORRAL_TASK": task.id} | check_environment(database),
    )
    result = CommandResult(task.check_command, ended.exit_code, ended.output)
    return database.write(lambda tx: review.conclude_check(tx, task, result), repeatable=True)
