"""Keeping everybody from writing to a store, whoever has it open: by triggers on all its tables.

The engine itself refuses, so it holds for processes that opened the store long ago, and after the
death of whoever put up the fence. When it is up, nothing is on its way any more: on SQLite writers
are alone, and PostgreSQL waits for those that have begun.
"""

import re
from typing import TYPE_CHECKING

from corral.db.statement import Statement
from corral.db.tx import Tx
from corral.kernel.errors import StoreUnavailable

if TYPE_CHECKING:
    from corral.db.database import Thing
    from corral.db.schema import TableDoc

# What every store has of its own; the rest is its content.
OWN = ("migrations", "store", "relocation")

AWAY = 1_000_000
"""The version of a store that nobody may open: its content is elsewhere, or not here yet."""

_MARK = "corral: moving to "
_VERBS = ("INSERT", "UPDATE", "DELETE")


def content() -> "list[TableDoc]":
    """The tables that hold what people and agents put into a store."""
    from corral.db.schema import tables

    return [table for table in tables() if table.name not in OWN]


def refusal(said: str, where: str) -> StoreUnavailable | None:
    """The sentence for an engine's error, if it was the fence that refused."""
    _, mark, to = said.partition(_MARK)
    if not mark:
        return None
    url = to.splitlines()[0].strip()
    return StoreUnavailable(
        f"{where} is on its way to {url} and takes nothing any more; wait until `corral db move` "
        "is done, then open it again. Nothing was changed.",
        reason="moved",
        to=url,
    )


def put_up(tx: Tx, url: str) -> None:
    """Let nobody write any more, from the end of this transaction on."""
    said = (_MARK + url).replace("'", "''")
    names = [table.name for table in content()]
    if tx.engine == "sqlite":
        for name in names:
            for verb in _VERBS:
                tx.run(
                    Statement(
                        f"CREATE TRIGGER fence_{name}_{verb.lower()} BEFORE {verb} ON {name}"
                        f" BEGIN SELECT RAISE(ABORT, '{said}'); END"
                    )
                )
        return
    tx.run(Statement(f"LOCK TABLE {', '.join(names)} IN SHARE ROW EXCLUSIVE MODE"))
    tx.run(
        Statement(f"""
            CREATE OR REPLACE FUNCTION fence() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN RAISE EXCEPTION USING MESSAGE = '{said}'; END $$
        """)
    )
    for name in names:
        tx.run(
            Statement(
                f"CREATE TRIGGER fence BEFORE {' OR '.join(_VERBS)} ON {name}"
                " FOR EACH STATEMENT EXECUTE FUNCTION fence()"
            )
        )


_FENCES = re.compile(
    r"CREATE TRIGGER fence_(?P<table>\w+)_(?:insert|update|delete) BEFORE (?:INSERT|UPDATE|DELETE)"
    rf" ON (?P=table) BEGIN SELECT RAISE\(ABORT, '{_MARK}(?:[^']|'')*'\); END"
    r"|CREATE TRIGGER fence BEFORE INSERT OR DELETE OR UPDATE ON \w+ FOR EACH STATEMENT"
    r" EXECUTE FUNCTION fence\(\)"
)


def is_fence(thing: "Thing", text: str) -> bool:
    """Whether a part of a schema is a trigger that `put_up` makes and `take_down` drops."""
    found = _FENCES.fullmatch(text) if thing.kind == "trigger" else None
    if found is None or not text.startswith(f"CREATE TRIGGER {thing.name} "):
        return False
    return (found["table"] or thing.table) in {table.name for table in content()}


def take_down(tx: Tx) -> None:
    """Let everybody write again."""
    for table in content():
        if tx.engine == "sqlite":
            for verb in _VERBS:
                tx.run(Statement(f"DROP TRIGGER IF EXISTS fence_{table.name}_{verb.lower()}"))
        else:
            tx.run(Statement(f"DROP TRIGGER IF EXISTS fence ON {table.name}"))


def shut(tx: Tx, version: int) -> None:
    """Let nobody open it from now on, old programs included, but to learn where it went."""
    if tx.engine == "sqlite":
        tx.run(Statement(f"PRAGMA user_version = {AWAY + version}"))
    else:
        record = "INSERT INTO migrations (number, name, checksum, applied_at)"
        tx.run(Statement(f"{record} VALUES ({AWAY + version}, 'away', '', :now)"), now=tx.now)


def unshut(tx: Tx, version: int) -> None:
    """Let it be opened again."""
    if tx.engine == "sqlite":
        tx.run(Statement(f"PRAGMA user_version = {version}"))
    else:
        tx.run(Statement(f"DELETE FROM migrations WHERE number > {AWAY}"))
