import builtins
import os
from typing import TYPE_CHECKING

from corral.api.operation import Room, read, write
from corral.domain.delegations import ops as delegations
from corral.domain.projects import ops as projects
from corral.domain.runs.model import Run
from corral.domain.settings import ops as settings
from corral.domain.tasks import declare as tasks_declare
from corral.domain.tasks import delegation, lifecycle, ops, retention, review
from corral.domain.tasks.model import Ran, Task
from corral.kernel.errors import Conflict, Invalid, Refused
from corral.services.identity import check_mark

if TYPE_CHECKING:
    from corral.services.tasks.autostart import Start
    from corral.services.tasks.cleanup import TaskLeftover


class Tasks(Room):
    """Projects' graphs of work."""

    noun = "task"

    declare = write(tasks_declare.declare)
    add = write(tasks_declare.add)
    apply = write(tasks_declare.apply)
    templates = read(tasks_declare.templates)
    get = read(ops.get)
    list = read(ops.list_tasks)
    graph = read(ops.graph)
    counts = read(ops.counts)

    claim = write(lifecycle.claim)
    renew = write(lifecycle.renew, repeatable=True)
    submit = write(lifecycle.submit, repeatable=True)
    fail = write(lifecycle.fail)
    release = write(lifecycle.release)
    accept = write(review.accept, repeatable=True)
    reject = write(review.reject)

    retry = write(ops.retry)
    reopen = write(ops.reopen)
    pause = write(ops.pause)
    resume = write(ops.resume)
    skip = write(ops.skip)
    cancel = write(ops.cancel)
    reassign = write(ops.reassign)
    depend = write(ops.depend, repeatable=True)
    undepend = write(ops.undepend, repeatable=True)
    edit = write(ops.edit, repeatable=True)
    archive = write(retention.archive, repeatable=True)
    archive_ended = write(retention.archive_ended, repeatable=True)
    delegate = write(delegation.delegate)

    begin_check = write(review.begin_check)
    conclude_check = write(review.conclude_check, repeatable=True)
    next_lease_end = read(lifecycle.next_lease_end, mode="one")
    _release_due = write(lifecycle.release_due)

    def release_due(self) -> "builtins.list[Task]":
        """Take back the tasks whose doers went silent, and tell those who lead them, once."""
        back: builtins.list[Task] = []
        while some := self._release_due():
            back += some
        return back

    def start_ready(self) -> "builtins.list[Run]":
        """Start the agents of ready tasks in the projects that ask for it (`tasks.auto_start`),
        each in a git worktree of its own, within limits and budgets; gives their runs."""
        from corral.api.runs import Runs
        from corral.services.tasks import autostart

        started = []
        for start in self._database.read(autostart.to_start):
            if os.path.isdir(start.project.dir):
                run = self._start(start)
                started += [run] if run is not None else []
        if started:
            Runs(self._database).start_queued()
        return started

    def _start(self, start: "Start") -> Run | None:
        from corral import config
        from corral.adapters import worktrees
        from corral.services.tasks import autostart as tasks_autostart

        folder = tasks_autostart.worktrees_folder() / start.project.id
        branch = worktrees.branch_name(start.task.key, start.task.id)
        try:
            config.make_private_folder(folder)
            dir = worktrees.make(
                start.project.dir, str(folder / start.task.id), branch, own_branch=True
            )
            return self._database.write(lambda tx: tasks_autostart.begin(tx, start, dir))
        except Conflict:
            return None  # somebody else has taken it, or works on the same files
        except (Refused, Invalid) as error:
            why = str(error)
            self._database.write(lambda tx: tasks_autostart.not_started(tx, start.task, why))
            return None

    def clean(self, project: str, *, confirm: bool = False) -> "builtins.list[TaskLeftover]":
        """The worktrees of a project's tasks on this machine, and what becomes of each: only those
        of tasks that are over, with nothing in them that is not elsewhere too, are removed, with
        their branches. Without `confirm` it is only said what would be done."""
        from corral.services.tasks import cleanup

        return cleanup.clean(self._database, project, confirm=confirm)

    def check(self, task: str) -> Task:
        """Run the check of a submitted task where it was done, and accept or reject it by that."""
        begun = self.begin_check(task)
        assert begun is not None
        return self._check(begun)

    def check_next(self) -> Task | None:
        """Run the check that waits for longest; None when there is none.

        One whose directory is not on this machine is left to others for a while.
        """
        while (begun := self.begin_check()) is not None:
            try:
                return self._check(begun)
            except Refused:
                continue
        return None

    def _check(self, task: Task) -> Task:
        from corral.adapters.checks import run_check

        dir, timeout_ms = self._database.read(
            lambda tx: (
                task.dir or projects.get(tx, task.project_id).dir,
                int(settings.value(tx, "tasks.check_timeout_ms", project=task.project_id)),
            )
        )
        if not os.path.isdir(dir):
            raise Refused(
                f"{task.id} was done in {dir}, which is not on this machine; check it there.",
                id=task.id,
                dir=dir,
            )
        assert task.check_command is not None
        ended = run_check(
            task.check_command,
            dir,
            timeout_ms=timeout_ms,
            environment={"CORRAL_TASK": task.id} | check_mark(self._database),
        )
        return self.conclude_check(task, Ran(task.check_command, ended.exit_code, ended.output))


class Delegations(Room):
    """Work that one handed to another."""

    noun = "delegation"

    delegate = write(delegations.delegate)
    finish = write(delegations.finish, repeatable=True)
    fail = write(delegations.fail)
    cancel = write(delegation.cancel_delegation)
    get = read(delegations.get)
    list = read(delegations.list_delegations)
    expire_due = write(delegation.expire_delegations)
    next_deadline = read(delegations.next_deadline, mode="one")
