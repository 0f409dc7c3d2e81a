"""The file format of a sealed output: standard zstd with random access.

    frame, frame, …   each is 64 KiB of text, compressed
    skippable frame   the index, followed by its length and a magic number

`zstd -d` restores the complete text. The text is the source (what the run wrote) after redaction
and capping; replacements record which pieces of the source differ. Offsets in the API are always
offsets of the source, so they are the same before and after sealing.
"""

import importlib
import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from corral.kernel.errors import StoreUnavailable

FRAME_BYTES = 64 * 1024

# Higher levels take much longer and save little.
COMPRESSION_LEVEL = 6

# Above this number, neighbouring replacements are merged; offsets inside become approximate.
MAX_REPLACEMENTS = 4_096

_SKIPPABLE = 0x184D2A5E
_HEADER = struct.Struct("<II")
_FOOTER = struct.Struct("<I8s")
_MAGIC = b"CORRAL01"
_REPLACEMENT = struct.Struct("<QQQ")

Data = bytes
"""An alias for annotations in classes that have an attribute named `bytes`."""

ReadAt = Callable[[int, int], bytes]
"""Reads from a sealed file: (offset, maximum length) -> bytes."""


class SealIndex(msgspec.Struct, frozen=True):
    """The index of a sealed output. Stored in the file, so field names must not change."""

    bytes: int
    """Size of the source, including what was cut."""
    dropped_bytes: int
    text_bytes: int
    lines: int
    sha256: str
    """Hash of the text."""
    head: str
    tail: str
    utf8: bool
    frames: Data
    """For each frame, two 8-byte numbers: line ends before it, and its offset in the file."""
    marks: Data
    """The encoded replacements."""
    packed_bytes: int
    """Size of all frames; the index follows them."""
    sealed_bytes: int = 0
    """Size of the file; not stored in it."""

    def payload(self) -> Data:
        """Encode the index without `sealed_bytes`."""
        return msgspec.msgpack.encode(msgspec.structs.replace(self, sealed_bytes=0))

    def encode(self) -> Data:
        """Encode the index as a skippable frame with footer."""
        payload = self.payload()
        size = len(payload) + _FOOTER.size
        return _HEADER.pack(_SKIPPABLE, size) + payload + _FOOTER.pack(len(payload), _MAGIC)


def read_index(read_at: ReadAt, size: int) -> SealIndex:
    """Read the index at the end of a sealed file; raises StoreUnavailable if it is damaged."""
    footer = read_at(max(size - _FOOTER.size, 0), _FOOTER.size)
    if len(footer) == _FOOTER.size:
        length, magic = _FOOTER.unpack(footer)
        begin = size - _FOOTER.size - length
        if magic == _MAGIC and begin >= _HEADER.size:
            try:
                return decode_index(read_at(begin, length), size)
            except msgspec.MsgspecError:
                pass
    raise StoreUnavailable(
        "Cannot read the index of the sealed output. The file is damaged; restore a backup.",
        reason="corrupt",
    )


def decode_index(payload: bytes, size: int) -> SealIndex:
    return msgspec.structs.replace(
        msgspec.msgpack.decode(payload, type=SealIndex), sealed_bytes=size
    )


class FrameIndex:
    """Offsets of the frames of a sealed file, and the line ends before each."""

    def __init__(self, packed: bytes, end: int) -> None:
        numbers = array("Q")
        numbers.frombytes(packed)
        if _BIG_ENDIAN:
            numbers.byteswap()
        self.lines = numbers[0::2]
        self.offsets = numbers[1::2]
        self.offsets.append(end)

    def __len__(self) -> int:
        return len(self.lines)


def pack_frames(numbers: "array[int]") -> bytes:
    if _BIG_ENDIAN:
        numbers = array("Q", numbers)
        numbers.byteswap()
    return numbers.tobytes()


_BIG_ENDIAN = struct.pack("=H", 1) != struct.pack("<H", 1)


class Replacement(NamedTuple):
    """A piece of the source that is replaced by other text."""

    source_at: int
    source_length: int
    text_length: int


class OffsetMap:
    """Maps offsets between a source and its text."""

    def __init__(self, replacements: Iterable[Replacement], begin: int = 0) -> None:
        self._replacements = list(replacements)
        self._begin = begin
        self._sources = [replacement.source_at for replacement in self._replacements]
        self._texts: list[int] = []
        shift = -begin
        for replacement in self._replacements:
            self._texts.append(replacement.source_at + shift)
            shift += replacement.text_length - replacement.source_length

    def to_text(self, source: int) -> int:
        """Return the text offset of a source offset; inside of a replacement: its end."""
        nth = bisect_right(self._sources, source) - 1
        # Several replacements may begin at one offset: use the first.
        while nth > 0 and self._sources[nth] == source and self._sources[nth - 1] == source:
            nth -= 1
        if nth < 0:
            return source - self._begin
        replacement, text = self._replacements[nth], self._texts[nth]
        if source == replacement.source_at:
            return text
        distance = max(source - replacement.source_at - replacement.source_length, 0)
        return text + replacement.text_length + distance

    def to_source(self, text: int) -> int:
        """Return the source offset of a text offset; inside of a replacement: its beginning."""
        nth = bisect_right(self._texts, text) - 1
        if nth < 0:
            return text + self._begin
        replacement, at = self._replacements[nth], self._texts[nth]
        if text < at + replacement.text_length:
            return replacement.source_at
        return (
            replacement.source_at + replacement.source_length + text - at - replacement.text_length
        )

    def align(self, text: int) -> int:
        """Return the text offset itself, or the end of the replacement that contains it."""
        nth = bisect_right(self._texts, text) - 1
        if nth < 0:
            return text
        end = self._texts[nth] + self._replacements[nth].text_length
        return end if self._texts[nth] < text < end else text


def pack_replacements(replacements: list[Replacement]) -> bytes:
    return b"".join(_REPLACEMENT.pack(*replacement) for replacement in replacements)


def unpack_replacements(packed: bytes) -> list[Replacement]:
    return [Replacement(*numbers) for numbers in _REPLACEMENT.iter_unpack(packed)]


def merge_replacements(replacements: list[Replacement]) -> list[Replacement]:
    """Merge each pair of neighbouring replacements into one."""
    merged = [
        Replacement(
            first.source_at,
            second.source_at + second.source_length - first.source_at,
            first.text_length
            + (second.source_at - first.source_at - first.source_length)
            + second.text_length,
        )
        for first, second in zip(replacements[0::2], replacements[1::2], strict=False)
    ]
    return merged + replacements[len(merged) * 2 :]


class Cut(NamedTuple):
    """A piece of the source that was removed: the half-open range from `start` to `end`."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


def format_cut_notice(length: int) -> bytes:
    """Return the line that replaces what was cut."""
    return f"[corral left out {length:,} bytes here]\n".encode()


def new_sha256() -> Any:
    """Return a SHA-256 object. Avoids loading OpenSSL, which would take a sixth of a supervisor's
    memory."""
    if "hashlib" not in sys.modules:
        for name in ("_sha2", "_sha256"):
            with suppress(ImportError):
                return importlib.import_module(name).sha256()
    import hashlib

    return hashlib.sha256()


def new_compressor() -> Any:
    import zstandard

    return zstandard.ZstdCompressor(
        level=COMPRESSION_LEVEL, write_content_size=True, write_checksum=True
    )


def new_decompressor() -> Any:
    import zstandard

    return zstandard.ZstdDecompressor(max_window_size=1 << 20)


def decompression_error() -> type[Exception]:
    """Return the exception that a decompressor raises for damaged data."""
    import zstandard

    error: type[Exception] = zstandard.ZstdError
    return error
