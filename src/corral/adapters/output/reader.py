"""Read an output while it grows, after it was sealed, and during the transition.

Offsets count the bytes that the run wrote, before and after sealing. The text is always redacted:
bytes at the end of a growing file that may be part of a secret are held back until that is known.
Lines are counted in the redacted text, from 0.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from corral.adapters.output.plain_file import PlainOutput
from corral.adapters.output.redact import Redactor
from corral.adapters.output.seal import sealed_path
from corral.adapters.output.sealed_file import OutputChunk, SealedOutput, open_sealed
from corral.adapters.output.sealed_format import Data
from corral.kernel.errors import NotFound

MIN_PAUSE, MAX_PAUSE = 0.005, 0.1


class OutputFiles:
    """The output of a run in its folder, in its current form: plain or sealed."""

    def __init__(
        self, folder: Path, name: str = "output", *, redactor: Callable[[], Redactor] = Redactor
    ) -> None:
        self._path = folder / name
        self._redactor = redactor
        self._open: PlainOutput | SealedOutput | None = None

    def exists(self) -> bool:
        """Whether there is an output."""
        return self._find() is not None

    @property
    def size(self) -> int:
        """Bytes that the run has written."""
        return self._text().size

    def lines(self, start: int, count: int) -> list[Data]:
        """Return up to `count` lines from line `start` on, without line ends."""
        return self._text().lines(start, count)

    def tail(self, count: int) -> list[Data]:
        """Return the last `count` lines."""
        return self._text().tail(count)

    def bytes(self, offset: int, length: int) -> Data:
        """Return the text of `length` bytes of the source.

        A replacement belongs completely to the offset of its beginning.
        """
        return self._text().bytes(offset, length)

    def follow(
        self,
        offset: int = 0,
        *,
        is_finished: Callable[[], bool],
        wait: Callable[[float], object] = time.sleep,
    ) -> Iterator[OutputChunk]:
        """Yield text from an offset on as it is written, until `is_finished` returns True.

        Each chunk has the offset from which another reader can continue. `wait` is called with a
        number of seconds while there is nothing new. Sealing does not interrupt it: an open file is
        read to its end, even after it was unlinked.
        """
        pause = MIN_PAUSE
        while True:
            ended = is_finished()  # before reading: what was written before the end is then read
            output = self._find()
            if isinstance(output, SealedOutput):
                yield from output.follow(offset)
                return
            if output is not None:
                yield from self._follow(output, offset, is_finished, wait)
                return
            if ended:
                return
            wait(pause)
            pause = min(pause * 2, MAX_PAUSE)

    def _follow(
        self,
        plain: PlainOutput,
        offset: int,
        is_finished: Callable[[], bool],
        wait: Callable[[float], object],
    ) -> Iterator[OutputChunk]:
        walk = plain.walk(offset)
        pause = MIN_PAUSE
        while True:
            ended = is_finished() or plain.is_removed
            part = walk.read()
            if part is None and ended:
                part = walk.finish()
                if rest := part.between(offset):
                    yield OutputChunk(part.end, rest)
                return
            if part is None:
                wait(pause)
                pause = min(pause * 2, MAX_PAUSE)
            elif text := part.between(offset):
                yield OutputChunk(part.end, text)
                pause = MIN_PAUSE

    def _text(self) -> PlainOutput | SealedOutput:
        output = self._find()
        if output is None:
            raise NotFound(
                f"No output in {self._path.parent}: the run has not started, or its output was "
                "removed.",
                folder=str(self._path.parent),
                reason="no_output",
            )
        return output

    def _find(self) -> PlainOutput | SealedOutput | None:
        """Return the plain file if it exists, else the sealed one. The open file is reused until it
        is removed."""
        if isinstance(self._open, SealedOutput) or (
            self._open is not None and not self._open.is_removed
        ):
            return self._open
        try:
            self._open = PlainOutput(self._path, self._redactor)
        except FileNotFoundError:
            self._open = open_sealed(sealed_path(self._path))
        return self._open
