"""Seal an output: compress a plain file into a sealed one, crash-safe.

The sealed file is written under a temporary name, synced, read back and verified, and only then
renamed. After a crash the plain file is unchanged, and the next call starts over. `remove_plain`
removes the plain file, after checking once more that it has not grown.
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

from corral.adapters.output.capped_file import cut_file_path, plan_cut, read_cut
from corral.adapters.output.redact import Redactor
from corral.adapters.output.regular_file import open_regular_file
from corral.adapters.output.sealed_format import (
    FRAME_BYTES,
    MAX_REPLACEMENTS,
    Cut,
    FrameIndex,
    ReadAt,
    Replacement,
    SealIndex,
    decompression_error,
    format_cut_notice,
    merge_replacements,
    new_compressor,
    new_decompressor,
    new_sha256,
    pack_frames,
    pack_replacements,
    read_index,
)
from corral.config import fsync_path
from corral.kernel.errors import NotFound, Refused, StoreUnavailable

READ_BYTES = 2 * FRAME_BYTES
PREVIEW_BYTES = 4 * 1024  # of the beginning and the end, stored in the index as text

Probe = Callable[[str], None]
"""Called after each step; tests crash there."""


def no_probe(step: str) -> None:
    """Do nothing."""


@contextmanager
def seal_lock(folder: Path) -> Iterator[None]:
    """Hold the lock for sealing in a folder. Blocks while another process has it."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def sealed_path(path: Path) -> Path:
    """Return the path of the sealed form of an output file."""
    return path.with_name(f"{path.name}.zst")


def pread_of(descriptor: int) -> ReadAt:
    """Return a function that reads from a descriptor at an offset."""
    return lambda offset, length: os.pread(descriptor, length, offset)


def load_index(sealed: Path) -> SealIndex | None:
    """Return the index of a sealed file; None if there is no file."""
    try:
        descriptor = open_regular_file(sealed)
    except FileNotFoundError:
        return None
    try:
        return read_index(pread_of(descriptor), os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)


def seal(
    folder: Path,
    name: str = "output",
    *,
    redactor: Callable[[], Redactor] = Redactor,
    cap: int | None = None,
    probe: Probe = no_probe,
) -> SealIndex:
    """Seal a plain file and return the index. Call it inside `seal_lock`.

    Idempotent: returns the index of an existing sealed file. A plain file that has grown since is
    sealed again. Memory use does not depend on the size of the file.
    """
    plain = folder / name
    sealed = sealed_path(plain)
    try:
        existing = _load_intact_index(sealed, may_be_damaged=plain.exists())
        descriptor = _open_if_exists(plain)
    except OSError as error:  # out of descriptors, for example
        raise _build_error(folder, error) from error
    if descriptor is None:
        if existing is None:
            raise NotFound(
                f"No output in {folder}: it was removed.", folder=str(folder), reason="no_output"
            )
        return existing
    part = sealed.with_name(f"{sealed.name}.part")
    try:
        size = os.fstat(descriptor).st_size
        if existing is not None and existing.bytes == size:
            return existing
        cut = _choose_cut(plain, descriptor, size, cap)
        probe("opened")
        with _SealedWriter(part, probe) as writer:
            _copy_redacted(descriptor, size, cut, redactor, writer)
            index = writer.close(size)
        probe("written")
        _verify(part, index)
        probe("compared")
        part.rename(sealed)
        fsync_path(folder)
        probe("renamed")
        return index
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise _build_error(folder, error) from error
    finally:
        os.close(descriptor)


def _open_if_exists(path: Path) -> int | None:
    try:
        return open_regular_file(path)
    except FileNotFoundError:
        return None


def _build_error(folder: Path, error: OSError) -> Refused:
    return Refused(
        f"Cannot seal the output in {folder}: {error.strerror}. The output is unchanged; free "
        "disk space and try again.",
        folder=str(folder),
        error=error.strerror,
        reason="not_sealed",
    )


def remove_plain(folder: Path, index: SealIndex, name: str = "output") -> bool:
    """Remove the plain file of a sealed output, unless it has grown; return whether it is gone."""
    plain = folder / name
    try:
        if plain.stat().st_size != index.bytes:
            return False
    except FileNotFoundError:
        cut_file_path(plain).unlink(missing_ok=True)
        return True
    # The plain file first: without its cut file, the hole would be read as output.
    plain.unlink(missing_ok=True)
    cut_file_path(plain).unlink(missing_ok=True)
    return True


def _load_intact_index(sealed: Path, *, may_be_damaged: bool) -> SealIndex | None:
    try:
        return load_index(sealed)
    except StoreUnavailable:
        if may_be_damaged:
            return None  # the plain file is sealed again
        raise


def _choose_cut(plain: Path, descriptor: int, size: int, cap: int | None) -> Cut | None:
    """Return what to leave out: what was cut while the file grew, and what exceeds the cap."""
    cut = read_cut(plain)
    if cut is not None:
        cut = Cut(min(cut.start, size), min(cut.end, size))
    if cap is not None and size - (cut.length if cut else 0) > cap:
        return plan_cut(descriptor, size, cap // 2, cap // 2, cut)
    return cut


def _copy_redacted(
    descriptor: int,
    size: int,
    cut: Cut | None,
    redactor: Callable[[], Redactor],
    writer: "_SealedWriter",
) -> None:
    """Write the redacted text of a source: the part before the cut, a notice, the part after."""
    ranges = [(0, size)] if cut is None or not cut.length else [(0, cut.start), (cut.end, size)]
    for nth, (begin, end) in enumerate(ranges):
        if nth > 0 and cut is not None:
            notice = format_cut_notice(cut.length)
            if writer.size and not writer.is_at_line_start:
                notice = b"\n" + notice
            writer.add_replacement(Replacement(cut.start, cut.length, len(notice)))
            writer.write(notice)
            writer.dropped_bytes = cut.length
        stream = redactor().resume(b"", begin)
        at = begin
        while at < end:
            data = os.pread(descriptor, min(READ_BYTES, end - at), at)
            if not data:
                raise OSError(errno.EIO, "the file was truncated while it was read")
            at += len(data)
            writer.write(stream.feed(data))
            writer.take_replacements(stream.replacements)
        writer.write(stream.finish())
        writer.take_replacements(stream.replacements)


class _SealedWriter:
    """Writes a sealed file: compresses frames and builds the index."""

    def __init__(self, path: Path, probe: Probe) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._file = os.open(path, flags, 0o600)
        self._probe = probe
        self._compressor = new_compressor()
        self._rest = bytearray()
        self._frame_numbers = array("Q")
        self._replacements: list[Replacement] = []
        self._hash = new_sha256()
        self._decoder = getincrementaldecoder("utf-8")()
        self._utf8 = True
        self._line_ends = 0
        self._offset = 0
        self._head = b""
        self._tail = b""
        self.size = 0
        self.dropped_bytes = 0

    def __enter__(self) -> "_SealedWriter":
        return self

    def __exit__(self, *raised: object) -> None:
        os.close(self._file)

    @property
    def is_at_line_start(self) -> bool:
        return (self._rest or self._tail).endswith(b"\n")

    def add_replacement(self, replacement: Replacement) -> None:
        self._replacements.append(replacement)
        if len(self._replacements) > MAX_REPLACEMENTS:
            self._replacements = merge_replacements(self._replacements)

    def take_replacements(self, replacements: list[Replacement]) -> None:
        """Move the replacements of a redactor to the index; the given list is emptied."""
        for replacement in replacements:
            if not replacement.text_length and self._replacements:
                # The rest of the previous replacement, whose text is written already.
                last = self._replacements.pop()
                length = last.source_length + replacement.source_length
                replacement = last._replace(source_length=length)
            self.add_replacement(replacement)
        replacements.clear()

    def write(self, text: bytes) -> None:
        self.size += len(text)
        self._rest += text
        while len(self._rest) >= FRAME_BYTES:
            self._write_frame(bytes(self._rest[:FRAME_BYTES]))
            del self._rest[:FRAME_BYTES]

    def close(self, source_bytes: int) -> SealIndex:
        """Write the rest and the index, sync the file, and return the index."""
        if self._rest:
            self._write_frame(bytes(self._rest))
        self._check_utf8(b"", final=True)
        index = SealIndex(
            bytes=source_bytes,
            dropped_bytes=self.dropped_bytes,
            text_bytes=self.size,
            lines=self._line_ends + bool(self.size and not self._tail.endswith(b"\n")),
            sha256=self._hash.hexdigest(),
            head=_decode_preview(self._head),
            tail=_decode_preview(self._tail),
            utf8=self._utf8,
            frames=pack_frames(self._frame_numbers),
            marks=pack_replacements(self._replacements),
            packed_bytes=self._offset,
        )
        encoded = index.encode()
        self._write_all(encoded)
        os.fsync(self._file)
        return msgspec.structs.replace(index, sealed_bytes=self._offset + len(encoded))

    def _write_frame(self, text: bytes) -> None:
        if not self._frame_numbers:
            self._head = text[:PREVIEW_BYTES]
        self._tail = (self._tail + text)[-PREVIEW_BYTES:]
        self._frame_numbers.extend((self._line_ends, self._offset))
        self._line_ends += text.count(b"\n")
        self._hash.update(text)
        self._check_utf8(text)
        compressed = self._compressor.compress(text)
        self._write_all(compressed)
        self._offset += len(compressed)
        self._probe("frame")

    def _check_utf8(self, text: bytes, *, final: bool = False) -> None:
        if self._utf8:
            try:
                self._decoder.decode(text, final=final)
            except UnicodeDecodeError:
                self._utf8 = False

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]


def _decode_preview(text: bytes) -> str:
    """Decode text so that every store can hold it."""
    return text.decode("utf-8", "replace").replace("\0", "\ufffd")


def _verify(path: Path, index: SealIndex) -> None:
    """Read a sealed file back; raises OSError unless it has the expected content."""
    descriptor = open_regular_file(path)
    try:
        stored = read_index(pread_of(descriptor), os.fstat(descriptor).st_size)
        frames = FrameIndex(stored.frames, stored.packed_bytes)
        length = 0
        decompressor = new_decompressor()
        for begin, end in zip(frames.offsets, frames.offsets[1:], strict=False):
            # Decompression verifies the checksum of the frame.
            length += len(decompressor.decompress(os.pread(descriptor, end - begin, begin)))
        if stored != index or length != index.text_bytes:
            raise OSError(errno.EIO, "the file read back differs from what was written")
    except decompression_error() as error:
        raise OSError(errno.EIO, f"the file cannot be read back: {error}") from error
    finally:
        os.close(descriptor)
