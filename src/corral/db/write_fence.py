"""Keeping everybody from writing to a store, whoever has it open: by triggers on all its tables.

The engine itself refuses, so it holds for processes that opened the store long ago, and after the
death of whoever put up the fence. When it is up, nothing is on its way any more: on SQLite writers
are alone, and PostgreSQL waits for those that have begun.
"""

import re
from typing import TYPE_CHECKING

from corral.db.dialect import Engine
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

_LEAVING = "corral: moving to "
_ARRIVING = "corral: arriving from "
_VERBS = ("INSERT", "UPDATE", "DELETE")


def content() -> "list[TableDoc]":
    """The tables that hold what people and agents put into a store."""
    from corral.db.schema import tables

    return [table for table in tables() if table.name not in OWN]


def refusal(said: str, where: str) -> StoreUnavailable | None:
    """Return the error to raise if a fence rejected the write; None for any other error."""
    for mark, reason in ((_LEAVING, "moved"), (_ARRIVING, "arriving")):
        _, found, rest = said.partition(mark)
        if not found:
            continue
        url = rest.splitlines()[0].strip()
        if reason == "moved":
            return StoreUnavailable(
                f"{where} is being moved to {url} and accepts no writes. Wait until `corral db "
                "move` is done, then open the store again. Nothing was changed.",
                reason=reason,
                to=url,
            )
        return StoreUnavailable(
            f"{where} is being filled from {url} and accepts no writes. Wait until `corral db "
            "move` is done. Nothing was changed.",
            reason=reason,
        )
    return None


def lock_content(tx: Tx) -> None:
    """Wait for writing transactions, and block new ones until this one ends.

    SQLite has one writer at a time, so there is nothing to wait for.
    """
    if tx.engine == "postgres":
        names = ", ".join(table.name for table in content())
        tx.run(Statement(f"LOCK TABLE {names} IN SHARE ROW EXCLUSIVE MODE"))


def departure_statements(engine: Engine, url: str) -> list[str]:
    """Return the statements that make the engine reject every write to the content."""
    return _statements(engine, _LEAVING + url, unless=None)


def arrival_statements(engine: Engine, url: str) -> list[str]:
    """Return the statements that make the engine reject every write until the move has arrived.

    The phase in `relocation` decides. The mover sets it to `arrived` inside each of its own
    transactions and back before the commit, so only the mover can write. Writes by handles that
    were opened before the move are rejected.
    """
    return _statements(engine, _ARRIVING + url, unless="(SELECT phase FROM relocation) = 'arrived'")


def _statements(engine: Engine, message: str, *, unless: str | None) -> list[str]:
    quoted = message.replace("'", "''")
    names = [table.name for table in content()]
    if engine == "sqlite":
        where = f" WHERE NOT {unless}" if unless else ""
        return [
            f"CREATE TRIGGER fence_{name}_{verb.lower()} BEFORE {verb} ON {name}"
            f" BEGIN SELECT RAISE(ABORT, '{quoted}'){where}; END"
            for name in names
            for verb in _VERBS
        ]
    refuse = f"RAISE EXCEPTION USING MESSAGE = '{quoted}';"
    if unless:
        refuse = f"IF NOT {unless} THEN {refuse} END IF; RETURN NULL;"
    return [
        "CREATE OR REPLACE FUNCTION fence() RETURNS trigger LANGUAGE plpgsql AS $$"
        f" BEGIN {refuse} END $$",
        *(
            f"CREATE TRIGGER fence BEFORE {' OR '.join(_VERBS)} ON {name}"
            " FOR EACH STATEMENT EXECUTE FUNCTION fence()"
            for name in names
        ),
    ]


def put_up(tx: Tx, statements: list[str]) -> None:
    """Install a fence when this transaction commits, replacing an existing one."""
    take_down(tx)
    for statement in statements:
        tx.run(Statement(statement))


_FENCES = re.compile(
    r"CREATE TRIGGER fence_(?P<table>\w+)_(?:insert|update|delete) BEFORE (?:INSERT|UPDATE|DELETE)"
    r" ON (?P=table) BEGIN SELECT RAISE\(ABORT, '"
    rf"(?:{_LEAVING}(?:[^']|'')*'\)"
    rf"|{_ARRIVING}(?:[^']|'')*'\) WHERE NOT \(SELECT phase FROM relocation\) = 'arrived'); END"
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


def shut_statements(engine: Engine, version: int, now: int) -> list[str]:
    """Return the statements that prevent every program, also older versions, from opening the store
    except to learn where its content is."""
    if engine == "sqlite":
        return [f"PRAGMA user_version = {AWAY + version}"]
    return [
        "INSERT INTO migrations (number, name, checksum, applied_at)"
        f" VALUES ({AWAY + version}, 'away', '', {now})"
        " ON CONFLICT (number) DO NOTHING"
    ]


def shut(tx: Tx, version: int) -> None:
    """Prevent every program from opening the store; see `shut_statements`."""
    for statement in shut_statements(tx.engine, version, tx.now):
        tx.run(Statement(statement))


def unshut(tx: Tx, version: int) -> None:
    """Let it be opened again."""
    if tx.engine == "sqlite":
        tx.run(Statement(f"PRAGMA user_version = {version}"))
    else:
        tx.run(Statement(f"DELETE FROM migrations WHERE number > {AWAY}"))
