"""The row that records where a store's content goes, went or comes from, and its statements."""

import msgspec

from corral.db import write_guard
from corral.db.database import Database
from corral.db.migrations import latest_version
from corral.db.statement import Query, Statement


class StoreMoveRecord(msgspec.Struct, frozen=True):
    """The only row of the table `store_moves`; a store that was never moved has none."""

    phase: str
    """The phase of the move.

    - leaving: writes are blocked, and the content is being copied to `url`.
    - gone: the content is at `url`.
    - arriving: the store is being filled from `url`.
    - arrived: the store is in use. It was filled from `url`, or a move to `url` was cancelled; both
      mean that it once held content of its own (see `MoveTarget._clear`).
    - excerpt: the store is an excerpt of `url`.
    """
    url: str
    move_id: str
    """The id of the move; empty if it was cancelled."""
    copied_rows: dict[str, int]
    """The number of rows copied so far, by table."""


READ = Query(StoreMoveRecord, "SELECT phase, url, move_id, copied_rows FROM store_moves")
READ_FOR_UPDATE = Query(
    StoreMoveRecord, "SELECT phase, url, move_id, copied_rows FROM store_moves {locked}"
)
# `one` is always 1, so that the table never has a second row.
UPSERT = Statement("""
    INSERT INTO store_moves (one, phase, url, move_id, copied_rows, started_at)
    VALUES (1, :phase, :url, :move_id, '{}', :now)
    ON CONFLICT (one) DO UPDATE SET phase = excluded.phase, url = excluded.url,
        move_id = excluded.move_id, copied_rows = excluded.copied_rows,
        started_at = excluded.started_at
""")
# Opens the target's write guard for the transaction that runs it; see
# `write_guard.build_arrival_statements`. Other transactions never see this 'arrived': SAVE_PROGRESS
# sets the phase back before the commit, and only the last transaction of the move keeps it.
# `phase = 'arriving'`: the target is not open yet. `move_id = :move_id`: the move was neither
# cancelled nor replaced by another one.
OPEN_WRITE_GUARD = Query(
    StoreMoveRecord,
    """
    UPDATE store_moves SET phase = 'arrived' WHERE phase = 'arriving' AND move_id = :move_id
    RETURNING phase, url, move_id, copied_rows
    """,
)
# Closes the guard again before the commit, and records the progress.
SAVE_PROGRESS = Statement("UPDATE store_moves SET phase = 'arriving', copied_rows = :copied_rows")
# `phase = 'leaving'`: writes to the source are still blocked. `move_id = :move_id`: by this move.
MARK_GONE = Statement("""
    UPDATE store_moves SET phase = 'gone' WHERE phase = 'leaving' AND move_id = :move_id
    RETURNING move_id
""")
# The row of a cancelled move keeps the target closed; its empty id matches no mover.
VOID_MOVE = Statement("""
    UPDATE store_moves SET move_id = '' WHERE phase = 'arriving' AND move_id = :move_id
    RETURNING url
""")
# After a cancelled move the store is in use again. 'arrived' also records that it once held content
# of its own; see `MoveTarget._clear`.
MARK_CANCELLED = Statement("UPDATE store_moves SET phase = 'arrived' WHERE phase = 'leaving'")
DELETE_EXCERPT_MARK = Statement("DELETE FROM store_moves WHERE phase = 'excerpt'")
READ_DURABILITY = Statement("SELECT durability FROM store_options")
SET_DURABILITY = Statement("UPDATE store_options SET durability = :promised")


def read_store_move(database: Database) -> StoreMoveRecord | None:
    """Return the record of the last move; None if the store was never moved."""
    return database.read(lambda tx: tx.first(READ), mode="one")


def read_export_origin(database: Database) -> str | None:
    """Return the URL of the store that this one is an export of; None for an ordinary store."""
    record = read_store_move(database)
    return record.url if record is not None and record.phase == "excerpt" else None


def read_store_move_if_current(database: Database) -> StoreMoveRecord | None:
    """Call `read_store_move`, unless the store is empty or has another schema version: None."""
    return (
        read_store_move(database)
        if database.schema_version() % write_guard.MOVED_OFFSET == latest_version()
        else None
    )
