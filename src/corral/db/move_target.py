"""The target of a move: claimed and fenced in one transaction, filled only by its mover.

Other processes may have the target open, from before the move or from a time when it was the
store's place. The engine rejects their writes until the move has arrived.
"""

from corral.db import write_fence
from corral.db.database import Database
from corral.db.filesystem import whole_file
from corral.db.migrate import create_schema, newest, open_schema
from corral.db.sqlite import SqliteDatabase
from corral.db.statement import Statement
from corral.db.store_move_record import ENTER, LOCKED, OPEN_FENCE, VOID, Relocation, seek
from corral.db.tx import Tx
from corral.kernel.errors import Refused
from corral.scratch_folders import scratch_folder

WAIT = "wait until it is done"


class MoveTarget:
    """One move into `target`. `origin` is the source as other stores name it; `has_history` says
    whether the source ever received or kept a store that was moved."""

    def __init__(self, target: Database, origin: str, move: str, *, has_history: bool) -> None:
        self.target = target
        self._origin = origin
        self._move = move
        self._has_history = has_history

    def prepare(self) -> None:
        """Fence and shut the target so that only this move can fill it, or continue with it.

        Raises Refused if the target holds anything else.
        """
        if self.target.schema_version() == 0 and self._create(self.target):
            return
        found = seek(self.target)
        if found is not None and found.move == self._move and found.phase != "gone":
            return
        ours = found is not None and found.url == self._origin
        if found is not None and ours and found.phase in ("arriving", "gone"):
            self._clear(found)
        elif found is not None and found.phase != "arrived":
            raise self._refusal(found)
        else:
            open_schema(self.target)
            self.target.write(self._claim)

    def _create(self, target: Database) -> bool:
        """Create the schema, the fence and a version that no program opens, in one transaction.

        Returns False if another process created a store there first.
        """
        origin, now = self._origin.replace("'", "''"), target.clock.now()
        then = [
            "INSERT INTO relocation (one, phase, url, move, copied, at)"
            f" VALUES (1, 'arriving', '{origin}', '{self._move}', '{{}}', {now})",
            *write_fence.arrival_statements(target.engine, self._origin),
            *write_fence.shut_statements(target.engine, newest(), now),
        ]
        return create_schema(target, write_fence.AWAY + newest(), then)

    def _claim(self, tx: Tx) -> None:
        """Fence an existing store, if it is empty."""
        write_fence.lock_content(tx)
        found = tx.one(LOCKED)
        if found is not None and found.phase != "arrived":
            raise self._refusal(found)
        for table in write_fence.content():
            if tx.run(Statement(f"SELECT 1 FROM {table.name} LIMIT 1")):
                raise Refused(
                    f"{self.target.url} is not empty: it has rows in {table.name}. Give the URL of "
                    "a new store.",
                    table=table.name,
                    reason="not_empty",
                )
        self._enter(tx)

    def _enter(self, tx: Tx) -> None:
        tx.run(ENTER, phase="arriving", url=self._origin, move=self._move, now=tx.now)
        write_fence.put_up(tx, write_fence.arrival_statements(tx.engine, self._origin))
        write_fence.shut(tx, newest())

    def _clear(self, found: Relocation) -> None:
        """Empty a target that holds a partial copy, or content that was moved from there to here.

        The target stays shut all the time: it is emptied in place, in one transaction.
        """
        if found.phase == "gone" and not self._has_history:
            raise Refused(
                f"{self.target.url} still holds the content that was moved to {found.url}, and "
                "this store is not the one that received it. Give the URL of a new store.",
                url=found.url,
            )
        if isinstance(self.target, SqliteDatabase):
            if found.phase == "gone":
                _keep_aside(self.target)
            self._overwrite(self.target, found)
            return
        names = ", ".join(table.name for table in write_fence.content())

        def empty(tx: Tx) -> None:
            self._require_unchanged(tx.one(LOCKED), found)
            write_fence.take_down(tx)
            tx.run(Statement(f"TRUNCATE {names}"))
            self._enter(tx)

        self.target.write(empty)

    def _overwrite(self, target: SqliteDatabase, found: Relocation) -> None:
        with scratch_folder("move") as folder:
            fresh = SqliteDatabase(folder / "fresh.db", clock=target.clock, actor=target.actor)
            try:
                self._create(fresh)
            finally:
                fresh.close()
            with target.migrating():
                self._require_unchanged(seek(target), found)
                target.overwrite(folder / "fresh.db")

    def open_fence(self, tx: Tx, copied: dict[str, int]) -> None:
        """Let this transaction write to the target.

        Raises Refused if another process cancelled the move or continued the copy.
        """
        found = tx.one(OPEN_FENCE, move=self._move)
        if found is None or found.copied != copied:
            raise Refused(
                f"Another process cancelled the move to {self.target.url}, or continues it. Run "
                "`corral db move` again to resume the move.",
                url=self.target.url,
            )

    def _refusal(self, found: Relocation) -> Refused:
        return Refused(
            f"{self.target.url} {_STATUS[found.phase]} {found.url}. Give the URL of a new store.",
            url=found.url,
        )

    def _require_unchanged(self, now: Relocation | None, before: Relocation) -> None:
        if now != before:
            raise Refused(
                f"Another process uses {self.target.url} for a move. Wait until it is done."
            )


_STATUS = {
    "part": "holds a part of",
    "leaving": "is on its way to",
    "gone": "holds only content that was moved to",
    "arriving": "is being filled from",
}


def void_target(target: Database, move: str) -> None:
    """Make sure that a move can never open its target; raises Refused if it already did.

    The mover and the canceller change the same row of the target, so only one of them succeeds.
    """
    found = seek(target)
    if found is None or found.move != move:
        return
    if found.phase == "arriving" and target.write(lambda tx: tx.run(VOID, move=move)):
        return
    raise Refused(
        f"Cannot cancel the move: {target.pointer} is complete and in use. Finish it with "
        f"`corral db move {target.pointer}`.",
        url=target.pointer,
        reason="already_moved",
    )


def _keep_aside(database: SqliteDatabase) -> None:
    """Back up a store that was moved away before its file is overwritten."""
    aside = database.path.with_name(f"{database.path.name}.moved-away")
    for end in ("-wal", "-shm", ""):
        aside.with_name(aside.name + end).unlink(missing_ok=True)
    with whole_file(aside) as part:
        database.backup(part)
