"""Transcripts of agent CLIs that Corral did not start: claude and codex.

An import reads only the content added since the last one. It stores a batch of turns and charges,
and the position in the file, in one transaction.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from corral.adapters.transcripts.omissions import count_omissions
from corral.domain.imports import ops
from corral.domain.imports.model import Import
from corral.kernel.errors import Invalid, NotFound

if TYPE_CHECKING:
    from corral.db.database import Database

FOLDERS = {"claude": ".claude/projects", "codex": ".codex/sessions"}
BATCH = 500  # turns and charges in one transaction


class ImportedTranscripts(msgspec.Struct, frozen=True):
    """The result of an import of transcripts."""

    source: str
    files: int
    sessions: int
    """Conversations with new content."""
    turns: int
    charges: int
    own: int
    """Conversations that Corral ran itself, which are not imported."""
    left_out: dict[str, int] = {}
    """Skipped lines and blocks by kind: internal notes of the CLI, thinking, images, work of
    sub-agents."""
    unreadable: list[str] = []
    """Files that are not transcripts, or are unreadable."""


def import_transcripts(
    database: "Database",
    source: str,
    folder: str | Path | None = None,
    *,
    on_file: Callable[[int, int], object] | None = None,
) -> ImportedTranscripts:
    """Import the new content of all transcripts in a folder; see `Imports.import_transcripts`."""
    if source not in FOLDERS:
        raise Invalid(f"Cannot import from {source!r}. Use {' or '.join(FOLDERS)}.")
    root = Path(folder).expanduser() if folder else Path.home() / FOLDERS[source]
    if not root.is_dir():
        raise NotFound(f"No directory named {root}. Give the directory of the transcripts.")
    reader = import_module(f"corral.adapters.transcripts.{source}")
    files = [*reader.iter_files(root)]
    counts = {"sessions": 0, "turns": 0, "charges": 0, "own": 0}
    left_out: Counter[str] = Counter()
    unreadable: list[str] = []
    for number, path in enumerate(files, 1):
        if not _import_file(database, source, reader, path, counts, left_out):
            unreadable.append(str(path))
        if on_file is not None:
            on_file(number, len(files))
    return ImportedTranscripts(
        source, len(files), **counts, left_out=dict(left_out), unreadable=unreadable
    )


def _import_file(
    database: "Database",
    source: str,
    reader: Any,
    path: Path,
    counts: dict[str, int],
    left_out: Counter[str],
) -> bool:
    """Import the new part of a file; returns False when it is unreadable or not a transcript."""
    try:
        head = reader.read_head(path)
    except OSError:
        return False
    if head is None:
        return False
    before = database.write(
        lambda tx: ops.begin_transcript(tx, source, str(path.absolute()), head), repeatable=True
    )
    if before is None:
        counts["own"] += 1
        return True
    offsets: set[int] = set()
    after = _import_items(database, reader, path, before, offsets)
    left_out += count_omissions(path, before.read_bytes, after.read_bytes, offsets)
    counts["sessions"] += after.read_bytes > before.read_bytes
    counts["turns"] += after.turns - before.turns
    counts["charges"] += after.charges - before.charges
    return True


def _import_items(
    database: "Database", reader: Any, path: Path, imported: Import, offsets: set[int]
) -> Import:
    items: list[Any] = []
    for item in reader.iter_items(path, offset=imported.read_bytes):
        # Items of one line stay in one transaction: the next batch begins after a complete line.
        if len(items) >= BATCH and item.offset != items[-1].offset:
            imported = _store(database, imported, items)
            items = []
        items.append(item)
        offsets.add(item.offset)
    if items:
        imported = _store(database, imported, items)
    return imported


def _store(database: "Database", imported: Import, items: list[Any]) -> Import:
    return database.write(
        partial(ops.import_items, imported=imported, items=items, read_bytes=items[-1].offset)
    )
