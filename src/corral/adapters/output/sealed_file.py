"""Read any part of a sealed output without decompressing the rest."""

import os
from bisect import bisect_left
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from corral.adapters.output.lines import LineCollector
from corral.adapters.output.regular_file import open_regular_file
from corral.adapters.output.sealed_format import (
    FRAME_BYTES,
    Data,
    FrameIndex,
    OffsetMap,
    ReadAt,
    SealIndex,
    decompression_error,
    new_decompressor,
    new_sha256,
    read_index,
    unpack_replacements,
)
from corral.kernel.errors import StoreUnavailable


class OutputChunk(NamedTuple):
    """Some text, and the source offset at which the next chunk begins."""

    next: int
    text: bytes


class SealedOutput:
    """A sealed output, read from a file or from a store."""

    def __init__(self, read_at: ReadAt, index: SealIndex) -> None:
        self.index = index
        self._read_at = read_at
        self._frames = FrameIndex(index.frames, index.packed_bytes)
        self._offset_map = OffsetMap(unpack_replacements(index.marks))
        self._decompressor = new_decompressor()
        self._cached_frame = (-1, b"")

    @property
    def size(self) -> int:
        return self.index.bytes

    def lines(self, start: int, count: int) -> list[Data]:
        if count <= 0 or start < 0:
            return []
        ends = self._frames.lines
        nth = max(bisect_left(ends, start) - 1, 0)
        collector = LineCollector(start - ends[nth] if len(ends) else 0, count)
        while nth < len(ends) and not collector.is_full:
            collector.feed(self._read_frame(nth))
            nth += 1
        return collector.finish()

    def tail(self, count: int) -> list[Data]:
        return self.lines(max(self.index.lines - count, 0), count)

    def bytes(self, offset: int, length: int) -> Data:
        offset = max(offset, 0)
        end = min(offset + max(length, 0), self.size)
        if end <= offset:
            return b""
        return self._text(self._offset_map.to_text(offset), self._offset_map.to_text(end))

    def follow(
        self,
        offset: int = 0,
        *,
        is_finished: Callable[[], bool] = lambda: True,
        wait: Callable[[float], object] = lambda seconds: None,
    ) -> Iterator[OutputChunk]:
        """Yield the output from an offset on.

        `is_finished` and `wait` are not called: the output is complete.
        """
        begin = self._offset_map.to_text(min(max(offset, 0), self.size))
        while begin < self.index.text_bytes:
            # Chunks never end within a replacement, so that a reader can continue after each.
            end = self._offset_map.align(
                min(begin - begin % FRAME_BYTES + FRAME_BYTES, self.index.text_bytes)
            )
            yield OutputChunk(self._offset_map.to_source(end), self._text(begin, end))
            begin = end

    def text_hash(self) -> str:
        """Read all of the text and return its hash; raises StoreUnavailable if it is damaged."""
        digest = new_sha256()
        for nth in range(len(self._frames)):
            digest.update(self._decompress(nth))
        return str(digest.hexdigest())

    def _text(self, begin: int, end: int) -> Data:
        if end <= begin:
            return b""
        first = begin // FRAME_BYTES
        frames = [self._read_frame(nth) for nth in range(first, (end - 1) // FRAME_BYTES + 1)]
        return b"".join(frames)[begin - first * FRAME_BYTES : end - first * FRAME_BYTES]

    def _read_frame(self, nth: int) -> Data:
        cached, text = self._cached_frame  # one read: other threads may use this object too
        if cached != nth:
            text = self._decompress(nth)
            self._cached_frame = (nth, text)
        return text

    def _decompress(self, nth: int) -> Data:
        offset, end = self._frames.offsets[nth], self._frames.offsets[nth + 1]
        try:
            text: Data = self._decompressor.decompress(self._read_at(offset, end - offset))
        except decompression_error():
            raise StoreUnavailable(
                f"Frame {nth} of the sealed output is damaged. Restore the file from a backup.",
                reason="corrupt",
            ) from None
        return text


class _OpenFile:
    """A file that is closed with its last reader."""

    def __init__(self, path: Path) -> None:
        self._descriptor = -1
        self._descriptor = open_regular_file(path)
        self.size = os.fstat(self._descriptor).st_size

    def read_at(self, offset: int, length: int) -> bytes:
        return os.pread(self._descriptor, length, offset)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)


def open_sealed(path: Path) -> SealedOutput | None:
    """Open a sealed file; None if there is none."""
    try:
        file = _OpenFile(path)
    except FileNotFoundError:
        return None
    return SealedOutput(file.read_at, read_index(file.read_at, file.size))
