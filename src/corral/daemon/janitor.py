"""What is older than its setting says is forgotten; what nobody did, took, answered or confirmed in
time ends, or goes back."""

import time

from corral.api import Corral
from corral.daemon.loop import Plain

EXPIRE = 10.0
PRUNE = 3_600.0
FIRST_PRUNE = 60.0  # not at once: a daemon that dies at its start must not begin here every time


class Janitor(Plain):
    name = "janitor"
    heeds = False

    def __init__(self) -> None:
        self._next_prune = time.monotonic() + FIRST_PRUNE

    def round(self, store: Corral) -> int:
        done = len(store.mail.expire_due()) + len(store.locks.expire_due())
        done += len(store.tasks.release_due()) + len(store.delegations.expire_due())
        done += len(store.questions.expire_due()) + len(store.decisions.expire_due())
        if time.monotonic() >= self._next_prune:
            done += sum(pruned.rows for pruned in store.db.prune())
            self._next_prune = time.monotonic() + PRUNE
        return done

    def pause(self, store: Corral) -> float:
        return EXPIRE
