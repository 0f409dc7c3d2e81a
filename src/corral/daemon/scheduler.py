"""Schedules: each due occurrence puts a letter into its mailbox, or runs a script."""

from corral.api import Corral, scheduler
from corral.daemon.loop import BaseLoop


class Scheduler(BaseLoop):
    """Fires due schedules and timers."""

    name = "scheduler"

    def run_once(self, store: Corral) -> int:
        return len(scheduler.fire_due(store))

    def next_delay(self, store: Corral) -> float:
        return scheduler.seconds_until_next(store)


class ScheduleScripts(BaseLoop):
    """Runs the script of one due occurrence per round."""

    name = "schedule_scripts"

    def __init__(self) -> None:
        self._owner = scheduler.create_script_owner()

    def run_once(self, store: Corral) -> int:
        return int(scheduler.run_due_script(store, self._owner))

    def next_delay(self, store: Corral) -> float:
        return scheduler.seconds_until_next_script(store)
