"""Reading an output: while it grows, after it was sealed, and while that happens.

Offsets count the bytes that the run wrote, before and after sealing alike. What is read is always
redacted; bytes of a growing file that may still turn out to be part of a secret are not given out
before that is known. Lines are counted in what is shown, from 0.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from corral.adapters.output.frames import Data
from corral.adapters.output.plain import Plain
from corral.adapters.output.redact import Redactor
from corral.adapters.output.seal import sealed_file
from corral.adapters.output.sealed import Piece, Sealed, open_sealed
from corral.kernel.errors import NotFound

SHORTEST_PAUSE, LONGEST_PAUSE = 0.005, 0.1


class Output:
    """A run's output in its folder, whatever form it has at the moment."""

    def __init__(
        self, folder: Path, name: str = "output", *, redactor: Callable[[], Redactor] = Redactor
    ) -> None:
        self._path = folder / name
        self._redactor = redactor
        self._open: Plain | Sealed | None = None

    def exists(self) -> bool:
        """Whether there is anything to be read."""
        return self._find() is not None

    @property
    def size(self) -> int:
        """How many bytes the run has written."""
        return self._text().size

    def lines(self, start: int, count: int) -> list[Data]:
        """Lines without their ends, from the `start`th on."""
        return self._text().lines(start, count)

    def tail(self, count: int) -> list[Data]:
        """The last lines."""
        return self._text().tail(count)

    def bytes(self, offset: int, length: int) -> Data:
        """The text of so many bytes of what the run wrote.

        A piece that stands as something else belongs, as a whole, to the offset of its beginning.
        """
        return self._text().bytes(offset, length)

    def follow(
        self,
        offset: int = 0,
        *,
        over: Callable[[], bool],
        wait: Callable[[float], object] = time.sleep,
    ) -> Iterator[Piece]:
        """All text from an offset on, as it comes, until `over` says that nothing more will.

        Each piece has the offset from which another reader could go on. `wait` is called with a
        number of seconds while nothing comes. It survives sealing: a file that was opened is read
        to its end, also when its name is gone.
        """
        pause = SHORTEST_PAUSE
        while True:
            ended = over()  # asked first: what was written before the end is read then
            found = self._find()
            if isinstance(found, Sealed):
                yield from found.follow(offset)
                return
            if found is not None:
                yield from self._follow(found, offset, over, wait)
                return
            if ended:
                return
            wait(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    def _follow(
        self, plain: Plain, offset: int, over: Callable[[], bool], wait: Callable[[float], object]
    ) -> Iterator[Piece]:
        walk = plain.walk(offset)
        pause = SHORTEST_PAUSE
        while True:
            ended = over() or plain.removed
            part = walk.read()
            if part is None and ended:
                part = walk.finish()
                if rest := part.between(offset):
                    yield Piece(part.end, rest)
                return
            if part is None:
                wait(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            elif text := part.between(offset):
                yield Piece(part.end, text)
                pause = SHORTEST_PAUSE

    def _text(self) -> Plain | Sealed:
        found = self._find()
        if found is None:
            raise NotFound(
                f"There is no output in {self._path.parent}; it was removed, or has not begun.",
                folder=str(self._path.parent),
                reason="no_output",
            )
        return found

    def _find(self) -> Plain | Sealed | None:
        """The plain file while it is there, else the sealed one; what is open already, if it is
        still that."""
        if isinstance(self._open, Sealed) or (self._open is not None and not self._open.removed):
            return self._open
        try:
            self._open = Plain(self._path, self._redactor)
        except FileNotFoundError:
            self._open = open_sealed(sealed_file(self._path))
        return self._open
