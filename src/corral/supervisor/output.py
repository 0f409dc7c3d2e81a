"""A run's output while it is written: by the agent itself, or by the keeper who copies it."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from corral.kernel.clock import SystemClock
from corral.supervisor.streams import ERRORS, OUTPUT

if TYPE_CHECKING:
    from corral.adapters.output.capped import CappedWriter

REPLAY = 1 << 16
LEAST_CUT = 1 << 20  # cutting less is not worth it


class Output:
    """Opened for writing only when there is something to copy."""

    def __init__(self, folder: Path, *, cap: int, secrets: Iterable[str]) -> None:
        self._folder = folder
        self._cap = cap
        self._secrets = list(secrets)
        self._writers: dict[str, CappedWriter] = {}
        self._end = bytearray()
        self.lost_bytes = 0
        """What could not be written, and `trouble` why."""
        self.trouble: str | None = None

    @property
    def recent(self) -> bytes:
        """The end of what was copied, for those who begin to watch now."""
        return bytes(self._end[-REPLAY:])

    def write(self, data: bytes) -> None:
        """Keep what the agent wrote into its terminal or pipe; secrets are taken out first."""
        self._write(OUTPUT, data)
        self._end += data[-REPLAY:]
        if len(self._end) > 4 * REPLAY:
            del self._end[:-REPLAY]

    def write_errors(self, data: bytes) -> None:
        """The same for its standard error."""
        self._write(ERRORS, data)

    def _write(self, name: str, data: bytes) -> None:
        try:
            if name not in self._writers:
                self._writers[name] = self._open(name)
            self._writers[name].write(data)
        except OSError as error:
            # A full disk must not end the run; what is missing is said.
            self.lost_bytes += len(data)
            self.trouble = error.strerror or type(error).__name__

    def trim(self) -> None:
        """Free the middle of a file that the agent writes by itself and that is too long."""
        if OUTPUT in self._writers:
            return  # whoever copies cuts by itself
        path = self._folder / OUTPUT
        with suppress(OSError):
            if path.stat().st_size > self._cap + self._cap // 8 + LEAST_CUT:
                from corral.adapters.output.capped import punch

                punch(path, self._cap // 2, self._cap // 2)

    def bytes(self) -> int:
        """How much the agent wrote so far."""
        size = sum(writer.bytes for writer in self._writers.values())
        for name in {OUTPUT, ERRORS}.difference(self._writers):
            with suppress(OSError):
                size += (self._folder / name).stat().st_size
        return size

    def age(self) -> float:
        """Seconds since the agent wrote something into its file."""
        with suppress(OSError):
            written = os.stat(self._folder / OUTPUT).st_mtime
            return max(0.0, SystemClock().now() / 1_000 - written)
        return float("inf")

    def close(self) -> None:
        while self._writers:
            try:
                self._writers.popitem()[1].close()
            except OSError as error:
                self.trouble = error.strerror or type(error).__name__

    def _open(self, name: str) -> "CappedWriter":
        from corral.adapters.output.capped import CappedWriter
        from corral.adapters.output.redact import Redactor

        return CappedWriter(self._folder / name, self._cap, Redactor(self._secrets))
