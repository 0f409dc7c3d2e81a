"""The janitor loop: expires leases and deadlines, and deletes rows by retention.

Reads also expire overdue rows; the janitor expires the rows that are not read.
"""

import time

from corral.api import Corral
from corral.daemon.loop import BaseLoop

EXPIRE_SECONDS = 10.0
PRUNE_SECONDS = 3_600.0
# Not at the start: a daemon that crashes early would prune again and again.
FIRST_PRUNE_SECONDS = 60.0


class Janitor(BaseLoop):
    """Expires letters, locks, tasks, delegations, questions and decisions, and prunes old rows."""

    name = "janitor"
    wakes_on_commit = False

    def __init__(self) -> None:
        self._next_prune = time.monotonic() + FIRST_PRUNE_SECONDS

    def run_once(self, store: Corral) -> int:
        done = len(store.internal.mail.expire_due()) + len(store.internal.locks.expire_due())
        done += len(store.tasks.release_due()) + len(store.delegations.expire_due())
        done += len(store.internal.questions.expire_due()) + len(
            store.internal.decisions.expire_due()
        )
        if time.monotonic() >= self._next_prune:
            done += sum(pruned.rows for pruned in store.db.prune())
            self._next_prune = time.monotonic() + PRUNE_SECONDS
        return done

    def next_delay(self, store: Corral) -> float:
        return EXPIRE_SECONDS
