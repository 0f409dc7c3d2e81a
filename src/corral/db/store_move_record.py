"""The row that records where a store's content goes, went or comes from, and its statements."""

import msgspec

from corral.db import write_fence
from corral.db.database import Database
from corral.db.migrations import latest_version
from corral.db.statement import Query, Statement


class Relocation(msgspec.Struct, frozen=True):
    """The only row of the table `relocation`; a store that was never moved has none."""

    phase: str
    """leaving: this store is fenced and being copied to `url`. gone: its content is at `url`.
    arriving: it is being filled from `url`. arrived: it was filled and is in use. part: it is an
    excerpt of `url`."""
    url: str
    move: str
    """The id of the move; empty if it was cancelled."""
    copied: dict[str, int]
    """The number of rows copied so far, by table."""


READ = Query(Relocation, "SELECT phase, url, move, copied FROM relocation")
READ_FOR_UPDATE = Query(Relocation, "SELECT phase, url, move, copied FROM relocation {locked}")
# `one` is always 1, so that the table never has a second row.
UPSERT = Statement("""
    INSERT INTO relocation (one, phase, url, move, copied, at)
    VALUES (1, :phase, :url, :move, '{}', :now)
    ON CONFLICT (one) DO UPDATE SET phase = excluded.phase, url = excluded.url,
        move = excluded.move, copied = excluded.copied, at = excluded.at
""")
# Opens the target's fence for the transaction that runs it; see `write_fence.arrival_statements`.
# `phase = 'arriving'`: the target is not open yet. `move = :move`: the move was neither cancelled
# nor replaced by another one.
OPEN_FENCE = Query(
    Relocation,
    """
    UPDATE relocation SET phase = 'arrived' WHERE phase = 'arriving' AND move = :move
    RETURNING phase, url, move, copied
    """,
)
# Closes the fence again before the commit, and records the progress.
SAVE_PROGRESS = Statement("UPDATE relocation SET phase = 'arriving', copied = :copied")
# `phase = 'leaving'`: the source is still fenced. `move = :move`: by this move.
MARK_GONE = Statement("""
    UPDATE relocation SET phase = 'gone' WHERE phase = 'leaving' AND move = :move RETURNING move
""")
# The row of a cancelled move keeps the target closed; its empty id matches no mover.
VOID_MOVE = Statement("""
    UPDATE relocation SET move = '' WHERE phase = 'arriving' AND move = :move RETURNING url
""")
# Records that this store once held content of its own; see `MoveTarget._clear`.
MARK_STAYED = Statement("UPDATE relocation SET phase = 'arrived' WHERE phase = 'leaving'")
DELETE_EXCERPT_MARK = Statement("DELETE FROM relocation WHERE phase = 'part'")
READ_DURABILITY = Statement("SELECT durability FROM store_options")
SET_DURABILITY = Statement("UPDATE store_options SET durability = :promised")


def read_relocation(database: Database) -> Relocation | None:
    """Return the record of the last move; None if the store was never moved."""
    return database.read(lambda tx: tx.first(READ), mode="one")


def read_export_origin(database: Database) -> str | None:
    """Return the URL of the store that this one is an export of; None for an ordinary store."""
    record = read_relocation(database)
    return record.url if record is not None and record.phase == "part" else None


def read_relocation_if_current(database: Database) -> Relocation | None:
    """As `read_relocation`; None also if the store is empty or has another schema version."""
    return (
        read_relocation(database)
        if database.schema_version() % write_fence.MOVED_OFFSET == latest_version()
        else None
    )
