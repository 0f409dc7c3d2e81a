"""The write guard: triggers on all tables that reject every write while a store is moved.

The engine itself rejects the writes, so the guard also stops processes that opened the store long
ago, and it survives the process that installed it. Once it is installed, no write is in progress:
SQLite has one writer at a time, and PostgreSQL waits for transactions that have begun.
"""

import re
from typing import TYPE_CHECKING

from corral.db.dialect import Engine
from corral.db.statement import Statement
from corral.db.tx import Tx
from corral.kernel.errors import StoreUnavailable

if TYPE_CHECKING:
    from corral.db.schema import TableDoc
    from corral.db.types import SchemaObject

# Tables that describe the store itself; all others are its content.
INTERNAL_TABLES = ("migrations", "store_options", "store_moves")

MOVED_OFFSET = 1_000_000
"""Added to the schema version of a store that must not be opened: its content was moved away or
has not arrived yet. Every program, including older ones, refuses such a version."""

_LEAVING = "corral: moving to "
_ARRIVING = "corral: arriving from "
_VERBS = ("INSERT", "UPDATE", "DELETE")


def list_content_tables() -> "list[TableDoc]":
    """List the tables that hold the content of a store."""
    from corral.db.schema import tables

    return [table for table in tables() if table.name not in INTERNAL_TABLES]


def write_guard_error(message: str, where: str) -> StoreUnavailable | None:
    """Return the error to raise if a write guard rejected the write; None for any other error."""
    for mark, reason in ((_LEAVING, "moved"), (_ARRIVING, "arriving")):
        _, matched, rest = message.partition(mark)
        if not matched:
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
    """Wait for transactions that write, and block new ones until this transaction ends.

    SQLite has one writer at a time, so nothing is needed there.
    """
    if tx.engine == "postgres":
        names = ", ".join(table.name for table in list_content_tables())
        tx.run(Statement(f"LOCK TABLE {names} IN SHARE ROW EXCLUSIVE MODE"))


def build_departure_statements(engine: Engine, url: str) -> list[str]:
    """Return the statements that make the engine reject every write to the content."""
    return _build_statements(engine, _LEAVING + url, allowed_when=None)


def build_arrival_statements(engine: Engine, url: str) -> list[str]:
    """Return the statements that make the engine reject every write until the move has arrived.

    The phase in `store_moves` decides. The mover sets it to `arrived` inside each of its own
    transactions and back before the commit, so only the mover can write. Writes by handles that
    were opened before the move are rejected.
    """
    return _build_statements(
        engine, _ARRIVING + url, allowed_when="(SELECT phase FROM store_moves) = 'arrived'"
    )


def _build_statements(engine: Engine, message: str, *, allowed_when: str | None) -> list[str]:
    quoted = message.replace("'", "''")
    names = [table.name for table in list_content_tables()]
    if engine == "sqlite":
        where = f" WHERE NOT {allowed_when}" if allowed_when else ""
        return [
            f"CREATE TRIGGER write_guard_{name}_{verb.lower()} BEFORE {verb} ON {name}"
            f" BEGIN SELECT RAISE(ABORT, '{quoted}'){where}; END"
            for name in names
            for verb in _VERBS
        ]
    reject = f"RAISE EXCEPTION USING MESSAGE = '{quoted}';"
    if allowed_when:
        reject = f"IF NOT {allowed_when} THEN {reject} END IF; RETURN NULL;"
    return [
        "CREATE OR REPLACE FUNCTION write_guard() RETURNS trigger LANGUAGE plpgsql AS $$"
        f" BEGIN {reject} END $$",
        *(
            f"CREATE TRIGGER write_guard BEFORE {' OR '.join(_VERBS)} ON {name}"
            " FOR EACH STATEMENT EXECUTE FUNCTION write_guard()"
            for name in names
        ),
    ]


def install(tx: Tx, statements: list[str]) -> None:
    """Install a write guard when this transaction commits, replacing an existing one."""
    remove(tx)
    for statement in statements:
        tx.run(Statement(statement))


_GUARD_TRIGGERS = re.compile(
    r"CREATE TRIGGER write_guard_(?P<table>\w+)_(?:insert|update|delete)"
    r" BEFORE (?:INSERT|UPDATE|DELETE) ON (?P=table) BEGIN SELECT RAISE\(ABORT, '"
    rf"(?:{_LEAVING}(?:[^']|'')*'\)"
    rf"|{_ARRIVING}(?:[^']|'')*'\) WHERE NOT \(SELECT phase FROM store_moves\) = 'arrived'); END"
    r"|CREATE TRIGGER write_guard BEFORE INSERT OR DELETE OR UPDATE ON \w+ FOR EACH STATEMENT"
    r" EXECUTE FUNCTION write_guard\(\)"
)


def is_write_guard(schema_object: "SchemaObject", definition: str) -> bool:
    """Whether a schema object is a trigger that `install` creates and `remove` drops."""
    match = _GUARD_TRIGGERS.fullmatch(definition) if schema_object.kind == "trigger" else None
    if match is None or not definition.startswith(f"CREATE TRIGGER {schema_object.name} "):
        return False
    return (match["table"] or schema_object.table) in {
        table.name for table in list_content_tables()
    }


def remove(tx: Tx) -> None:
    """Remove the write guard, so that writes are accepted again."""
    for table in list_content_tables():
        if tx.engine == "sqlite":
            for verb in _VERBS:
                tx.run(Statement(f"DROP TRIGGER IF EXISTS write_guard_{table.name}_{verb.lower()}"))
        else:
            tx.run(Statement(f"DROP TRIGGER IF EXISTS write_guard ON {table.name}"))


def close_statements(engine: Engine, version: int, now: int) -> list[str]:
    """Return the statements that close the store.

    All programs, including older ones, can then open it only to read where its content is.
    """
    if engine == "sqlite":
        return [f"PRAGMA user_version = {MOVED_OFFSET + version}"]
    return [
        "INSERT INTO migrations (number, name, checksum, applied_at)"
        f" VALUES ({MOVED_OFFSET + version}, 'away', '', {now})"
        " ON CONFLICT (number) DO NOTHING"
    ]


def close_store(tx: Tx, version: int) -> None:
    """Close the store; see `close_statements`."""
    for statement in close_statements(tx.engine, version, tx.now):
        tx.run(Statement(statement))


def reopen_store(tx: Tx, version: int) -> None:
    """Undo `close_store`."""
    if tx.engine == "sqlite":
        tx.run(Statement(f"PRAGMA user_version = {version}"))
    else:
        tx.run(Statement(f"DELETE FROM migrations WHERE number > {MOVED_OFFSET}"))
