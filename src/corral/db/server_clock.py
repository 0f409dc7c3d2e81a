"""The time of a PostgreSQL store: the server's clock."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from corral.kernel.errors import CorralError


class ServerClock:
    """The server's time, so that machines whose own clocks differ agree on leases.

    The server's time is queried now and then. In between, and while the server is away, it is
    extrapolated with the monotonic clock.
    """

    MAX_AGE = 30.0
    """How long one measurement is used, in seconds."""
    MAX_ROUND_TRIP = 0.2
    """Maximum seconds of an accurate measurement; a slower one (a stopped process) is repeated."""
    MAX_TRIES = 5

    def __init__(
        self, ask: Callable[[], int], *, at_first: Callable[[], int] | None = None
    ) -> None:
        """Measure the server's time once.

        `ask` returns the server's time; `at_first` does so faster, for the first measurement.
        """
        self._ask = ask
        self._measuring = threading.Lock()
        self._measurement = self._measure(at_first or ask)

    def now(self) -> int:
        measured_at, server_time = self._measurement
        elapsed = time.monotonic() - measured_at
        if elapsed > self.MAX_AGE and self._measuring.acquire(blocking=False):
            try:
                with suppress(CorralError):
                    measured_at, server_time = self._measurement = self._measure(self._ask)
                    elapsed = time.monotonic() - measured_at
            finally:
                self._measuring.release()
        return server_time + int(elapsed * 1_000)

    def _measure(self, ask: Callable[[], int]) -> tuple[float, int]:
        """Return a monotonic time and the server's time at that moment."""
        best: tuple[float, float, int] | None = None
        for _ in range(self.MAX_TRIES):
            before = time.monotonic()
            server_time = ask()
            after = time.monotonic()
            # The server answered in between; the midpoint is off by at most half the round trip.
            measurement = after - before, (before + after) / 2, server_time
            best = min(best or measurement, measurement)
            if best[0] <= self.MAX_ROUND_TRIP:
                break
        assert best is not None
        return best[1:]
