"""Read an output file that may still grow, and whose middle may have been cut."""

import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from corral.adapters.output.capped_file import read_cut
from corral.adapters.output.lines import LineCollector, last_lines
from corral.adapters.output.redact import Redactor
from corral.adapters.output.regular_file import open_regular_file
from corral.adapters.output.sealed_format import (
    FRAME_BYTES,
    Cut,
    Data,
    OffsetMap,
    Replacement,
    format_cut_notice,
)
from corral.adapters.output.secret_patterns import LOOKBEHIND, MAX_UNDECIDED

READ_BYTES = FRAME_BYTES

# How much of the end of a file is searched for its last lines.
MAX_TAIL_BYTES = 16 * 1024 * 1024


class PlainOutput:
    """An output file that may still grow."""

    def __init__(self, path: Path, redactor: Callable[[], Redactor] = Redactor) -> None:
        self._file = -1
        self._path = path
        self._redactor = redactor
        self._file = open_regular_file(path)
        self._cut: Cut | None = None
        # Offsets at which reading can start, and the line ends before each: a cache for `lines`.
        self._offsets = [0]
        self._line_ends = [0]

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        self.close()

    @property
    def size(self) -> int:
        return os.fstat(self._file).st_size

    @property
    def is_removed(self) -> bool:
        return os.fstat(self._file).st_nlink == 0

    def lines(self, start: int, count: int) -> list[Data]:
        if count <= 0 or start < 0:
            return []
        cut = self.current_cut()
        nth = max(bisect_left(self._line_ends, start) - 1, 0)
        line_ends = self._line_ends[nth]
        collector = LineCollector(start - line_ends, count)
        walk = RedactedWalk(self, self._offsets[nth])
        while not collector.is_full and (part := walk.read()) is not None:
            collector.feed(part.text)
            line_ends += part.text.count(b"\n")
            is_far_enough = walk.at >= self._offsets[-1] + FRAME_BYTES
            if walk.is_settled and is_far_enough and self._cut == cut:
                self._offsets.append(walk.at)
                self._line_ends.append(line_ends)
        return collector.finish()

    def tail(self, count: int) -> list[Data]:
        size, reach = self.size, FRAME_BYTES
        while count > 0:
            begin = max(size - reach, 0)
            is_enough = begin == 0 or reach >= MAX_TAIL_BYTES
            lines = last_lines(self.bytes(begin, size - begin), count, is_complete=is_enough)
            if lines is not None:
                return lines
            reach *= 4
        return []

    def bytes(self, offset: int, length: int) -> Data:
        offset = max(offset, 0)
        end = min(offset + max(length, 0), self.size)
        walk = self.walk(offset)
        parts = []
        while walk.at < end and (part := walk.read(until=end + MAX_UNDECIDED)) is not None:
            parts.append(part.between(offset, end))
        return b"".join(parts)

    def walk(self, offset: int) -> "RedactedWalk":
        """Return a walk whose text is correct from an offset on; it may begin earlier."""
        return RedactedWalk(self, self._sync(offset))

    def redactor(self, offset: int) -> Redactor:
        first = self._cut.end if self._cut is not None and self._cut.end <= offset else 0
        before = max(offset - LOOKBEHIND, first)
        return self._redactor().resume(os.pread(self._file, offset - before, before), offset)

    def read(self, offset: int, length: int) -> tuple[Cut | None, Data]:
        """Return bytes of the source, and the cut after they were read: cut bytes read as zeros."""
        data = os.pread(self._file, length, offset)
        return self.current_cut(), data

    def current_cut(self) -> Cut | None:
        # A removed file is not cut any more, and its cut file is gone.
        cut = read_cut(self._path) if not self.is_removed else None
        if cut is not None and cut != self._cut:
            self._cut = cut
            self._drop_cached_offsets()
        return self._cut

    def _drop_cached_offsets(self) -> None:
        """Drop the cached line numbers after the start of a cut that has grown."""
        if self._cut is not None:
            kept = max(bisect_right(self._offsets, self._cut.start), 1)
            del self._offsets[kept:], self._line_ends[kept:]

    def _sync(self, offset: int) -> int:
        """Return an offset before `offset` from which redaction gives the same result as from 0."""
        begin = max(offset - 2 * MAX_UNDECIDED, 0)
        if begin == 0:
            return 0
        line_end = os.pread(self._file, MAX_UNDECIDED, begin).find(b"\n")
        return begin + line_end + 1 if line_end >= 0 else begin


class RedactedPart(NamedTuple):
    """The text of a range of the source."""

    begin: int
    end: int
    text: bytes
    replacements: list[Replacement]

    def between(self, begin: int, end: int | None = None) -> bytes:
        """Return the text of the source range from `begin` to `end`."""
        if begin <= self.begin and (end is None or end >= self.end):
            return self.text
        offsets = OffsetMap(self.replacements, self.begin)
        first = offsets.to_text(begin) if begin > self.begin else 0
        last = len(self.text) if end is None or end >= self.end else offsets.to_text(end)
        return self.text[first:last]


class RedactedWalk:
    """Reads a plain file sequentially: redacts it, and skips what was cut."""

    def __init__(self, plain: PlainOutput, offset: int) -> None:
        self._plain = plain
        self._redactor = plain.redactor(offset)
        self._read_at = offset
        self._is_at_line_start = True
        self.at = offset
        """Up to which source offset the text was returned."""

    @property
    def is_settled(self) -> bool:
        """Whether another walk can start at `at`: nothing is held back."""
        return self._redactor.is_settled

    def read(self, until: int | None = None) -> RedactedPart | None:
        """Return more text, perhaps empty; None at the current end of the file."""
        length = READ_BYTES if until is None else max(min(READ_BYTES, until - self._read_at), 0)
        cut, data = self._plain.read(self._read_at, length)
        if cut is not None and cut.start <= self._read_at < cut.end:
            return self._skip_cut(cut)
        if cut is not None and self._read_at < cut.start:
            data = data[: cut.start - self._read_at]
        if not data:
            return None
        self._read_at += len(data)
        return self._make_part(self._redactor.feed(data))

    def finish(self) -> RedactedPart:
        """Return what was held back, because the output is complete."""
        return self._make_part(self._redactor.finish())

    def _skip_cut(self, cut: Cut) -> RedactedPart:
        rest = self._make_part(self._redactor.finish())
        notice = format_cut_notice(cut.end - self._read_at)
        if not self._is_at_line_start:
            notice = b"\n" + notice
        replacement = Replacement(self._read_at, cut.end - self._read_at, len(notice))
        self._read_at = self.at = cut.end
        self._redactor = self._plain.redactor(cut.end)
        self._is_at_line_start = True
        replacements = [*rest.replacements, replacement]
        return RedactedPart(rest.begin, cut.end, rest.text + notice, replacements)

    def _make_part(self, text: bytes) -> RedactedPart:
        if text:
            self._is_at_line_start = text.endswith(b"\n")
        begin, self.at = self.at, self._read_at - self._redactor.held_bytes
        replacements, self._redactor.replacements = self._redactor.replacements, []
        return RedactedPart(begin, self.at, text, replacements)
