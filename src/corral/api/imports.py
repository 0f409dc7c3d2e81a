"""Operations of `store.imports`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from corral.api.operation import Resource, operation, read
from corral.api.policy import USES_FILES
from corral.domain.imports import ops
from corral.domain.imports import origins as import_origins

if TYPE_CHECKING:
    from corral.importers.report import ImportReport
    from corral.importers.transcript_import import ImportedTranscripts


class Imports(Resource):
    """Imports of data that Corral did not create: transcripts and databases of other tools.

    Imported rows are never live: no process, no delivery, no timer. Retention does not apply to
    them unless the setting `imports.apply_retention` is on.
    """

    noun = "import"

    list = read(ops.list_imports, mode="one")
    origins = read(import_origins.list_origins, mode="one")

    @operation(local=USES_FILES, people_only=True)
    def import_transcripts(
        self,
        source: str,
        folder: str | Path | None = None,
        *,
        on_file: Callable[[int, int], object] | None = None,
    ) -> "ImportedTranscripts":
        """Import the transcripts of claude or codex.

        Idempotent: reads only what was added since the last import. The files are never changed.
        `on_file` is called after each file with the number of files done and their total. Raises
        Invalid for another source, and NotFound when the folder does not exist.
        """
        from corral.importers.transcript_import import import_transcripts

        return import_transcripts(self._database, source, folder, on_file=on_file)

    @operation(local=USES_FILES, people_only=True)
    def import_database(
        self,
        tool: str,
        path: str | Path,
        *,
        source: str | None = None,
        on_rows: Callable[[int, int], object] | None = None,
    ) -> "ImportReport":
        """Import a database of agent-yes, agents, flightdeck, multishot or nanoclaw.

        One transaction. Idempotent: each row is imported once, a second import adds new rows and
        restores deleted ones. The file is never changed. `source` identifies the database (default:
        its path); give the same name after it was moved. `on_rows` is called with the number of
        rows done and their total. Raises Invalid for a file of another tool.
        """
        from corral.importers.database_import import import_database

        return import_database(self._database, tool, Path(path), source, on_rows)
