"""Split text that arrives in pieces into lines, with bounded memory."""

from typing import NamedTuple

# The middle of a longer line is left out.
MAX_LINE_BYTES = 64 * 1024


class OutputLine(NamedTuple):
    """A line, and where it begins."""

    at: int
    """The offset in the output."""
    length: int
    text: bytes | None
    """Without the line end; None if the line is longer than the limit."""


class LineSplitter:
    """Splits a byte stream into lines with their offsets. Lines above `max_bytes` have no text."""

    def __init__(self, at: int = 0, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._at = at
        self._length = 0

    def feed(self, data: bytes) -> list[OutputLine]:
        """Return the lines that end in this piece."""
        *complete, rest = data.split(b"\n")
        lines = []
        for part in complete:
            self._add(part)
            lines.append(self._end_line())
            self._at += 1
        self._add(rest)
        return lines

    def skip_to(self, at: int) -> None:
        """Continue at another offset; an incomplete line is dropped."""
        self._parts, self._at, self._length = [], at, 0

    def finish(self) -> list[OutputLine]:
        """Return the last line if it has no line end."""
        return [self._end_line()] if self._length else []

    def _add(self, part: bytes) -> None:
        self._length += len(part)
        if self._length > self._max_bytes:
            self._parts.clear()
        elif part:
            self._parts.append(part)

    def _end_line(self) -> OutputLine:
        is_too_long = self._length > self._max_bytes
        line = OutputLine(self._at, self._length, None if is_too_long else b"".join(self._parts))
        self.skip_to(self._at + self._length)
        return line


class LineCollector:
    """Collects `count` lines after `skip` lines from a byte stream, with bounded memory."""

    def __init__(self, skip: int, count: int) -> None:
        self._skip = skip
        self._count = count
        self._head = b""
        self._length = 0
        self._tail = b""
        self.lines: list[bytes] = []

    @property
    def is_full(self) -> bool:
        return len(self.lines) >= self._count

    def feed(self, text: bytes) -> None:
        missing = self._count - len(self.lines)
        parts = text.split(b"\n", self._skip + missing)
        if self._skip >= len(parts):
            self._skip -= len(parts) - 1
            return
        # The first part continues the current line; the last one has no line end yet.
        parts, self._skip = parts[self._skip :], 0
        if len(parts) > 1:
            self._add(parts[0])
            self._end_line()
            complete = parts[1:-1]
            self.lines += complete if len(text) <= MAX_LINE_BYTES else map(shorten_line, complete)
            parts = parts[-1:]
        if not self.is_full:
            self._add(parts[0])

    def finish(self) -> list[bytes]:
        """Return the collected lines; the last one may have no line end."""
        if self._length and not self.is_full:
            self._end_line()
        return self.lines

    def _add(self, part: bytes) -> None:
        self._length += len(part)
        room = MAX_LINE_BYTES - len(self._head)
        if room:
            self._head += part[:room]
            part = part[room:]
        if part:
            self._tail = (self._tail + part)[-MAX_LINE_BYTES // 2 :]

    def _end_line(self) -> None:
        self.lines.append(_join_ends(self._head, self._tail, self._length))
        self._head, self._tail, self._length = b"", b"", 0


def _join_ends(head: bytes, tail: bytes, length: int) -> bytes:
    if length <= MAX_LINE_BYTES:
        return head
    half = MAX_LINE_BYTES // 2
    end = (head + tail)[-half:]
    return b"%b[corral left out %d bytes here]%b" % (head[:half], length - 2 * half, end)


def last_lines(text: bytes, count: int, *, is_complete: bool) -> list[bytes] | None:
    """Return the last `count` lines of a text; None if more text is needed.

    `is_complete`: the first line of the text is complete.
    """
    lines = text.split(b"\n")
    if not lines[-1]:
        lines.pop()
    if not is_complete:
        lines = lines[1:]
        if len(lines) < count:
            return None
    return [shorten_line(line) for line in lines[-count:]]


def shorten_line(line: bytes) -> bytes:
    """Leave out the middle of a line that is longer than `MAX_LINE_BYTES`."""
    return (
        line if len(line) <= MAX_LINE_BYTES else _join_ends(line[:MAX_LINE_BYTES], line, len(line))
    )
