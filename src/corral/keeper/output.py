"""A run's output while it is written: by the agent itself, or by the keeper who copies it."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from corral.keeper.streams import ERRORS, OUTPUT
from corral.kernel.clock import SystemClock

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
        self._writer: CappedWriter | None = None
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
        try:
            if self._writer is None:
                self._writer = self._open()
            self._writer.write(data)
        except OSError as error:
            # A full disk must not end the run; what is missing is said.
            self.lost_bytes += len(data)
            self.trouble = error.strerror or type(error).__name__
        self._end += data[-REPLAY:]
        if len(self._end) > 4 * REPLAY:
            del self._end[:-REPLAY]

    def trim(self) -> None:
        """Free the middle of a file that the agent writes by itself and that is too long."""
        if self._writer is not None:
            return  # whoever copies cuts by itself
        path = self._folder / OUTPUT
        with suppress(OSError):
            if path.stat().st_size > self._cap + self._cap // 8 + LEAST_CUT:
                from corral.adapters.output.capped import punch

                punch(path, self._cap // 2, self._cap // 2)

    def bytes(self) -> int:
        """How much the agent wrote so far."""
        size = self._writer.bytes if self._writer is not None else 0
        for name in (ERRORS,) if self._writer is not None else (OUTPUT, ERRORS):
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
        if self._writer is not None:
            try:
                self._writer.close()
            except OSError as error:
                self.trouble = error.strerror or type(error).__name__
            self._writer = None

    def _open(self) -> "CappedWriter":
        from corral.adapters.output.capped import CappedWriter
        from corral.adapters.output.redact import Redactor

        return CappedWriter(self._folder / OUTPUT, self._cap, Redactor(self._secrets))
