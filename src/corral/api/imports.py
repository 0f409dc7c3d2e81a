from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from corral.adapters.transcripts.omissions import count_omissions
from corral.api.operation import Room, read, write
from corral.domain.imports import ops
from corral.domain.imports.model import Import
from corral.kernel.errors import Invalid, NotFound

if TYPE_CHECKING:
    from corral.importers.report import Taken

FOLDERS = {"claude": ".claude/projects", "codex": ".codex/sessions"}
PIECE = 500  # things said or used in one transaction


class Brought(msgspec.Struct, frozen=True):
    """What an import found and kept."""

    source: str
    files: int
    sessions: int
    """Conversations in which something new was found."""
    turns: int
    charges: int
    own: int
    """Conversations that Corral ran itself and has already."""
    left_out: dict[str, int] = {}
    """Skipped lines and blocks by kind: internal notes of the CLI, thinking, images, work of
    sub-agents."""
    unreadable: list[str] = []
    """Files that are not transcripts, or are unreadable."""


class Imports(Room):
    """Conversations that Corral did not start."""

    noun = "import"

    list = read(ops.list_imports, mode="one")
    origins = read(ops.origins, mode="one")
    _begin = write(ops.begin, repeatable=True)
    _take = write(ops.take)

    def bring(
        self,
        source: str,
        folder: str | Path | None = None,
        *,
        on_file: Callable[[int, int], object] | None = None,
    ) -> Brought:
        """Bring in the transcripts of claude or codex; only what is new since the last time.

        The files are only read. `on_file` is told how many of how many files were looked at.
        """
        if source not in FOLDERS:
            raise Invalid(f"{source!r} cannot be imported; take {' or '.join(FOLDERS)}.")
        where = Path(folder).expanduser() if folder else Path.home() / FOLDERS[source]
        if not where.is_dir():
            raise NotFound(f"There is no folder {where}; give the one with the transcripts.")
        reader = import_module(f"corral.adapters.transcripts.{source}")
        files = [*reader.files(where)]
        counts = {"sessions": 0, "turns": 0, "charges": 0, "own": 0}
        left_out: Counter[str] = Counter()
        unreadable: Any = []
        for number, path in enumerate(files, 1):
            if not self._bring_file(source, reader, path, counts, left_out):
                unreadable.append(str(path))
            if on_file is not None:
                on_file(number, len(files))
        return Brought(source, len(files), **counts, left_out=dict(left_out), unreadable=unreadable)

    def take(
        self,
        tool: str,
        path: str | Path,
        *,
        source: str | None = None,
        on_rows: Callable[[int, int], object] | None = None,
    ) -> "Taken":
        """Bring in a database of agent-yes, agents, flightdeck, multishot or nanoclaw.

        The file is only read. It is one transaction, and each row comes in once: a second time only
        what is new. `source` is what the database is known by, else its path; give the same name
        when it was moved. `on_rows` is told how many of how many rows were looked at.
        """
        from corral.importers.workflow import bring

        return bring(self._database, tool, Path(path), source, on_rows)

    def _bring_file(
        self,
        source: str,
        reader: Any,
        path: Path,
        counts: dict[str, int],
        left_out: Counter[str],
    ) -> bool:
        """Import the new part of a file; False: it is unreadable or not a transcript."""
        try:
            head = reader.head(path)
        except OSError:
            return False
        if head is None:
            return False
        before = self._begin(source, str(path.absolute()), head)
        if before is None:
            counts["own"] += 1
            return True
        offsets: set[int] = set()
        after = self._bring_rest(reader, path, before, offsets)
        left_out += count_omissions(path, before.read_bytes, after.read_bytes, offsets)
        counts["sessions"] += after.read_bytes > before.read_bytes
        counts["turns"] += after.turns - before.turns
        counts["charges"] += after.charges - before.charges
        return True

    def _bring_rest(self, reader: Any, path: Path, imported: Import, offsets: set[int]) -> Import:
        items: Any = []
        for item in reader.read(path, offset=imported.read_bytes):
            # What one line says stays together: the next piece begins behind a whole line.
            if len(items) >= PIECE and item.offset != items[-1].offset:
                imported = self._take(imported, items, read_bytes=items[-1].offset)
                items = []
            items.append(item)
            offsets.add(item.offset)
        if items:
            imported = self._take(imported, items, read_bytes=items[-1].offset)
        return imported
