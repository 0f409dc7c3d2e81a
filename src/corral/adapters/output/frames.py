"""The sealed form of an output: standard zstd, of which any part can be read by itself.

    frame, frame, …   each is 64 KiB of text, packed
    skippable frame   the index, and at its very end its length and a mark

`zstd -d` gives the whole text. Text is what the run wrote (the source) after redaction and after
the cap; marks say which pieces of the source stand as something else. Offsets that callers see are
always those of the source, so they mean the same before and after sealing.
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

FRAME = 64 * 1024

# Higher levels take longer than what they save is worth.
LEVEL = 6

# More pieces than this are joined with what lies between them: offsets inside are then rough.
MOST_MARKS = 4_096

_SKIPPABLE = 0x184D2A5E
_HEADER = struct.Struct("<II")
_FOOTER = struct.Struct("<I8s")
_MAGIC = b"CORRAL01"
_MARK = struct.Struct("<QQQ")

Data = bytes
"""For classes that have something else by that name."""

ReadAt = Callable[[int, int], bytes]
"""Some bytes of a sealed file: from an offset, at most so many."""


class Index(msgspec.Struct, frozen=True):
    """What a sealed output holds, and where."""

    bytes: int
    """All that the run wrote: what is kept, and what was cut."""
    cut_bytes: int
    text_bytes: int
    lines: int
    sha256: str
    """Of the text."""
    head: str
    tail: str
    utf8: bool
    frames: Data
    """For each frame, two numbers of eight bytes: line ends before it, its place in the file."""
    marks: Data
    packed_bytes: int
    """The frames alone; the index stands behind them."""
    sealed_bytes: int = 0
    """The whole file; known from its size."""

    def payload(self) -> Data:
        """All of it but for the size of the file that it stands in."""
        return msgspec.msgpack.encode(msgspec.structs.replace(self, sealed_bytes=0))

    def encode(self) -> Data:
        """As it stands at the end of a sealed file."""
        payload = self.payload()
        size = len(payload) + _FOOTER.size
        return _HEADER.pack(_SKIPPABLE, size) + payload + _FOOTER.pack(len(payload), _MAGIC)


def read_index(read_at: ReadAt, size: int) -> Index:
    """The index at the end of a sealed file; StoreUnavailable when it is damaged."""
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
        "The sealed output is damaged: its index cannot be read; restore it from a back-up.",
        reason="corrupt",
    )


def decode_index(payload: bytes, size: int) -> Index:
    return msgspec.structs.replace(msgspec.msgpack.decode(payload, type=Index), sealed_bytes=size)


class Frames:
    """Where the frames of a sealed file are, and which lines begin in them."""

    def __init__(self, packed: bytes, end: int) -> None:
        numbers = array("Q")
        numbers.frombytes(packed)
        if _BIG_ENDIAN:
            numbers.byteswap()
        self.lines = numbers[0::2]
        self.places = numbers[1::2]
        self.places.append(end)

    def __len__(self) -> int:
        return len(self.lines)


def pack_frames(numbers: "array[int]") -> bytes:
    if _BIG_ENDIAN:
        numbers = array("Q", numbers)
        numbers.byteswap()
    return numbers.tobytes()


_BIG_ENDIAN = struct.pack("=H", 1) != struct.pack("<H", 1)


class Mark(NamedTuple):
    """A piece of the source that stands as something else in the text."""

    source_at: int
    source_length: int
    text_length: int


class Marks:
    """The map between a source and its text."""

    def __init__(self, marks: Iterable[Mark], begin: int = 0) -> None:
        self._marks = list(marks)
        self._begin = begin
        self._sources = [mark.source_at for mark in self._marks]
        self._texts: list[int] = []
        shift = -begin
        for mark in self._marks:
            self._texts.append(mark.source_at + shift)
            shift += mark.text_length - mark.source_length

    def text_of(self, source: int) -> int:
        """Where a byte of the source stands in the text; inside a replaced piece: behind it."""
        nth = bisect_right(self._sources, source) - 1
        # Several may begin at one place: the first of them is where the text begins.
        while nth > 0 and self._sources[nth] == source and self._sources[nth - 1] == source:
            nth -= 1
        if nth < 0:
            return source - self._begin
        mark, text = self._marks[nth], self._texts[nth]
        if source == mark.source_at:
            return text
        behind = max(source - mark.source_at - mark.source_length, 0)
        return text + mark.text_length + behind

    def source_of(self, text: int) -> int:
        """The byte of the source that a place in the text stands for."""
        nth = bisect_right(self._texts, text) - 1
        if nth < 0:
            return text + self._begin
        mark, at = self._marks[nth], self._texts[nth]
        if text < at + mark.text_length:
            return mark.source_at
        return mark.source_at + mark.source_length + text - at - mark.text_length

    def whole(self, text: int) -> int:
        """The place itself, or the end of the replaced piece that it lies in."""
        nth = bisect_right(self._texts, text) - 1
        if nth < 0:
            return text
        end = self._texts[nth] + self._marks[nth].text_length
        return end if self._texts[nth] < text < end else text


def pack_marks(marks: list[Mark]) -> bytes:
    return b"".join(_MARK.pack(*mark) for mark in marks)


def unpack_marks(packed: bytes) -> list[Mark]:
    return [Mark(*numbers) for numbers in _MARK.iter_unpack(packed)]


def join_marks(marks: list[Mark]) -> list[Mark]:
    """Half as many, each for two that were neighbours."""
    joined = [
        Mark(
            one.source_at,
            other.source_at + other.source_length - one.source_at,
            one.text_length
            + (other.source_at - one.source_at - one.source_length)
            + other.text_length,
        )
        for one, other in zip(marks[0::2], marks[1::2], strict=False)
    ]
    return joined + marks[len(joined) * 2 :]


class Cut(NamedTuple):
    """A piece of the source that is not kept: from its first byte up to the first one behind."""

    start: int
    end: int

    @property
    def length(self) -> int:
        return self.end - self.start


def cut_line(length: int) -> bytes:
    """The line that stands for what was cut."""
    return f"[corral left out {length:,} bytes here]\n".encode()


def new_hash() -> Any:
    """SHA-256. Without OpenSSL where that is not loaded: it takes a sixth of a keeper's memory."""
    if "hashlib" not in sys.modules:
        for name in ("_sha2", "_sha256"):
            with suppress(ImportError):
                return importlib.import_module(name).sha256()
    import hashlib

    return hashlib.sha256()


def packer() -> Any:
    import zstandard

    return zstandard.ZstdCompressor(level=LEVEL, write_content_size=True, write_checksum=True)


def unpacker() -> Any:
    import zstandard

    return zstandard.ZstdDecompressor(max_window_size=1 << 20)


def unpacker_error() -> type[Exception]:
    """What an unpacker raises when it is given something damaged."""
    import zstandard

    error: type[Exception] = zstandard.ZstdError
    return error
