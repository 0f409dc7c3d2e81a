"""A unified diff in pieces, for readers of limited size."""

from collections.abc import Iterator
from typing import IO

import msgspec

from corral.adapters import git
from corral.adapters.history import PATCH, changes, resolve

CHUNK_BYTES = 48 * 1024
MAX_BYTES = 4 * 1024 * 1024
CUT = b" [cut]\n"


class Chunk(msgspec.Struct, frozen=True):
    """A piece of a unified diff that a reader of limited size can take."""

    text: str
    files: list[str]
    truncated: bool
    """A line in it was cut, or (on the last one) the whole is longer than may be shown."""


def chunks(
    repository: str,
    old: str,
    new: str,
    *,
    chunk_bytes: int = CHUNK_BYTES,
    max_bytes: int = MAX_BYTES,
) -> Iterator[Chunk]:
    """The unified diff between two commits in pieces, cut between files and between lines; a piece
    that goes on with a file names it again. It is read as it is taken, never whole."""
    ends = (resolve(repository, old), resolve(repository, new))
    # A file that changed its kind is shown as two: one that goes, and one that comes.
    names = [
        change.name
        for change in changes(repository, *ends)
        for _ in range(2 if change.state == "kind" else 1)
    ]
    with git.reading(repository, *PATCH, *ends) as (_, out):
        yield from _cut(out, names, chunk_bytes, max_bytes)


class _Piece:
    """A piece that is being put together."""

    def __init__(self) -> None:
        self.text = b""
        self.files: list[str] = []
        self.cut = False

    def done(self, *, truncated: bool = False) -> Chunk:
        return Chunk(self.text.decode(errors="replace"), self.files, self.cut or truncated)


def _cut(out: IO[bytes], names: list[str], chunk_bytes: int, max_bytes: int) -> Iterator[Chunk]:
    piece, head, in_head, taken, number = _Piece(), b"", False, 0, -1
    for line, whole in _lines(out, chunk_bytes // 2):
        if (taken := taken + len(line)) > max_bytes:
            yield piece.done(truncated=True)
            return
        if line.startswith(b"diff --git "):
            head, in_head, number = b"", True, number + 1
        in_head &= not line.startswith(b"@@ ")
        head += line if in_head else b""
        if piece.text and len(piece.text) + len(line) > chunk_bytes:
            yield piece.done()
            piece = _Piece()
            piece.text = head if in_head else head + line
        else:
            piece.text += line
        piece.cut |= not whole
        if names[number] not in piece.files[-1:]:
            piece.files.append(names[number])
    if piece.text:
        yield piece.done()


def _lines(out: IO[bytes], most: int) -> Iterator[tuple[bytes, bool]]:
    """Lines, and whether they are whole; a very long one is cut."""
    while line := out.readline(most):
        whole = line.endswith(b"\n")
        yield (line, True) if whole else (line + CUT, False)
        while not whole and (rest := out.readline(65_536)):
            whole = rest.endswith(b"\n")
