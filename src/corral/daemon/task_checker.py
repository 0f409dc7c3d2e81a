"""Checks of submitted tasks, run one after the other."""

from corral.api import Corral
from corral.daemon.loop import BaseLoop

MAX_SLEEP = 30.0


class TaskChecker(BaseLoop):
    """Runs the checks of one submitted task per round."""

    name = "task_checker"
    needs_leader = False  # a check runs where the work was done

    def run_once(self, store: Corral) -> int:
        return 0 if store.tasks.check_next() is None else 1

    def next_delay(self, store: Corral) -> float:
        # A submission is a commit; only a task whose checker crashed needs the timeout.
        return MAX_SLEEP
