"""Reading an output file that may still grow, and out of which something may have been cut."""

import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from corral.adapters.output.capped import read_cut
from corral.adapters.output.frames import FRAME, Cut, Data, Mark, Marks, cut_line
from corral.adapters.output.lines import Gatherer, last_lines
from corral.adapters.output.opening import open_regular
from corral.adapters.output.redact import Redactor
from corral.adapters.output.shapes import CONTEXT, LONGEST

PIECE = FRAME

# How far from its end a file is searched for its last lines.
FURTHEST_TAIL = 16 * 1024 * 1024


class Plain:
    """An output file that may still grow."""

    def __init__(self, path: Path, redactor: Callable[[], Redactor] = Redactor) -> None:
        self._file = -1
        self._path = path
        self._redactor = redactor
        self._file = open_regular(path)
        self._cut: Cut | None = None
        # Places from which the text can be read by itself, and the line ends before each.
        self._places = [0]
        self._ends = [0]

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
    def removed(self) -> bool:
        return os.fstat(self._file).st_nlink == 0

    def lines(self, start: int, count: int) -> list[Data]:
        if count <= 0 or start < 0:
            return []
        cut = self.current_cut()
        nth = max(bisect_left(self._ends, start) - 1, 0)
        ends = self._ends[nth]
        found = Gatherer(start - ends, count)
        walk = Walk(self, self._places[nth])
        while not found.full and (part := walk.read()) is not None:
            found.feed(part.text)
            ends += part.text.count(b"\n")
            if walk.settled and walk.at >= self._places[-1] + FRAME and self._cut == cut:
                self._places.append(walk.at)
                self._ends.append(ends)
        return found.finish()

    def tail(self, count: int) -> list[Data]:
        size, reach = self.size, FRAME
        while count > 0:
            begin = max(size - reach, 0)
            enough = begin == 0 or reach >= FURTHEST_TAIL
            found = last_lines(self.bytes(begin, size - begin), count, whole=enough)
            if found is not None:
                return found
            reach *= 4
        return []

    def bytes(self, offset: int, length: int) -> Data:
        offset = max(offset, 0)
        end = min(offset + max(length, 0), self.size)
        walk = self.walk(offset)
        out = []
        while walk.at < end and (part := walk.read(until=end + LONGEST)) is not None:
            out.append(part.between(offset, end))
        return b"".join(out)

    def walk(self, offset: int) -> "Walk":
        """A way that is sound from an offset on; what it gives of the time before is not."""
        return Walk(self, self._sync(offset))

    def redactor(self, offset: int) -> Redactor:
        first = self._cut.end if self._cut is not None and self._cut.end <= offset else 0
        before = max(offset - CONTEXT, first)
        return self._redactor().resume(os.pread(self._file, offset - before, before), offset)

    def read(self, offset: int, length: int) -> tuple[Cut | None, Data]:
        """Bytes of the source, and what was cut out of it by the time that they were read."""
        data = os.pread(self._file, length, offset)
        return self.current_cut(), data

    def current_cut(self) -> Cut | None:
        # Once the file is removed nobody cuts it any more, and its note is gone too.
        cut = read_cut(self._path) if not self.removed else None
        if cut is not None and cut != self._cut:
            self._cut = cut
            self._forget_places()
        return self._cut

    def _forget_places(self) -> None:
        """What lies behind the beginning of a cut that grew has other numbers now."""
        if self._cut is not None:
            kept = max(bisect_right(self._places, self._cut.start), 1)
            del self._places[kept:], self._ends[kept:]

    def _sync(self, offset: int) -> int:
        """A place from which redaction comes to the same as from the beginning, up to an offset."""
        begin = max(offset - 2 * LONGEST, 0)
        if begin == 0:
            return 0
        found = os.pread(self._file, LONGEST, begin).find(b"\n")
        return begin + found + 1 if found >= 0 else begin


class Part(NamedTuple):
    """The text of a piece of the source."""

    begin: int
    end: int
    text: bytes
    marks: list[Mark]

    def between(self, begin: int, end: int | None = None) -> bytes:
        """What of it belongs to the source from one offset up to another."""
        if begin <= self.begin and (end is None or end >= self.end):
            return self.text
        marks = Marks(self.marks, self.begin)
        first = marks.text_of(begin) if begin > self.begin else 0
        last = len(self.text) if end is None or end >= self.end else marks.text_of(end)
        return self.text[first:last]


class Walk:
    """One way along a plain file, redacting, and stepping over what was cut."""

    def __init__(self, plain: Plain, offset: int) -> None:
        self._plain = plain
        self._redactor = plain.redactor(offset)
        self._read = offset  # how far it was read
        self._ends_line = True
        self.at = offset
        """How far it is decided what the text is."""

    @property
    def settled(self) -> bool:
        """Whether one can go on from here without knowing what came before."""
        return self._redactor.settled

    def read(self, until: int | None = None) -> Part | None:
        """More text, perhaps none yet; None when there is no more to be read for now."""
        length = PIECE if until is None else max(min(PIECE, until - self._read), 0)
        cut, data = self._plain.read(self._read, length)
        if cut is not None and cut.start <= self._read < cut.end:
            return self._step_over(cut)
        if cut is not None and self._read < cut.start:
            data = data[: cut.start - self._read]
        if not data:
            return None
        self._read += len(data)
        return self._part(self._redactor.feed(data))

    def finish(self) -> Part:
        """What was held back: nothing more comes."""
        return self._part(self._redactor.finish())

    def _step_over(self, cut: Cut) -> Part:
        rest = self._part(self._redactor.finish())
        line = cut_line(cut.end - self._read)
        if not self._ends_line:
            line = b"\n" + line
        mark = Mark(self._read, cut.end - self._read, len(line))
        self._read = self.at = cut.end
        self._redactor = self._plain.redactor(cut.end)
        self._ends_line = True
        return Part(rest.begin, cut.end, rest.text + line, [*rest.marks, mark])

    def _part(self, text: bytes) -> Part:
        if text:
            self._ends_line = text.endswith(b"\n")
        begin, self.at = self.at, self._read - self._redactor.held
        marks, self._redactor.marks = self._redactor.marks, []
        return Part(begin, self.at, text, marks)
