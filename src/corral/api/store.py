"""Operations of `store.db`."""

from pathlib import Path
from typing import TYPE_CHECKING

from corral.api.operation import Resource, operation
from corral.api.policy import USES_FILES
from corral.db.types import Finding, ProgressCallback, QueryResult, no_progress
from corral.kernel.errors import Invalid
from corral.kernel.validation import MAX_BODY, check_text
from corral.services.store.model import PruneResult

if TYPE_CHECKING:
    from corral.services.store.move import MoveResult


def replace_damaged(url: str | None, file: str | Path) -> Path:
    """Restore a backup in place of a damaged SQLite file; returns where the damaged file is now.

    The backup is checked before anything is moved.
    """
    from corral import config
    from corral.api import open
    from corral.services.store.backup import check_backup_file, find_unused_path

    source = check_backup_file(file)
    path = Path(config.store_url(url).removeprefix("sqlite:///")).absolute()
    aside = find_unused_path(path.with_name(f"{path.name}.damaged"))
    for suffix in ("-wal", "-shm", ""):
        part = path.with_name(path.name + suffix)
        if part.exists():
            part.rename(aside.with_name(aside.name + suffix))
    with open(url) as store:
        store.db.restore(source)
    return aside


class Store(Resource):
    """The store itself: schema, checks, backups, retention, and moves to another database."""

    noun = "db"

    @property
    def url(self) -> str:
        """The URL of the store, without its password."""
        return self._executor.url

    @property
    def engine(self) -> str:
        """The database engine: `sqlite` or `postgresql`."""
        return self._executor.engine

    @property
    def path(self) -> Path | None:
        """The file of a SQLite store; None for PostgreSQL and over HTTP."""
        return self._executor.path

    @property
    def part_of(self) -> str | None:
        """The URL of the store that this one is an export of; None for an ordinary store."""
        from corral.db.store_move_record import read_export_origin

        return read_export_origin(self._database)

    @operation(reads=True)
    def schema_version(self) -> int:
        """Return the number of the last migration that was applied."""
        return self._database.schema_version()

    @operation(local="a store is migrated before a daemon serves it", people_only=True)
    def migrate(self) -> list[int]:
        """Apply all pending migrations; returns their numbers. Idempotent.

        Each migration is one transaction. Raises Refused when the schema is newer than this
        program.
        """
        from corral.db.migrations import migrate

        return migrate(self._database)

    @operation(reads=True, slow=True)
    def check(self) -> list[Finding]:
        """Check quickly that the engine reports no damage and that the schema is the right one."""
        from corral.services.store.schema_check import check_schema

        return [*self._database.check(thorough=False), check_schema(self._database)]

    @operation(
        reads=True, local_arguments={"on_progress": "a request returns only its result"}, slow=True
    )
    def verify(self, *, on_progress: ProgressCallback | None = None) -> list[Finding]:
        """Check every page and row, and the files of this machine that rows refer to.

        Takes a while on a large store; other processes may write meanwhile. `on_progress` is
        called with the progress: step, done, total.
        """
        from corral.services.store.verify import verify_store

        return verify_store(self._database, on_progress or no_progress)

    @operation(local=USES_FILES)
    def backup(self, file: str | Path) -> Path:
        """Write a consistent snapshot of the store into a new private SQLite file.

        Works for both engines while other processes write. Returns the absolute path. Raises
        Refused when the file exists.
        """
        from corral.services.store.backup import back_up

        return back_up(self._database, file)

    @operation(local=USES_FILES, people_only=True)
    def restore(self, file: str | Path) -> Path | None:
        """Replace the content of the store by a backup of either engine.

        Returns the file with the former content of a SQLite store, which is kept beside it; None
        when the store was empty or is on PostgreSQL. Raises Refused while runs are live that the
        backup does not contain: their end could not be recorded.
        """
        from corral.services.store.backup import restore

        return restore(self._database, file)

    @operation(local="a store is moved while no daemon serves it", people_only=True)
    def move(self, url: str, *, on_progress: ProgressCallback | None = None) -> "MoveResult":
        """Move everything to another store, on either engine, and use that one from then on.

        Writers are blocked meanwhile. Afterwards the old store rejects writes and redirects every
        process that opens it. After a crash at any step, the same call resumes; `cancel_move`
        cancels the move before the switch. `on_progress` is called with the progress.

        Raises Refused while a daemon serves the store or runs are live.
        """
        from corral.services.store.move import move_store

        return move_store(self._database, url, on_progress)

    @operation(local="no daemon serves a store that is being moved", people_only=True)
    def cancel_move(self) -> bool:
        """Cancel a move that has not switched yet, and allow writes again.

        Returns False when no move is in progress. Raises Refused when the target cannot be reached
        or is in use already.
        """
        from corral.services.store.move import cancel_move

        return cancel_move(self._database)

    # Server functions called in a SELECT can terminate connections or read files. The time limit
    # frees the thread of the server.
    @operation(reads=True, slow=True, needs_full_scope=True, time_limit="timeout_ms")
    def sql(self, query: str, *, limit: int = 1_000, timeout_ms: int = 5_000) -> QueryResult:
        """Run a read-only query over the documented tables, limited in rows and time."""
        if not 1 <= limit <= 100_000 or not 1 <= timeout_ms <= 600_000:
            raise Invalid(
                "The limit is 1 to 100,000 rows, and the time limit is 1 ms to 10 minutes."
            )
        check_text(query, "The query", max_bytes=MAX_BODY)
        return self._database.query(query, limit=limit, timeout_ms=timeout_ms)

    @operation(people_only=True)
    def durability(self, wanted: str | None = None) -> str:
        """Return the durability of the store, after setting it to `wanted` if given.

        `normal`: accepted changes survive the death of any process. `full`: also a power cut.
        """
        if wanted not in (None, "normal", "full"):
            raise Invalid(f"Invalid durability {wanted!r}: expected normal or full.", value=wanted)
        return self._database.durability(wanted)

    @operation(slow=True, people_only=True)
    def prune(self, *, dry_run: bool = False) -> list[PruneResult]:
        """Delete rows that are older than their retention setting (`….retention_ms`).

        A project may have its own setting. Letters that expired are ended, and their senders are
        notified. A dry run counts exactly the rows that a real run would delete.
        """
        from corral.services.store.prune import prune

        return prune(self._database, dry_run=dry_run)
