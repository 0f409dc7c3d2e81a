"""Sealing: a plain output file becomes a packed one, and neither is ever missing.

The packed file is made beside the plain one under another name, read back and compared, brought to
the disk, and only then renamed. Whoever dies in between leaves the plain file as it was, and the
next one begins anew. The plain file is removed by `remove_plain`, which looks once more first.
"""

import errno
import fcntl
import os
from array import array
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from corral.adapters.output.capped import cut_file, plan_cut, read_cut
from corral.adapters.output.frames import (
    FRAME,
    MOST_MARKS,
    Cut,
    Frames,
    Index,
    Mark,
    ReadAt,
    cut_line,
    join_marks,
    new_hash,
    pack_frames,
    pack_marks,
    packer,
    read_index,
    unpacker,
    unpacker_error,
)
from corral.adapters.output.opening import open_regular
from corral.adapters.output.redact import Redactor
from corral.config import sync
from corral.kernel.errors import NotFound, Refused, StoreUnavailable

PIECE = 2 * FRAME
GLANCE = 4 * 1024  # bytes of head and of tail that the index holds as text

Probe = Callable[[str], None]


def nobody(moment: str) -> None:
    """For whoever wants to be told of no moment."""


@contextmanager
def sealing(folder: Path) -> Iterator[None]:
    """Held by the one process that seals what is in a folder; others wait. A death lets go."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def sealed_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.zst")


def reader_of(descriptor: int) -> ReadAt:
    return lambda offset, length: os.pread(descriptor, length, offset)


def load_index(sealed: Path) -> Index | None:
    """The index of a sealed file, if there is one."""
    try:
        descriptor = open_regular(sealed)
    except FileNotFoundError:
        return None
    try:
        return read_index(reader_of(descriptor), os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def seal(
    folder: Path,
    name: str = "output",
    *,
    redactor: Callable[[], Redactor] = Redactor,
    cap: int | None = None,
    probe: Probe = nobody,
) -> Index:
    """Seal a plain file, inside `sealing`; the index of the one that is sealed already.

    Memory does not grow with the file. A plain file that grew since it was sealed is sealed anew.
    """
    plain = folder / name
    sealed = sealed_file(plain)
    there = _intact(sealed, may_be_damaged=plain.exists())
    try:
        descriptor = open_regular(plain)
    except FileNotFoundError:
        if there is None:
            raise NotFound(
                f"There is no output in {folder}; somebody removed it.",
                folder=str(folder),
                reason="no_output",
            ) from None
        return there
    part = sealed.with_name(f"{sealed.name}.part")
    try:
        size = os.fstat(descriptor).st_size
        if there is not None and there.bytes == size:
            return there
        cut = _cut_of(plain, descriptor, size, cap)
        probe("opened")
        with _Packed(part, probe) as packed:
            _pour(descriptor, size, cut, redactor, packed)
            index = packed.close(size)
        probe("written")
        _compare(part, index)
        probe("compared")
        part.rename(sealed)
        sync(folder)
        probe("renamed")
        return index
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise Refused(
            f"The output in {folder} could not be sealed ({error.strerror}) and stays as it is; "
            "make room and try again.",
            folder=str(folder),
            error=error.strerror,
            reason="not_sealed",
        ) from error
    finally:
        os.close(descriptor)


def remove_plain(folder: Path, index: Index, name: str = "output") -> bool:
    """Remove the plain file behind a sealed one, unless it grew meanwhile. True when it is gone."""
    plain = folder / name
    try:
        if plain.stat().st_size != index.bytes:
            return False
    except FileNotFoundError:
        cut_file(plain).unlink(missing_ok=True)
        return True
    # The plain file first: without its cut it would be taken for something else.
    plain.unlink(missing_ok=True)
    cut_file(plain).unlink(missing_ok=True)
    return True


def _intact(sealed: Path, *, may_be_damaged: bool) -> Index | None:
    try:
        return load_index(sealed)
    except StoreUnavailable:
        if may_be_damaged:
            return None  # it is made anew
        raise


def _cut_of(plain: Path, descriptor: int, size: int, cap: int | None) -> Cut | None:
    """What is left out: what was cut while it grew, and what goes beyond the cap."""
    cut = read_cut(plain)
    if cut is not None:
        cut = Cut(min(cut.start, size), min(cut.end, size))
    if cap is not None and size - (cut.length if cut else 0) > cap:
        return plan_cut(descriptor, size, cap // 2, cap // 2, cut)
    return cut


def _pour(
    descriptor: int,
    size: int,
    cut: Cut | None,
    redactor: Callable[[], Redactor],
    packed: "_Packed",
) -> None:
    """The text of a source: what comes before the cut, a line that says so, what comes behind."""
    pieces = [(0, size)] if cut is None or not cut.length else [(0, cut.start), (cut.end, size)]
    for nth, (begin, end) in enumerate(pieces):
        if nth > 0 and cut is not None:
            line = cut_line(cut.length)
            if packed.size and not packed.at_line_start:
                line = b"\n" + line
            packed.mark(Mark(cut.start, cut.length, len(line)))
            packed.write(line)
            packed.cut_bytes = cut.length
        clean = redactor().resume(b"", begin)
        at = begin
        while at < end:
            data = os.pread(descriptor, min(PIECE, end - at), at)
            if not data:
                raise OSError(errno.EIO, "the file became shorter while it was read")
            at += len(data)
            packed.write(clean.feed(data))
            packed.take(clean.marks)
        packed.write(clean.finish())
        packed.take(clean.marks)


class _Packed:
    """A sealed file in the making."""

    def __init__(self, path: Path, probe: Probe) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o600)
        self._probe = probe
        self._packer = packer()
        self._rest = bytearray()
        self._numbers = array("Q")
        self._marks: list[Mark] = []
        self._hash = new_hash()
        self._decoder = getincrementaldecoder("utf-8")()
        self._utf8 = True
        self._ends = 0
        self._place = 0
        self._head = b""
        self._tail = b""
        self.size = 0
        self.cut_bytes = 0

    def __enter__(self) -> "_Packed":
        return self

    def __exit__(self, *raised: object) -> None:
        os.close(self._file)

    @property
    def at_line_start(self) -> bool:
        return (self._rest or self._tail).endswith(b"\n")

    def mark(self, mark: Mark) -> None:
        self._marks.append(mark)
        if len(self._marks) > MOST_MARKS:
            self._marks = join_marks(self._marks)

    def take(self, marks: list[Mark]) -> None:
        """Marks that a redactor made; it is left without them but for one that may still grow."""
        for mark in marks:
            if not mark.text_length and self._marks:  # more of the one before
                last = self._marks.pop()
                mark = last._replace(source_length=last.source_length + mark.source_length)
            self.mark(mark)
        marks.clear()

    def write(self, text: bytes) -> None:
        self.size += len(text)
        self._rest += text
        while len(self._rest) >= FRAME:
            self._frame(bytes(self._rest[:FRAME]))
            del self._rest[:FRAME]

    def close(self, source_bytes: int) -> Index:
        if self._rest:
            self._frame(bytes(self._rest))
        self._check_utf8(b"", final=True)
        index = Index(
            bytes=source_bytes,
            cut_bytes=self.cut_bytes,
            text_bytes=self.size,
            lines=self._ends + bool(self.size and not self._tail.endswith(b"\n")),
            sha256=self._hash.hexdigest(),
            head=_glance(self._head),
            tail=_glance(self._tail),
            utf8=self._utf8,
            frames=pack_frames(self._numbers),
            marks=pack_marks(self._marks),
            packed_bytes=self._place,
        )
        encoded = index.encode()
        self._put(encoded)
        os.fsync(self._file)
        return msgspec.structs.replace(index, sealed_bytes=self._place + len(encoded))

    def _frame(self, text: bytes) -> None:
        if not self._numbers:
            self._head = text[:GLANCE]
        self._tail = (self._tail + text)[-GLANCE:]
        self._numbers.extend((self._ends, self._place))
        self._ends += text.count(b"\n")
        self._hash.update(text)
        self._check_utf8(text)
        packed = self._packer.compress(text)
        self._put(packed)
        self._place += len(packed)
        self._probe("frame")

    def _check_utf8(self, text: bytes, *, final: bool = False) -> None:
        if self._utf8:
            try:
                self._decoder.decode(text, final=final)
            except UnicodeDecodeError:
                self._utf8 = False

    def _put(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]


def _glance(text: bytes) -> str:
    """Text that every store can keep."""
    return text.decode("utf-8", "replace").replace("\0", "\ufffd")


def _compare(path: Path, index: Index) -> None:
    """Read a sealed file back; OSError unless it holds just what was poured into it."""
    descriptor = open_regular(path)
    try:
        found = read_index(reader_of(descriptor), os.fstat(descriptor).st_size)
        frames = Frames(found.frames, found.packed_bytes)
        length = 0
        unpack = unpacker()
        for begin, end in zip(frames.places, frames.places[1:], strict=False):
            # Each frame has a checksum of the text that was packed.
            length += len(unpack.decompress(os.pread(descriptor, end - begin, begin)))
        if found != index or length != index.text_bytes:
            raise OSError(errno.EIO, "what was written is not what is read")
    except unpacker_error() as error:
        raise OSError(errno.EIO, f"what was written cannot be read: {error}") from error
    finally:
        os.close(descriptor)
