"""A cap on output that keeps its beginning and its end.

An output file only ever grows at its end. When it holds more than its cap, the middle is cut: the
cut is written down beside the file, and then the disk is given back what it took (a hole; where the
system has none, the space is used until sealing). Offsets in the file stay as they were, a reader
steps over the cut, and a death between the two steps changes nothing of what is shown.
"""

import errno
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from corral.adapters.output.frames import Cut, Data
from corral.adapters.output.redact import Redactor
from corral.adapters.output.shapes import LONGEST

# A cut begins and ends at the end of a line, so that it tears no word and no key, if there is one
# within this many bytes.
LONGEST_TEAR = 8 * 1024

_KEY_END = b"PRIVATE KEY-----"

_KEEP_SIZE, _PUNCH_HOLE = 1, 2


def cut_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.cut")


def read_cut(path: Path) -> Cut | None:
    """What was cut out of an output file so far."""
    try:
        start, end = cut_file(path).read_text("ascii").split()
        cut = Cut(int(start), int(end))
        return cut if 0 <= cut.start < cut.end else None
    except (FileNotFoundError, ValueError):
        return None


def plan_cut(descriptor: int, size: int, head: int, tail: int, before: Cut | None) -> Cut | None:
    """What to leave out of a file, so that no more than its head and its tail are kept.

    What was cut before stays so: the head is where it was, and the cut only grows.
    """
    end = _behind_line(descriptor, size - tail, size)
    if before is not None:
        return Cut(before.start, max(before.end, end))
    start = _before_tear(descriptor, head)
    return Cut(start, end) if end > start and size > head + tail else None


def _behind_line(descriptor: int, at: int, size: int) -> int:
    """The first beginning of a line at a place or soon behind it; else the place itself.

    Not within a private key: without its first line, nobody would know the rest for one.
    """
    at = _line_start(descriptor, at)
    data = os.pread(descriptor, min(LONGEST, max(size - at, 0)), at)
    end = data.find(_KEY_END)
    if end >= 0 and b"-----BEGIN" not in data[:end]:
        return _line_start(descriptor, at + end + len(_KEY_END) + 1)
    return at


def _line_start(descriptor: int, at: int) -> int:
    if at <= 0:
        return 0
    # A line that ends just before begins at the place itself.
    found = os.pread(descriptor, LONGEST_TEAR, at - 1).find(b"\n")
    return at + max(found, 0)


def _before_tear(descriptor: int, at: int) -> int:
    """The last beginning of a line at a place or soon before it; else the place itself."""
    begin = max(at - LONGEST_TEAR, 0)
    found = os.pread(descriptor, at - begin, begin).rfind(b"\n")
    return begin + found + 1 if found >= 0 else at


def punch(path: Path, keep_head: int, keep_tail: int) -> Cut | None:
    """Cut the middle out of a file that others go on writing at its end.

    Gives back all that was cut so far. One process at a time may do this to a file: its keeper.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        before = read_cut(path)
        size = os.fstat(descriptor).st_size
        cut = plan_cut(descriptor, size, keep_head, keep_tail, before)
        if cut is None or cut == before:
            return before
        fresh = cut_file(path).with_suffix(".cut-new")
        note = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(note, f"{cut.start} {cut.end}\n".encode())
        finally:
            os.close(note)
        fresh.rename(cut_file(path))
        _free(descriptor, before.end if before else cut.start, cut.end)
        return cut
    finally:
        os.close(descriptor)


def _free(descriptor: int, start: int, end: int) -> None:
    """Give a range of a file back to the disk, where the system can; it reads as zeros then."""
    if sys.platform != "linux" or end <= start:
        return
    number = _fallocate()(descriptor, _PUNCH_HOLE | _KEEP_SIZE, start, end - start)
    if number not in (0, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM):
        raise OSError(number, os.strerror(number))


@cache
def _fallocate() -> Callable[[int, int, int, int], int]:
    """The system's call, which Python does not have; gives 0 or the number of an error."""
    import ctypes

    call = ctypes.CDLL(None, use_errno=True).fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return lambda *given: ctypes.get_errno() if call(*given) != 0 else 0


class CappedWriter:
    """Appends to an output file, and keeps at most `cap` bytes of it: half at each end.

    Now and then it holds an eighth more, so that a cut is made seldom.
    """

    def __init__(self, path: Path, cap: int, redactor: Redactor | None = None) -> None:
        self._path = path
        self._redactor = redactor
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(path, flags, 0o600)
        self._half = cap // 2
        self._slack = max(cap // 8, 64 * 1024)
        self._size = os.fstat(self._descriptor).st_size
        cut = read_cut(path)
        self._cut = cut.length if cut else 0

    @property
    def bytes(self) -> int:
        """All that was written: what is kept, and what was cut."""
        return self._size

    @property
    def cut_bytes(self) -> int:
        return self._cut

    def write(self, data: Data) -> None:
        """Append, redacted where there is a redactor; all of it, or OSError."""
        if self._redactor is not None:
            data = self._redactor.feed(data)
        self._append(data)

    def close(self) -> None:
        """Write what was held back, and close."""
        if self._descriptor >= 0:
            try:
                if self._redactor is not None:
                    self._append(self._redactor.finish())
            finally:
                os.close(self._descriptor)
                self._descriptor = -1

    def _append(self, data: Data) -> None:
        view = memoryview(data)
        while view:
            written = os.write(self._descriptor, view)
            self._size += written
            view = view[written:]
        if self._size - self._cut > 2 * self._half + self._slack:
            cut = punch(self._path, self._half, self._half)
            self._cut = cut.length if cut else 0
