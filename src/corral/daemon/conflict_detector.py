"""Agents whose worktrees will conflict are told before they merge."""

from corral.api import Corral
from corral.daemon.loop import Plain

LONGEST_SLEEP = 300.0


class Forecaster(Plain):
    name = "forecaster"
    is_led = False  # worktrees are looked at where they are
    rest = 60.0  # trying merges costs more than any other round, and nobody waits for it

    def round(self, store: Corral) -> int:
        return len(store.locks.forecast_live())

    def pause(self, store: Corral) -> float:
        """A run that is at work says so again and again, and each time is a commit."""
        return LONGEST_SLEEP
