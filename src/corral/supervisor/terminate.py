"""Termination of a run's processes without blocking: request to quit, SIGTERM, then SIGKILL."""

import signal
import time

from corral.adapters.processes import process

KILL_SECONDS = 0.2  # between two rounds of SIGKILL


class Terminator:
    """Terminates all processes of a run, one step at a time.

    The supervisor keeps reading the output of the agent between the steps.
    """

    def __init__(
        self,
        root: process.ProcessIdentity | None,
        mark: str,
        *,
        guard: process.ProcessIdentity | None,
        grace_period_ms: int,
        asked: bool,
    ) -> None:
        """`asked`: the agent was asked to quit, and gets the grace period before SIGTERM too."""
        self._root = root
        self._mark = mark
        self._guard = guard
        self._asked = asked
        self._grace = grace_period_ms / 1_000
        self._sent: signal.Signals | None = None
        self.next_step = time.monotonic() + self._grace
        if not asked:
            self._signal(signal.SIGTERM)

    @property
    def forced_by(self) -> signal.Signals | None:
        """The last signal sent after a gentler request had failed, or None."""
        if self._sent is signal.SIGKILL or self._asked:
            return self._sent
        return None

    def step(self, now: float) -> None:
        """Take the next step once the grace period is over; repeats SIGKILL for new processes."""
        if now < self.next_step:
            return
        if self._sent is None:
            self._signal(signal.SIGTERM)
            self.next_step = now + self._grace
        else:
            self._signal(signal.SIGKILL)
            self.next_step = now + KILL_SECONDS

    def set_grace_period(self, grace_period_ms: int) -> None:
        """Send SIGTERM now, unless it was sent, and SIGKILL after this period.

        A period that began with an earlier SIGTERM is only shortened.
        """
        self._grace = grace_period_ms / 1_000
        deadline = time.monotonic() + self._grace
        if self._sent is None:
            self._signal(signal.SIGTERM)
            self.next_step = deadline
        else:
            self.next_step = min(self.next_step, deadline)

    def skip_request(self) -> None:
        """Send SIGTERM now, because the agent did not accept the request to quit."""
        if self._sent is None:
            self._signal(signal.SIGTERM)
            self.next_step = time.monotonic() + self._grace

    def _signal(self, number: signal.Signals) -> None:
        self._sent = number
        members = process.find_run_processes(
            self._root, self._mark, guard=self._guard, spare_others=True
        )
        for member in members:
            process.send_signal(member, number)
            # A stopped process does not handle SIGTERM until it is continued.
            process.send_signal(member, signal.SIGCONT)
