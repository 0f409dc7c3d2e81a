"""The row that records where a store's content goes, went or comes from, and its statements."""

import msgspec

from corral.db import write_fence
from corral.db.database import Database
from corral.db.migrate import newest
from corral.db.statement import Query, Statement


class Relocation(msgspec.Struct, frozen=True):
    phase: str
    url: str
    move: str
    copied: dict[str, int]


FIND = Query(Relocation, "SELECT phase, url, move, copied FROM relocation")
ENTER = Statement("""
    INSERT INTO relocation (one, phase, url, move, copied, at)
    VALUES (1, :phase, :url, :move, '{}', :now)
    ON CONFLICT (one) DO UPDATE SET phase = excluded.phase, url = excluded.url,
        move = excluded.move, copied = excluded.copied, at = excluded.at
""")
LOCKED = Query(Relocation, "SELECT phase, url, move, copied FROM relocation {locked}")
# Opens the target's fence for the transaction that runs it, see `fencing.arrival_statements`.
OPEN_FENCE = Query(
    Relocation,
    """
    UPDATE relocation SET phase = 'arrived' WHERE phase = 'arriving' AND move = :move
    RETURNING phase, url, move, copied
    """,
)
COPIED = Statement("UPDATE relocation SET phase = 'arriving', copied = :copied")
GONE = Statement("""
    UPDATE relocation SET phase = 'gone' WHERE phase = 'leaving' AND move = :move RETURNING move
""")
# The row of a cancelled move keeps the target shut; its empty id matches no mover.
VOID = Statement("""
    UPDATE relocation SET move = '' WHERE phase = 'arriving' AND move = :move RETURNING url
""")
# Remembers that content once arrived or stayed here: see `MoveTarget._clear`.
STAYED = Statement("UPDATE relocation SET phase = 'arrived' WHERE phase = 'leaving'")
FORGET = Statement("DELETE FROM relocation WHERE phase = 'part'")
PROMISED = Statement("SELECT durability FROM store")
DURABILITY = Statement("UPDATE store SET durability = :promised")


def find(database: Database) -> Relocation | None:
    """Return the record of a move; None if the store was never moved."""
    return database.read(lambda tx: tx.one(FIND), mode="one")


def seek(database: Database) -> Relocation | None:
    """Return the record of a move; None also without a store or with an older schema."""
    return find(database) if database.schema_version() % write_fence.AWAY == newest() else None
