"""Progress of races: checks, judges, automatic rounds, and cleanup of worktrees."""

import time

from corral.api import Corral
from corral.daemon.loop import BaseLoop

MAX_SLEEP = 30.0
RECLAIM_SECONDS = 3_600.0


class RaceLoop(BaseLoop):
    """Advances the open races of this machine, and removes worktrees that are no longer used."""

    name = "race_driver"
    needs_leader = False  # a race is driven where its worktrees are
    min_interval = 0.5

    def __init__(self) -> None:
        self._next_reclaim = time.monotonic() + RECLAIM_SECONDS

    def run_once(self, store: Corral) -> int:
        done = store.internal.races.advance_open()
        if time.monotonic() >= self._next_reclaim:
            self._next_reclaim = time.monotonic() + RECLAIM_SECONDS
            done += len(store.races.reclaim())
        return done

    def next_delay(self, store: Corral) -> float:
        # The end of a run is a commit, except when its supervisor crashed.
        return MAX_SLEEP
