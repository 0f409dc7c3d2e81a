"""The scripts of schedules are run when their moments come, one after the other."""

import os
import time

from corral.adapters import process
from corral.api import Corral
from corral.daemon.loop import Plain

LONGEST_SLEEP = 30.0


class Checker(Plain):
    name = "checker"

    def __init__(self) -> None:
        self._owner = f"checker:{process.host()}:{os.getpid()}:{time.monotonic_ns()}"

    def round(self, store: Corral) -> int:
        due = store.schedules.next_script()
        if due is None or due > store.now():
            return 0  # nobody waits in line to find that out
        return 0 if store.schedules.run_script(owner=self._owner) is None else 1

    def pause(self, store: Corral) -> float:
        due = store.schedules.next_script()
        if due is None:
            return LONGEST_SLEEP
        return min(max((due - store.now()) / 1_000, 0.05), LONGEST_SLEEP)
