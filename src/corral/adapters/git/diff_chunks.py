"""A unified diff in chunks, for readers with a size limit."""

from collections.abc import Iterator
from typing import IO

import msgspec

from corral.adapters.git import git
from corral.adapters.git.git_history import PATCH_COMMAND, list_changes, resolve_commit

CHUNK_BYTES = 48 * 1024
MAX_BYTES = 4 * 1024 * 1024
CUT_MARK = b" [cut]\n"


class DiffChunk(msgspec.Struct, frozen=True):
    """A part of a unified diff."""

    text: str
    files: list[str]
    truncated: bool
    """A line was cut, or (in the last chunk) the diff is longer than the limit."""


def read_chunks(
    repository: str,
    old: str,
    new: str,
    *,
    chunk_bytes: int = CHUNK_BYTES,
    max_bytes: int = MAX_BYTES,
) -> Iterator[DiffChunk]:
    """Yield the unified diff between two commits in chunks, split between files and lines.

    A chunk that continues a file repeats its header. The diff is streamed and never held in
    memory completely.
    """
    ends = (resolve_commit(repository, old), resolve_commit(repository, new))
    # A type change is shown as two files: one removed, one added.
    names = [
        change.name
        for change in list_changes(repository, *ends)
        for _ in range(2 if change.state == "kind" else 1)
    ]
    with git.open_stream(repository, *PATCH_COMMAND, *ends) as (_, out):
        yield from _split(out, names, chunk_bytes, max_bytes)


class _ChunkBuilder:
    """A chunk under construction."""

    def __init__(self) -> None:
        self.text = b""
        self.files: list[str] = []
        self.cut = False

    def done(self, *, truncated: bool = False) -> DiffChunk:
        return DiffChunk(self.text.decode(errors="replace"), self.files, self.cut or truncated)


def _split(
    out: IO[bytes], names: list[str], chunk_bytes: int, max_bytes: int
) -> Iterator[DiffChunk]:
    chunk, header, in_header, total, number = _ChunkBuilder(), b"", False, 0, -1
    for line, is_complete in _read_lines(out, chunk_bytes // 2):
        if (total := total + len(line)) > max_bytes:
            yield chunk.done(truncated=True)
            return
        if line.startswith(b"diff --git "):
            header, in_header, number = b"", True, number + 1
        in_header &= not line.startswith(b"@@ ")
        header += line if in_header else b""
        if chunk.text and len(chunk.text) + len(line) > chunk_bytes:
            yield chunk.done()
            chunk = _ChunkBuilder()
            chunk.text = header if in_header else header + line
        else:
            chunk.text += line
        chunk.cut |= not is_complete
        if names[number] not in chunk.files[-1:]:
            chunk.files.append(names[number])
    if chunk.text:
        yield chunk.done()


def _read_lines(out: IO[bytes], max_bytes: int) -> Iterator[tuple[bytes, bool]]:
    """Yield lines, and whether each is complete; a very long line is cut."""
    while line := out.readline(max_bytes):
        is_complete = line.endswith(b"\n")
        yield (line, True) if is_complete else (line + CUT_MARK, False)
        while not is_complete and (rest := out.readline(65_536)):
            is_complete = rest.endswith(b"\n")
