"""The work of a scheduler: fire due schedules, and run the script of each due occurrence.

The loops of the daemon and `corral schedule fire` call it. Several schedulers may run on one store:
each occurrence fires once.
"""

import os
import time
from collections.abc import Iterator

from corral.adapters.processes import process
from corral.api import Corral
from corral.domain.mail.model import Letter
from corral.kernel.deadline import seconds_until
from corral.services.wait import MIN_SLEEP

MAX_SLEEP = 30.0  # in case a wake-up is lost


def create_script_owner() -> str:
    """Return a claim owner of scripts that identifies this process."""
    return f"schedule_scripts:{process.host()}:{os.getpid()}:{time.monotonic_ns()}"


def fire_due(store: Corral) -> list[Letter]:
    """Fire the due schedules and timers; returns their letters."""
    next_at = store.schedules.next_at()
    if next_at is None or next_at > store.now():
        return []  # known without a write transaction
    return store.schedules.fire_due()


def run_due_script(store: Corral, owner: str) -> bool:
    """Run the script of one due occurrence; returns False if none is due."""
    due = store.schedules.next_script()
    if due is None or due > store.now():
        return False  # known without a write transaction
    return store.schedules.run_script(owner=owner) is not None


def seconds_until_next(store: Corral) -> float:
    """Return the seconds until the next schedule or timer is due."""
    return seconds_until(store, store.schedules.next_at(), at_least=MIN_SLEEP, at_most=MAX_SLEEP)


def seconds_until_next_script(store: Corral) -> float:
    """Return the seconds until the next script is due."""
    return seconds_until(store, store.schedules.next_script(), at_most=MAX_SLEEP)


def run_scheduler(store: Corral) -> Iterator[Letter]:
    """Fire schedules and run their scripts without end; yields each letter.

    Sleeps until the next occurrence, or until a commit may have added an earlier one.
    """
    owner = create_script_owner()
    with store.listening() as listener:
        while True:
            letters = fire_due(store)
            yield from letters
            store.internal.mail.expire_due()
            if not letters and not run_due_script(store, owner):
                listener.wait(min(seconds_until_next(store), seconds_until_next_script(store)))
