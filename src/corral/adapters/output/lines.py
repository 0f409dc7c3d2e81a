"""Lines out of a text that comes in pieces, however long they are."""

from typing import NamedTuple

# A line that is longer is given with its middle left out.
LONGEST_LINE = 64 * 1024


class Line(NamedTuple):
    at: int
    """Where it begins in what was written."""
    length: int
    text: bytes | None
    """Without its end; None when it is longer than what is held of a line."""


class Splitter:
    """Whole lines out of a text that comes in pieces, each looked at once, and where they begin."""

    def __init__(self, at: int = 0, *, most: int) -> None:
        self._most = most
        self._parts: list[bytes] = []
        self._at = at
        self._length = 0

    def feed(self, data: bytes) -> list[Line]:
        """The lines that have ended with this piece."""
        *whole, rest = data.split(b"\n")
        ended = []
        for part in whole:
            self._add(part)
            ended.append(self._end())
            self._at += 1
        self._add(rest)
        return ended

    def skip_to(self, at: int) -> None:
        """Go on elsewhere; the line that had begun is torn, and forgotten."""
        self._parts, self._at, self._length = [], at, 0

    def finish(self) -> list[Line]:
        """The last line, which has no end."""
        return [self._end()] if self._length else []

    def _add(self, part: bytes) -> None:
        self._length += len(part)
        if self._length > self._most:
            self._parts.clear()
        elif part:
            self._parts.append(part)

    def _end(self) -> Line:
        too_long = self._length > self._most
        line = Line(self._at, self._length, None if too_long else b"".join(self._parts))
        self.skip_to(self._at + self._length)
        return line


class Gatherer:
    """Picks lines out of a text that comes in pieces, and holds no more of a line than is shown."""

    def __init__(self, skip: int, count: int) -> None:
        self._skip = skip
        self._count = count
        self._head = b""
        self._length = 0
        self._tail = b""
        self.lines: list[bytes] = []

    @property
    def full(self) -> bool:
        return len(self.lines) >= self._count

    def feed(self, text: bytes) -> None:
        wanted = self._count - len(self.lines)
        parts = text.split(b"\n", self._skip + wanted)
        if self._skip >= len(parts):
            self._skip -= len(parts) - 1
            return
        # The first part belongs to the line that is being gathered, the last one has no end yet.
        parts, self._skip = parts[self._skip :], 0
        if len(parts) > 1:
            self._add(parts[0])
            self._end()
            whole = parts[1:-1]
            self.lines += whole if len(text) <= LONGEST_LINE else map(shortened, whole)
            parts = parts[-1:]
        if not self.full:
            self._add(parts[0])

    def finish(self) -> list[bytes]:
        if self._length and not self.full:
            self._end()
        return self.lines

    def _add(self, part: bytes) -> None:
        self._length += len(part)
        room = LONGEST_LINE - len(self._head)
        if room:
            self._head += part[:room]
            part = part[room:]
        if part:
            self._tail = (self._tail + part)[-LONGEST_LINE // 2 :]

    def _end(self) -> None:
        self.lines.append(_put_together(self._head, self._tail, self._length))
        self._head, self._tail, self._length = b"", b"", 0


def _put_together(head: bytes, tail: bytes, length: int) -> bytes:
    if length <= LONGEST_LINE:
        return head
    half = LONGEST_LINE // 2
    end = (head + tail)[-half:]
    return b"%b[corral left out %d bytes here]%b" % (head[:half], length - 2 * half, end)


def last_lines(text: bytes, count: int, *, whole: bool) -> list[bytes] | None:
    """The last lines of a text; None when more of it is needed."""
    lines = text.split(b"\n")
    if not lines[-1]:
        lines.pop()
    if not whole:
        lines = lines[1:]
        if len(lines) < count:
            return None
    return [shortened(line) for line in lines[-count:]]


def shortened(line: bytes) -> bytes:
    return (
        line if len(line) <= LONGEST_LINE else _put_together(line[:LONGEST_LINE], line, len(line))
    )
