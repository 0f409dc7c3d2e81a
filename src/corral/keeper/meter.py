"""How much a run's whole process tree uses, measured less and less often as it grows older."""

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from corral.adapters import process
from corral.kernel.errors import CorralError
from corral.rooms.runs.model import Run, Sample

if TYPE_CHECKING:
    from corral.library import Corral

FIRST = 1.0
LONGEST = 60.0


class Meter:
    """The peak and the sum, and when to look next."""

    def __init__(self, store: "Corral") -> None:
        self._store = store
        self._every = FIRST
        self.next_look = time.monotonic() + FIRST
        self.cpu_ms: int | None = None
        self.peak_bytes: int | None = None

    def look(self, run: Run, agent: process.Identity | None, *, keep: bool) -> None:
        """Measure now; what cannot be measured stays unknown. `keep`: the store is there."""
        self._every = min(self._every * 2, LONGEST)
        self.next_look = time.monotonic() + self._every
        used = process.usage(agent.pid) if agent is not None else None
        if used is None:
            return
        self.cpu_ms = max(self.cpu_ms or 0, used.cpu_ms)
        self.peak_bytes = max(self.peak_bytes or 0, used.memory_bytes)
        if not keep:
            return
        with suppress(CorralError):
            sample = Sample(self._store.now(), used.cpu_ms, used.memory_bytes, used.processes)
            self._store.runs.add_sample(run, sample)
