"""Ending a family of processes without standing still: asked first, killed after the grace time."""

import signal
import time

from corral.adapters import process

BETWEEN_KILLS = 0.2


class Ender:
    """One family on its way out. The keeper goes on copying its last words meanwhile."""

    def __init__(
        self, root: process.Identity | None, mark: str, *, grace_ms: int, quiet: bool
    ) -> None:
        """`quiet`: it was asked in its own words already, and gets its time before any signal."""
        self._root = root
        self._mark = mark
        self._kill_at = time.monotonic() + grace_ms / 1_000
        self.next_round = self._kill_at
        if not quiet:
            self._signal(signal.SIGTERM)

    def go_on(self, now: float) -> None:
        """Kill who is left once the time is over; again and again, for a family may grow."""
        if now >= self.next_round:
            self._signal(signal.SIGKILL)
            self.next_round = now + BETWEEN_KILLS

    def hurry(self, grace_ms: int) -> None:
        """Somebody wants it sooner."""
        self.next_round = min(self.next_round, time.monotonic() + grace_ms / 1_000)

    def _signal(self, number: signal.Signals) -> None:
        for member in process.family(self._root, self._mark):
            process.send(member, number)
            process.send(member, signal.SIGCONT)  # whoever is stopped hears nothing
