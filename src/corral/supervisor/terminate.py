"""Ending a family of processes without blocking: first a request, then SIGTERM, then SIGKILL."""

import signal
import time

from corral.adapters import process

BETWEEN_KILLS = 0.2


class Ender:
    """One family on its way out. The keeper goes on copying its last words meanwhile."""

    def __init__(
        self,
        root: process.Identity | None,
        mark: str,
        *,
        guard: process.Identity | None,
        grace_ms: int,
        quiet: bool,
    ) -> None:
        """`quiet`: the agent was asked to quit, and gets the grace time before SIGTERM too."""
        self._root = root
        self._mark = mark
        self._guard = guard
        self._quiet = quiet
        self._grace = grace_ms / 1_000
        self._sent: signal.Signals | None = None
        self.next_round = time.monotonic() + self._grace
        if not quiet:
            self._signal(signal.SIGTERM)

    @property
    def forced_by(self) -> signal.Signals | None:
        """The last signal sent after a gentler request had failed, or None."""
        if self._sent is signal.SIGKILL or self._quiet:
            return self._sent
        return None

    def go_on(self, now: float) -> None:
        """Take the next step once the grace time is over; repeats SIGKILL for new processes."""
        if now < self.next_round:
            return
        if self._sent is None:
            self._signal(signal.SIGTERM)
            self.next_round = now + self._grace
        else:
            self._signal(signal.SIGKILL)
            self.next_round = now + BETWEEN_KILLS

    def hurry(self, grace_ms: int) -> None:
        """Send SIGTERM now, unless it was sent, and SIGKILL after this grace time at the latest."""
        if self._sent is None:
            self._signal(signal.SIGTERM)
        self._grace = grace_ms / 1_000
        self.next_round = min(self.next_round, time.monotonic() + self._grace)

    def skip_quiet(self) -> None:
        """Send SIGTERM now, because the agent did not accept the request to quit."""
        if self._sent is None:
            self._signal(signal.SIGTERM)
            self.next_round = time.monotonic() + self._grace

    def _signal(self, number: signal.Signals) -> None:
        self._sent = number
        for member in process.family(self._root, self._mark, guard=self._guard, spare_others=True):
            process.send(member, number)
            process.send(member, signal.SIGCONT)  # whoever is stopped hears nothing
