"""Operations of `store.internal.tasks`."""

import os
from typing import TYPE_CHECKING

from corral.api.operation import Resource, operation, write
from corral.domain.runs.model import Run
from corral.domain.tasks import review
from corral.kernel.errors import Conflict, Invalid, Refused

if TYPE_CHECKING:
    from corral.services.tasks.autostart import PlannedStart


class InternalTasks(Resource):
    """The automatic start of ready tasks, and the steps of a check."""

    noun = "task"

    begin_check = write(review.begin_check, people_only=True)
    begin_next_check = write(review.begin_next_check, people_only=True)
    conclude_check = write(review.conclude_check, repeatable=True, people_only=True)

    @operation()
    def start_ready(self) -> list[Run]:
        """Start the agents of ready tasks in projects with the setting `tasks.auto_start`.

        Each run gets its own git worktree; limits and budgets apply. Returns the runs. A task that
        cannot be started is marked with the reason.
        """
        from corral.services.runs.dispatch import start_queued
        from corral.services.tasks import autostart

        started = []
        for start in self._database.read(autostart.plan_starts):
            if os.path.isdir(start.project.dir):
                run = self._start(start)
                started += [run] if run is not None else []
        if started:
            start_queued(self._database)
        return started

    def _start(self, start: "PlannedStart") -> Run | None:
        from corral import config
        from corral.adapters.worktrees import worktrees
        from corral.services.tasks import autostart as tasks_autostart

        folder = config.worktrees_folder() / start.project.id
        branch = worktrees.make_branch_name(start.task.key, start.task.id)
        try:
            config.make_private_folder(folder)
            dir = worktrees.create(
                start.project.dir, str(folder / start.task.id), branch, own_branch=True
            )
            return self._database.write(lambda tx: tasks_autostart.start_task(tx, start, dir))
        except Conflict:
            return None  # another process claimed it, or its files are locked
        except (Refused, Invalid) as error:
            reason = str(error)
            self._database.write(
                lambda tx: tasks_autostart.notify_not_started(tx, start.task, reason)
            )
            return None
