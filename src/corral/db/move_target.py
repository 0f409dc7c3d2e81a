"""The target of a move: claimed and guarded in one transaction, filled only by its mover.

Other processes may have the target open: from before the move, or because the store was there
earlier. The engine rejects their writes until the move has arrived.
"""

from corral.db import write_guard
from corral.db.database import Database
from corral.db.filesystem import atomic_file
from corral.db.migrations import create_schema, ensure_schema, latest_version
from corral.db.sqlite import SqliteDatabase
from corral.db.statement import Statement
from corral.db.store_move_record import (
    OPEN_WRITE_GUARD,
    READ_FOR_UPDATE,
    UPSERT,
    VOID_MOVE,
    StoreMoveRecord,
    read_store_move_if_current,
)
from corral.db.tx import Tx
from corral.kernel.errors import Refused
from corral.scratch_folders import scratch_folder

WAIT = "Wait until it is done"


class MoveTarget:
    """The target of one move.

    `source_url` is the address of the source without passwords. `has_history` says whether the
    source ever received or kept the content of a moved store.
    """

    def __init__(self, target: Database, source_url: str, move: str, *, has_history: bool) -> None:
        self.target = target
        self._source_url = source_url
        self._move = move
        self._has_history = has_history

    def prepare(self) -> None:
        """Guard and close the target so that only this move can fill it. Idempotent.

        Raises Refused if the target holds other content.
        """
        if self.target.schema_version() == 0 and self._create(self.target):
            return
        record = read_store_move_if_current(self.target)
        if record is not None and record.move_id == self._move and record.phase != "gone":
            return
        is_ours = record is not None and record.url == self._source_url
        if record is not None and is_ours and record.phase in ("arriving", "gone"):
            self._clear(record)
        elif record is not None and record.phase != "arrived":
            raise self._occupied_error(record)
        else:
            ensure_schema(self.target)
            self.target.write(self._claim)

    def _create(self, target: Database) -> bool:
        """Create the schema with a write guard and a version that no program opens, atomically.

        Returns False if another process created a store there first.
        """
        quoted_url, now = self._source_url.replace("'", "''"), target.clock.now()
        then = [
            "INSERT INTO store_moves (one, phase, url, move_id, copied_rows, started_at)"
            f" VALUES (1, 'arriving', '{quoted_url}', '{self._move}', '{{}}', {now})",
            *write_guard.build_arrival_statements(target.engine, self._source_url),
            *write_guard.close_statements(target.engine, latest_version(), now),
        ]
        return create_schema(target, write_guard.MOVED_OFFSET + latest_version(), then)

    def _claim(self, tx: Tx) -> None:
        """Guard an existing store, if it is empty."""
        write_guard.lock_content(tx)
        record = tx.first(READ_FOR_UPDATE)
        if record is not None and record.phase != "arrived":
            raise self._occupied_error(record)
        for table in write_guard.list_content_tables():
            if tx.run(Statement(f"SELECT 1 FROM {table.name} LIMIT 1")):
                raise Refused(
                    f"{self.target.url} is not empty: it has rows in {table.name}. Give the URL of "
                    "a new store.",
                    table=table.name,
                    reason="not_empty",
                )
        self._enter(tx)

    def _enter(self, tx: Tx) -> None:
        tx.run(UPSERT, phase="arriving", url=self._source_url, move_id=self._move, now=tx.now)
        write_guard.install(tx, write_guard.build_arrival_statements(tx.engine, self._source_url))
        write_guard.close_store(tx, latest_version())

    def _clear(self, before: StoreMoveRecord) -> None:
        """Empty a target that holds a partial copy, or content that was moved from there to here.

        The target stays closed throughout: it is emptied in place, in one transaction.
        """
        if before.phase == "gone" and not self._has_history:
            raise Refused(
                f"{self.target.url} still holds the content that was moved to {before.url}, and "
                "this store is not the one that received it. Give the URL of a new store.",
                url=before.url,
            )
        if isinstance(self.target, SqliteDatabase):
            if before.phase == "gone":
                _back_up_beside(self.target)
            self._overwrite(self.target, before)
            return
        names = ", ".join(table.name for table in write_guard.list_content_tables())

        def empty(tx: Tx) -> None:
            self._require_unchanged(tx.first(READ_FOR_UPDATE), before)
            write_guard.remove(tx)
            tx.run(Statement(f"TRUNCATE {names}"))
            self._enter(tx)

        self.target.write(empty)

    def _overwrite(self, target: SqliteDatabase, before: StoreMoveRecord) -> None:
        with scratch_folder("move") as directory:
            fresh = SqliteDatabase(directory / "fresh.db", clock=target.clock, actor=target.actor)
            try:
                self._create(fresh)
            finally:
                fresh.close()
            with target.migration_lock():
                self._require_unchanged(read_store_move_if_current(target), before)
                target.overwrite(directory / "fresh.db")

    def open_write_guard(self, tx: Tx, copied: dict[str, int]) -> None:
        """Let this transaction write to the target.

        Raises Refused if another process cancelled the move or continued the copy.
        """
        record = tx.first(OPEN_WRITE_GUARD, move_id=self._move)
        if record is None or record.copied_rows != copied:
            raise Refused(
                f"Another process cancelled the move to {self.target.url}, or continues it. Run "
                "`corral db move` again to resume the move.",
                url=self.target.url,
            )

    def _occupied_error(self, record: StoreMoveRecord) -> Refused:
        return Refused(
            f"{self.target.url} {_STATUS[record.phase]} {record.url}. Give the URL of a new store.",
            url=record.url,
        )

    def _require_unchanged(self, now: StoreMoveRecord | None, before: StoreMoveRecord) -> None:
        if now != before:
            raise Refused(
                f"Another process uses {self.target.url} for a move. Wait until it is done."
            )


_STATUS = {
    "excerpt": "is an excerpt of",
    "leaving": "is being moved to",
    "gone": "holds only content that was moved to",
    "arriving": "is being filled from",
}


def void_target(target: Database, move_id: str) -> None:
    """Make sure that a move can never open its target; raises Refused if it already did.

    The mover and the canceller change the same row of the target, so only one of them succeeds.
    """
    record = read_store_move_if_current(target)
    if record is None or record.move_id != move_id:
        return
    if record.phase == "arriving" and target.write(lambda tx: tx.run(VOID_MOVE, move_id=move_id)):
        return
    raise Refused(
        f"Cannot cancel the move: {target.pointer} is complete and in use. Finish it with "
        f"`corral db move {target.pointer}`.",
        url=target.pointer,
        reason="already_moved",
    )


def _back_up_beside(database: SqliteDatabase) -> None:
    """Back up a store that was moved away before its file is overwritten."""
    copy = database.path.with_name(f"{database.path.name}.moved-away")
    for suffix in ("-wal", "-shm", ""):
        copy.with_name(copy.name + suffix).unlink(missing_ok=True)
    with atomic_file(copy) as part:
        database.backup(part)
