"""Resource usage of a run's process tree, measured less often the longer the run lasts."""

import time

from corral.adapters.processes import process
from corral.adapters.processes.process import ProcessUsage

FIRST_INTERVAL = 1.0  # seconds; doubles with each measurement
MAX_INTERVAL = 60.0


class ResourceMeter:
    """Processor time and peak memory so far, and when to measure next."""

    def __init__(self) -> None:
        self._interval = FIRST_INTERVAL
        self.next_poll = time.monotonic() + FIRST_INTERVAL
        self.cpu_ms: int | None = None
        self.peak_bytes: int | None = None

    def measure(self, agent_process: process.ProcessIdentity | None) -> ProcessUsage | None:
        """Measure now; return None if the usage cannot be read."""
        self._interval = min(self._interval * 2, MAX_INTERVAL)
        self.next_poll = time.monotonic() + self._interval
        usage = process.measure_usage(agent_process.pid) if agent_process is not None else None
        if usage is not None:
            self.cpu_ms = max(self.cpu_ms or 0, usage.cpu_ms)
            self.peak_bytes = max(self.peak_bytes or 0, usage.memory_bytes)
        return usage
