"""The row in which a store says where its content goes, went or comes from, and its statements."""

import msgspec

from corral.db import fencing
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
# The row of a cancelled move keeps a target shut, and no mover has its id.
VOID = Statement("""
    UPDATE relocation SET move = '' WHERE phase = 'arriving' AND move = :move RETURNING url
""")
# That content once arrived here, or stayed, is remembered: see `Arrival.clear`.
STAYED = Statement("UPDATE relocation SET phase = 'arrived' WHERE phase = 'leaving'")
FORGET = Statement("DELETE FROM relocation WHERE phase = 'part'")
PROMISED = Statement("SELECT durability FROM store")
DURABILITY = Statement("UPDATE store SET durability = :promised")


def find(database: Database) -> Relocation | None:
    """Where a store's content is going, went or comes from; None when it is just here."""
    return database.read(lambda tx: tx.one(FIND), mode="one")


def seek(database: Database) -> Relocation | None:
    """The same in a place that may hold no store yet, or an older one."""
    return find(database) if database.schema_version() % fencing.AWAY == newest() else None
