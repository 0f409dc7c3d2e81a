"""Reading a sealed output: any part of it, without unpacking the rest."""

import os
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from corral.adapters.output.frames import (
    FRAME,
    Data,
    Frames,
    Index,
    Marks,
    ReadAt,
    new_hash,
    read_index,
    unpack_marks,
    unpacker,
    unpacker_error,
)
from corral.adapters.output.lines import Gatherer
from corral.adapters.output.opening import open_regular
from corral.kernel.errors import StoreUnavailable


class Piece(NamedTuple):
    """Some text, and the offset at which the next piece begins."""

    next: int
    text: bytes


class Sealed:
    """A sealed output, from a file or from a store."""

    def __init__(self, read_at: ReadAt, index: Index) -> None:
        self.index = index
        self._read_at = read_at
        self._frames = Frames(index.frames, index.packed_bytes)
        self._marks = Marks(unpack_marks(index.marks))
        self._unpacker = unpacker()
        self._last = (-1, b"")

    @property
    def size(self) -> int:
        return self.index.bytes

    def lines(self, start: int, count: int) -> list[Data]:
        if count <= 0 or start < 0:
            return []
        ends = self._frames.lines
        nth = max(bisect_left(ends, start) - 1, 0)
        found = Gatherer(start - ends[nth] if len(ends) else 0, count)
        while nth < len(ends) and not found.full:
            found.feed(self._frame(nth))
            nth += 1
        return found.finish()

    def tail(self, count: int) -> list[Data]:
        return self.lines(max(self.index.lines - count, 0), count)

    def bytes(self, offset: int, length: int) -> Data:
        offset = max(offset, 0)
        end = min(offset + max(length, 0), self.size)
        if end <= offset:
            return b""
        return self._text(self._marks.text_of(offset), self._marks.text_of(end))

    def follow(
        self,
        offset: int = 0,
        *,
        over: Callable[[], bool] = lambda: True,
        wait: Callable[[float], object] = lambda seconds: None,
    ) -> Iterator[Piece]:
        """All that comes from an offset on. It is there already: nobody is asked or waited for."""
        begin = self._marks.text_of(min(max(offset, 0), self.size))
        while begin < self.index.text_bytes:
            # Never within a piece that was replaced, so that one can go on from any offset.
            end = self._marks.whole(min(begin - begin % FRAME + FRAME, self.index.text_bytes))
            yield Piece(self._marks.source_of(end), self._text(begin, end))
            begin = end

    def text_hash(self) -> str:
        """What all of the text really hashes to, read anew; StoreUnavailable where it cannot be."""
        found = new_hash()
        for nth in range(len(self._frames)):
            found.update(self._unpack(nth))
        return str(found.hexdigest())

    def _text(self, begin: int, end: int) -> Data:
        if end <= begin:
            return b""
        first = begin // FRAME
        frames = [self._frame(nth) for nth in range(first, (end - 1) // FRAME + 1)]
        return b"".join(frames)[begin - first * FRAME : end - first * FRAME]

    def _frame(self, nth: int) -> Data:
        last, text = self._last  # one look: another thread may be reading too
        if last != nth:
            text = self._unpack(nth)
            self._last = (nth, text)
        return text

    def _unpack(self, nth: int) -> Data:
        place, end = self._frames.places[nth], self._frames.places[nth + 1]
        try:
            text: Data = self._unpacker.decompress(self._read_at(place, end - place))
        except unpacker_error():
            raise StoreUnavailable(
                f"Part {nth} of the sealed output is damaged; restore it from a back-up.",
                reason="corrupt",
            ) from None
        return text


class _OpenFile:
    """A file for as long as somebody reads it."""

    def __init__(self, path: Path) -> None:
        self._descriptor = -1
        self._descriptor = open_regular(path)
        self.size = os.fstat(self._descriptor).st_size

    def read_at(self, offset: int, length: int) -> bytes:
        return os.pread(self._descriptor, length, offset)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


def open_sealed(path: Path) -> Sealed | None:
    """A sealed file, if there is one."""
    try:
        file = _OpenFile(path)
    except FileNotFoundError:
        return None
    return Sealed(file.read_at, read_index(file.read_at, file.size))
