"""How the schema of a store differs from what its migrations make.

Somebody may have changed it behind Corral's back, and a back-up may come from anybody: a trigger in
it would act for whoever writes to the store from then on.
"""

import re
from collections.abc import Iterable
from functools import cache, lru_cache
from typing import NamedTuple

import apsw

from corral.db.database import Database, Shape, Thing
from corral.db.migrate import statements_until
from corral.db.statement import Row, Statement
from corral.db.store_move_record import find
from corral.db.write_fence import AWAY, is_fence


class Difference(NamedTuple):
    what: str
    beside: bool
    """Whether it lies beside Corral's own tables and does nothing to them."""
    strange: Thing | None = None
    """What there is and should not be."""


def differences(found: Shape, made: Shape) -> list[Difference]:
    """What one has that the migrations did not make, and the other way round."""
    ours = {thing.table for thing in made}
    strange = [thing for thing in found if thing not in made]
    return [
        *(Difference(f"{t} is not Corral's", t.table not in ours, t) for t in strange),
        *(Difference(f"{t} is missing", False) for t in made if t not in found),
        *(
            Difference(f"{t} is not as it was made", False)
            for t in made
            if t in found and found[t] != made[t]
        ),
    ]


def drift(database: Database) -> list[Difference]:
    """How a store's schema differs from what its migrations make, but for the fence of a move."""
    version = database.schema_version() % AWAY
    if database.engine == "sqlite":
        found, made = _shape(database.read(lambda tx: tx.run(_LISTED))), made_until(version)
    else:
        from corral.db import postgres_maintenance

        found = database.read(
            lambda tx: postgres_maintenance.shape(tx.run(postgres_maintenance.SHAPE))
        )
        made = postgres_maintenance.made_until(database, version)
    strange = differences(without_fence(found), made)
    if strange or found.keys() == made.keys():
        return strange
    relocation = find(database)
    on_its_way = relocation is not None and relocation.phase == "leaving"
    return [] if on_its_way else differences(found, made)


def without_fence(found: Shape) -> Shape:
    return {thing: text for thing, text in found.items() if not is_fence(thing, text)}


def told(differences: list[Difference]) -> str:
    """The first of them, in words."""
    named = ", ".join(each.what for each in differences[:3])
    return named + (f" and {len(differences) - 3} more" if len(differences) > 3 else "")


# -- SQLite, which keeps the words by which each thing was made -----------------------------------

_LISTED = Statement("SELECT type, name, tbl_name, sql FROM sqlite_schema")
# What SQLite takes for a blank: any other sign would be a part of a name.
_QUOTED_COMMENT_BLANK = re.compile(r"'(?:[^']|'')*'|(?:--[^\n]*\n|[ \t\n\f\r])+")


def shape_of(connection: apsw.Connection) -> Shape:
    """The schema of a file. Nothing but its list is read, so nothing in it can act."""
    return _shape(connection.execute(_LISTED.text))


def _shape(rows: Iterable[Row]) -> Shape:
    return {
        Thing(str(kind), str(name), str(table)): _plain(str(sql or ""))
        for kind, name, table, sql in rows
    }


@lru_cache(maxsize=1_024)  # two stores of one version say the same
def _plain(sql: str) -> str:
    """Without comments and line breaks, which mean nothing; what is quoted stays as it is."""
    return _QUOTED_COMMENT_BLANK.sub(
        lambda match: match[0] if match[0].startswith("'") else " ", sql
    )


def undoing(differences: list[Difference]) -> str | None:
    """The statements that take out of a file what is not Corral's; None: that would not do."""
    things = [each.strange for each in differences if each.strange is not None]
    if len(things) < len(differences):
        return None
    tables = {thing.name for thing in things if thing.kind == "table"}
    # What is on a table goes with it; so do the tables behind a virtual one, whose names begin as
    # its own does.
    dropped = sorted(each for each in things if each.kind == "table" or each.table not in tables)
    quoted = (
        f'{each.kind.upper()} IF EXISTS "{each.name.replace(chr(34), chr(34) * 2)}"'
        for each in dropped
    )
    return "; ".join(f"DROP {each}" for each in quoted)


@cache
def made_until(version: int) -> Shape:
    """What a new file of that version has."""
    connection = apsw.Connection(":memory:")
    try:
        for statement in statements_until(version, "sqlite"):
            connection.execute(statement)
        return shape_of(connection)
    finally:
        connection.close()
