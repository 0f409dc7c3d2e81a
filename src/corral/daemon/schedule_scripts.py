"""Scripts of schedules, run one after the other when they are due."""

import os
import time

from corral.adapters import process
from corral.api import Corral
from corral.daemon.loop import BaseLoop

MAX_SLEEP = 30.0


class ScheduleScripts(BaseLoop):
    """Runs the script of one due occurrence per round."""

    name = "schedule_scripts"

    def __init__(self) -> None:
        self._owner = f"schedule_scripts:{process.host()}:{os.getpid()}:{time.monotonic_ns()}"

    def run_once(self, store: Corral) -> int:
        due = store.schedules.next_script()
        if due is None or due > store.now():
            return 0  # known without a write transaction
        return 0 if store.schedules.run_script(owner=self._owner) is None else 1

    def next_delay(self, store: Corral) -> float:
        due = store.schedules.next_script()
        if due is None:
            return MAX_SLEEP
        return min(max((due - store.now()) / 1_000, 0.05), MAX_SLEEP)
