"""The output files of a running agent, written by the agent itself or copied by the supervisor."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from corral.kernel.clock import SystemClock
from corral.supervisor.streams import OUTPUT, STDERR

if TYPE_CHECKING:
    from corral.adapters.output.capped_file import CappedWriter

REPLAY_BYTES = 1 << 16  # recent output that a client gets when it attaches
MIN_CUT_BYTES = 1 << 20  # cutting less is not worth the effort


class OutputWriter:
    """Writes copied output, redacted and capped; caps files that the agent writes itself."""

    def __init__(self, folder: Path, *, cap: int, secrets: Iterable[str]) -> None:
        self._folder = folder
        self._cap = cap
        self._secrets = list(secrets)
        self._writers: dict[str, CappedWriter] = {}  # a file is opened when it is first written
        self._recent = bytearray()
        self.lost_bytes = 0
        """Bytes that could not be written; `error` is the reason of the last failure."""
        self.error: str | None = None

    @property
    def recent(self) -> bytes:
        """The end of the copied output, for a client that attaches now."""
        return bytes(self._recent[-REPLAY_BYTES:])

    def write(self, data: bytes) -> None:
        """Append output from the agent's terminal or pipe; secrets are redacted first."""
        self._write(OUTPUT, data)
        self._recent += data[-REPLAY_BYTES:]
        if len(self._recent) > 4 * REPLAY_BYTES:
            del self._recent[:-REPLAY_BYTES]

    def write_errors(self, data: bytes) -> None:
        """Append output from standard error, where it has a file of its own."""
        self._write(STDERR, data)

    def _write(self, name: str, data: bytes) -> None:
        try:
            if name not in self._writers:
                self._writers[name] = self._open(name)
            self._writers[name].write(data)
        except OSError as error:
            # A full disk must not end the run; the loss is reported in its log.
            self.lost_bytes += len(data)
            self.error = error.strerror or type(error).__name__

    def trim(self) -> None:
        """Enforce the cap on a file that the agent writes itself, by freeing its middle."""
        if OUTPUT in self._writers:
            return  # the CappedWriter enforces the cap
        path = self._folder / OUTPUT
        with suppress(OSError):
            if path.stat().st_size > self._cap + self._cap // 8 + MIN_CUT_BYTES:
                from corral.adapters.output.capped_file import cut_middle

                cut_middle(path, self._cap // 2, self._cap // 2)

    def count_bytes(self) -> int:
        """Return how many bytes the agent has written so far."""
        size = sum(writer.bytes for writer in self._writers.values())
        for name in {OUTPUT, STDERR}.difference(self._writers):
            with suppress(OSError):
                size += (self._folder / name).stat().st_size
        return size

    def seconds_since_write(self) -> float:
        """Return the seconds since the agent last wrote to its output file."""
        with suppress(OSError):
            written = os.stat(self._folder / OUTPUT).st_mtime
            return max(0.0, SystemClock().now() / 1_000 - written)
        return float("inf")

    def close(self) -> None:
        while self._writers:
            try:
                self._writers.popitem()[1].close()
            except OSError as error:
                self.error = error.strerror or type(error).__name__

    def _open(self, name: str) -> "CappedWriter":
        from corral.adapters.output.capped_file import CappedWriter
        from corral.adapters.output.redact import Redactor

        return CappedWriter(self._folder / name, self._cap, Redactor(self._secrets))
