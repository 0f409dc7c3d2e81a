"""Operations of `store.internal.tasks`."""

from corral.api.operation import Resource, operation
from corral.domain.runs.model import Run


class InternalTasks(Resource):
    """The automatic start of ready tasks."""

    noun = "task"

    @operation()
    def start_ready(self) -> list[Run]:
        """Start the agents of ready tasks in projects with the setting `tasks.auto_start`.

        Each run gets its own git worktree; limits and budgets apply. Returns the runs. A task that
        cannot be started is marked with the reason.
        """
        from corral.services.tasks import autostart

        return autostart.start_ready(self._database)
