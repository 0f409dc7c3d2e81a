"""Output files with a size cap: the beginning and the end are kept, the middle is cut.

An output file only grows at its end. When it exceeds its cap, the cut is first recorded in a file
beside it; then a hole is punched to free the disk space (where the system cannot, the space is used
until sealing). Offsets do not change, and readers skip the cut. A crash between the two steps does
not change what readers see.
"""

import errno
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from corral.adapters.output.redact import Redactor
from corral.adapters.output.sealed_format import Cut, Data
from corral.adapters.output.secret_patterns import MAX_UNDECIDED

# A cut begins and ends at a line boundary, so that it splits no word and no key, if there is one
# within this many bytes.
MAX_LINE_SEARCH = 8 * 1024

_KEY_END = b"PRIVATE KEY-----"

_KEEP_SIZE, _PUNCH_HOLE = 1, 2


def cut_file_path(path: Path) -> Path:
    """Return the path of the file that records the cut of an output file."""
    return path.with_name(f"{path.name}.cut")


def read_cut(path: Path) -> Cut | None:
    """Return what was cut out of an output file so far."""
    try:
        start, end = cut_file_path(path).read_text("ascii").split()
        cut = Cut(int(start), int(end))
        return cut if 0 <= cut.start < cut.end else None
    except (FileNotFoundError, ValueError):
        return None


def plan_cut(descriptor: int, size: int, head: int, tail: int, before: Cut | None) -> Cut | None:
    """Return the range to cut so that only `head` and `tail` bytes are kept.

    A cut only grows: its start stays where it was `before`.
    """
    end = _find_cut_end(descriptor, size - tail, size)
    if before is not None:
        return Cut(before.start, max(before.end, end))
    start = _find_cut_start(descriptor, head)
    return Cut(start, end) if end > start and size > head + tail else None


def _find_cut_end(descriptor: int, at: int, size: int) -> int:
    """Return the next line start at or soon after an offset, else the offset itself.

    Skips the rest of a private key: without its first line, the redactor would not recognize it.
    """
    at = _find_line_start(descriptor, at)
    data = os.pread(descriptor, min(MAX_UNDECIDED, max(size - at, 0)), at)
    end = data.find(_KEY_END)
    if end >= 0 and b"-----BEGIN" not in data[:end]:
        return _find_line_start(descriptor, at + end + len(_KEY_END) + 1)
    return at


def _find_line_start(descriptor: int, at: int) -> int:
    if at <= 0:
        return 0
    # From the byte before: the offset itself may be a line start.
    line_end = os.pread(descriptor, MAX_LINE_SEARCH, at - 1).find(b"\n")
    return at + max(line_end, 0)


def _find_cut_start(descriptor: int, at: int) -> int:
    """Return the last line start at or soon before an offset, else the offset itself."""
    begin = max(at - MAX_LINE_SEARCH, 0)
    line_end = os.pread(descriptor, at - begin, begin).rfind(b"\n")
    return begin + line_end + 1 if line_end >= 0 else at


def cut_middle(path: Path, keep_head: int, keep_tail: int) -> Cut | None:
    """Cut the middle out of a file while others append to it; return all that was cut so far.

    Only one process may do this to a file: the supervisor of its run.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        before = read_cut(path)
        size = os.fstat(descriptor).st_size
        cut = plan_cut(descriptor, size, keep_head, keep_tail, before)
        if cut is None or cut == before:
            return before
        fresh = cut_file_path(path).with_suffix(".cut-new")
        cut_file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(cut_file, f"{cut.start} {cut.end}\n".encode())
        finally:
            os.close(cut_file)
        fresh.rename(cut_file_path(path))
        _punch_hole(descriptor, before.end if before else cut.start, cut.end)
        return cut
    finally:
        os.close(descriptor)


def _punch_hole(descriptor: int, start: int, end: int) -> None:
    """Punch a hole into a file, where the system can. The range then reads as zeros."""
    if sys.platform != "linux" or end <= start:
        return
    error = _fallocate()(descriptor, _PUNCH_HOLE | _KEEP_SIZE, start, end - start)
    if error not in (0, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM):
        raise OSError(error, os.strerror(error))


@cache
def _fallocate() -> Callable[[int, int, int, int], int]:
    """Return fallocate(2), which Python lacks. It returns 0 or an error number."""
    import ctypes

    call = ctypes.CDLL(None, use_errno=True).fallocate
    call.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return lambda *args: ctypes.get_errno() if call(*args) != 0 else 0


class CappedWriter:
    """Appends to an output file, and keeps at most `cap` bytes of it: half at each end.

    The file may exceed the cap by an eighth before it is cut again.
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
        """Bytes written so far, including what was cut."""
        return self._size

    @property
    def dropped_bytes(self) -> int:
        return self._cut

    def write(self, data: Data) -> None:
        """Append data, redacted if there is a redactor; raises OSError if it cannot be written."""
        if self._redactor is not None:
            data = self._redactor.feed(data)
        self._append(data)

    def close(self) -> None:
        """Write what the redactor held back, and close the file."""
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
            cut = cut_middle(self._path, self._half, self._half)
            self._cut = cut.length if cut else 0
