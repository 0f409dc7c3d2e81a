from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from corral.kernel.errors import Invalid, NotFound
from corral.library.operation import Room, read, write
from corral.rooms.imports import ops
from corral.rooms.imports.model import Import

if TYPE_CHECKING:
    from corral.library.foreign.report import Taken

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
        for number, path in enumerate(files, 1):
            self._bring_file(source, reader, path, counts)
            if on_file is not None:
                on_file(number, len(files))
        return Brought(source, len(files), **counts)

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
        from corral.library.foreign.bringing import bring

        return bring(self._database, tool, Path(path), source, on_rows)

    def _bring_file(self, source: str, reader: Any, path: Path, counts: dict[str, int]) -> None:
        try:
            head = reader.head(path)
        except OSError:
            return  # gone, or not ours to read
        if head is None:
            return
        before = self._begin(source, str(path.absolute()), head)
        if before is None:
            counts["own"] += 1
            return
        after = self._bring_rest(reader, path, before)
        counts["sessions"] += after.read_bytes > before.read_bytes
        counts["turns"] += after.turns - before.turns
        counts["charges"] += after.charges - before.charges

    def _bring_rest(self, reader: Any, path: Path, imported: Import) -> Import:
        items: Any = []
        for item in reader.read(path, offset=imported.read_bytes):
            # What one line says stays together: the next piece begins behind a whole line.
            if len(items) >= PIECE and item.offset != items[-1].offset:
                imported = self._take(imported, items, read_bytes=items[-1].offset)
                items = []
            items.append(item)
        if items:
            imported = self._take(imported, items, read_bytes=items[-1].offset)
        return imported
