"""Schedules: each due occurrence puts a letter into its mailbox."""

from collections.abc import Iterator

from corral.api import Corral
from corral.api.wait import MIN_SLEEP
from corral.daemon.loop import BaseLoop
from corral.daemon.schedule_scripts import ScheduleScripts
from corral.domain.mail.model import Letter

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
        return _seconds_until_next(store)


def run_scheduler(store: Corral) -> Iterator[Letter]:
    """Fire schedules and run their scripts without end; yields each letter.

    Sleeps until the next occurrence, or until a commit may have added an earlier one. Several
    schedulers may run on one store: each occurrence fires once.
    """
    scripts = ScheduleScripts()
    with store.listening() as listener:
        while True:
            letters = store.schedules.fire_due()
            yield from letters
            store.internal.mail.expire_due()
            if not letters and not scripts.run_once(store):
                listener.wait(min(_seconds_until_next(store), scripts.next_delay(store)))


def _seconds_until_next(store: Corral) -> float:
    next_at = store.schedules.next_at()
    if next_at is None:
        return MAX_SLEEP
    return min(max((next_at - store.now()) / 1_000, MIN_SLEEP), MAX_SLEEP)
