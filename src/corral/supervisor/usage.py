"""How much a run's whole process tree uses, measured less and less often as it grows older."""

import time

from corral.adapters import process
from corral.adapters.process import Usage

FIRST = 1.0
LONGEST = 60.0


class Meter:
    """The peak and the sum, and when to look next."""

    def __init__(self) -> None:
        self._every = FIRST
        self.next_look = time.monotonic() + FIRST
        self.cpu_ms: int | None = None
        self.peak_bytes: int | None = None

    def look(self, agent: process.Identity | None) -> Usage | None:
        """Measure now; what cannot be measured stays unknown."""
        self._every = min(self._every * 2, LONGEST)
        self.next_look = time.monotonic() + self._every
        used = process.usage(agent.pid) if agent is not None else None
        if used is not None:
            self.cpu_ms = max(self.cpu_ms or 0, used.cpu_ms)
            self.peak_bytes = max(self.peak_bytes or 0, used.memory_bytes)
        return used
