"""Automatic start of ready tasks, in projects that enable it."""

from corral.api import Corral
from corral.daemon.loop import BaseLoop

MAX_SLEEP = 30.0


class TaskStarter(BaseLoop):
    """Starts ready tasks, each in a worktree of its own."""

    name = "task_starter"
    needs_leader = False  # a worktree is created where the project is
    min_interval = 0.5

    def run_once(self, store: Corral) -> int:
        return len(store.internal.tasks.start_ready())

    def next_delay(self, store: Corral) -> float:
        # A task that becomes ready, or a slot that becomes free, is a commit.
        return MAX_SLEEP
