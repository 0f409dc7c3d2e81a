"""Schedules: each due occurrence puts a letter into its mailbox, or runs a script."""

import os
import time
from collections.abc import Iterator

from corral.adapters import process
from corral.api import Corral
from corral.daemon.loop import BaseLoop, seconds_until
from corral.domain.mail.model import Letter
from corral.services.wait import MIN_SLEEP

MAX_SLEEP = 30.0  # in case a wake-up is lost


class Scheduler(BaseLoop):
    """Fires due schedules and timers."""

    name = "scheduler"

    def run_once(self, store: Corral) -> int:
        next_at = store.schedules.next_at()
        if next_at is None or next_at > store.now():
            return 0  # known without a write transaction
        return len(store.schedules.fire_due())

    def next_delay(self, store: Corral) -> float:
        next_at = store.schedules.next_at()
        return seconds_until(store, next_at, at_least=MIN_SLEEP, at_most=MAX_SLEEP)


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
        return seconds_until(store, store.schedules.next_script(), at_most=MAX_SLEEP)


def run_scheduler(store: Corral) -> Iterator[Letter]:
    """Fire schedules and run their scripts without end; yields each letter.

    Sleeps until the next occurrence, or until a commit may have added an earlier one. Several
    schedulers may run on one store: each occurrence fires once.
    """
    schedules, scripts = Scheduler(), ScheduleScripts()
    with store.listening() as listener:
        while True:
            letters = store.schedules.fire_due()
            yield from letters
            store.internal.mail.expire_due()
            if not letters and not scripts.run_once(store):
                listener.wait(min(schedules.next_delay(store), scripts.next_delay(store)))
