"""Migrations: numbered SQL files, one series for both engines, forward only.

A store records the number and checksum of each migration. An empty store is created by the first
process that opens it. A SQLite file is copied before it is migrated. On PostgreSQL, where other
machines may still run an older Corral, `corral db migrate` must be run explicitly.
"""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from corral.db.database import Database
from corral.db.dialect import Engine
from corral.db.filesystem import create_private_file
from corral.db.sqlite import SqliteDatabase
from corral.db.statement import Statement, translate_for_engine
from corral.db.write_guard import MOVED_OFFSET
from corral.kernel.errors import StoreUnavailable

DIRECTORY = Path(__file__).parent.parent / "migrations"

_APPLIED = Statement("SELECT number, checksum FROM migrations ORDER BY number")


class Migration(NamedTuple):
    """One SQL file of the series."""

    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        from hashlib import sha256

        return sha256(self.text.encode()).hexdigest()


@cache
def load_migrations() -> tuple[Migration, ...]:
    """Read all migrations of this program, in order."""
    series = [
        Migration(int(path.name[:4]), path.stem[5:], path.read_text(encoding="utf-8"))
        for path in sorted(DIRECTORY.glob("[0-9][0-9][0-9][0-9]_*.sql"))
    ]
    assert [migration.number for migration in series] == list(range(1, len(series) + 1))
    return tuple(series)


@cache
def latest_version() -> int:
    """Return the schema version of this program."""
    # Counts the file names only: every command calls this, and only a migration needs the texts.
    return len(list(DIRECTORY.glob("[0-9][0-9][0-9][0-9]_*.sql")))


def ensure_schema(database: Database, *, change: bool = True) -> None:
    """Create or migrate the schema if needed; raises StoreUnavailable if that is not possible.

    Without `change`, the store is only checked.
    """
    version = database.schema_version()
    if version == latest_version():
        return
    if version == 0 and not change:
        raise StoreUnavailable(
            f"No store at {database.url}. Check the URL; a store is created on first use.",
            reason="missing",
        )
    if version > MOVED_OFFSET:
        from corral.db.store_move import moved_error

        raise moved_error(database)
    if version > latest_version():
        raise StoreUnavailable(
            f"The store {database.url} was written by a newer version of Corral (its schema is "
            f"{version}, this program supports {latest_version()}). Upgrade Corral. Nothing was "
            "changed.",
            reason="newer",
            version=version,
            supported=latest_version(),
        )
    if version and (database.engine == "postgres" or not change):
        raise StoreUnavailable(
            f"The store {database.url} has an older schema ({version} of {latest_version()}). Stop "
            "older programs that use it, then run `corral db migrate`.",
            reason="older",
            version=version,
            supported=latest_version(),
        )
    migrate(database)
    if database.schema_version() != latest_version():
        # Another process created the store first as the target of a move: do not open it.
        ensure_schema(database, change=False)


def create_schema(database: Database, number: int, then: Sequence[str]) -> bool:
    """Create the schema in an empty place and run `then`, in one transaction.

    `number` becomes the store's version. Returns False, without any change, if the place is not
    empty.
    """
    with database.migration_lock():
        if database.schema_version() != 0:
            return False
        database.run_migration(number, [*_list_all_statements(database), *then])
    return True


def migrate(database: Database) -> list[int]:
    """Apply the missing migrations and return their numbers.

    Safe to call concurrently: a second process waits for the lock and finds them applied.
    """
    applied: list[int] = []
    with database.migration_lock():
        version = database.schema_version()
        if version and isinstance(database, SqliteDatabase):
            _back_up_before_migration(database, version)
        missing = load_migrations()[version:]
        if missing and not version:
            database.run_migration(latest_version(), _list_all_statements(database))
            return [migration.number for migration in missing]
        for migration in missing:
            database.run_migration(migration.number, _add_record(migration, database))
            applied.append(migration.number)
        if version:
            database.adopt_events()
    return applied


def list_altered(database: Database) -> list[int]:
    """List the applied migrations whose checksum differs from this program's file."""
    checksums = {migration.number: migration.checksum for migration in load_migrations()}
    applied = database.read(lambda tx: tx.run(_APPLIED))
    return [number for number, checksum in applied if checksums.get(number) != checksum]


def _back_up_before_migration(database: SqliteDatabase, version: int) -> None:
    if version < latest_version():
        copy = database.path.with_name(f"{database.path.name}.before-{version + 1:04d}")
        copy.unlink(missing_ok=True)
        create_private_file(copy)
        database.backup(copy)


def split_statements(text: str) -> list[str]:
    """Split the text of a migration at semicolons at the end of a line."""
    return re.split(r";[ \t]*\n", text)


def build_schema_statements(version: int, engine: Engine) -> list[str]:
    """Return the statements that create the schema of a version from nothing."""
    return [
        statement
        for migration in load_migrations()[:version]
        for statement in _translate_statements(migration, engine)
    ]


def _translate_statements(migration: Migration, engine: Engine) -> list[str]:
    statements = [translate_for_engine(part, engine) for part in split_statements(migration.text)]
    return [part for part in statements if part.strip()]


def _list_all_statements(database: Database) -> list[str]:
    """Return all statements for an empty store.

    They run in one transaction: a partial schema would look like an older version.
    """
    return [part for migration in load_migrations() for part in _add_record(migration, database)]


def _add_record(migration: Migration, database: Database) -> list[str]:
    record = (
        "INSERT INTO migrations (number, name, checksum, applied_at) VALUES "
        f"({migration.number}, '{migration.name}', '{migration.checksum}', {database.clock.now()})"
    )
    return [*_translate_statements(migration, database.engine), record]
