"""Races go on: what ended is checked, judges are asked, automatic races go on by themselves. What
no attempt works in any more is cleared away in its time."""

import time

from corral.api import Corral
from corral.daemon.loop import Plain

LONGEST_SLEEP = 30.0
RECLAIM = 3_600.0


class Marshal(Plain):
    name = "marshal"
    is_led = False  # a race goes on where its worktrees are
    rest = 0.5

    def __init__(self) -> None:
        self._next_reclaim = time.monotonic() + RECLAIM

    def round(self, store: Corral) -> int:
        done = store.races.advance_open()
        if time.monotonic() >= self._next_reclaim:
            self._next_reclaim = time.monotonic() + RECLAIM
            done += len(store.races.reclaim())
        return done

    def pause(self, store: Corral) -> float:
        """The end of a run is a commit; one whose keeper died without a word waits for longer."""
        return LONGEST_SLEEP
