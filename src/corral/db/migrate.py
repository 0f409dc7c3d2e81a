"""Migrations: numbered SQL, one series for both engines, forward only.

A store knows which numbers it has seen and the checksum of each. An empty store is filled by
whoever opens it first. A SQLite file is copied before it is changed. On PostgreSQL, where other
machines may still run an older Corral, an upgrade is asked for with `corral db migrate`.
"""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from corral.db.database import Database
from corral.db.dialect import Engine
from corral.db.filesystem import make_new_private_file
from corral.db.sqlite import SqliteDatabase
from corral.db.statement import Statement, for_engine
from corral.db.write_fence import AWAY
from corral.kernel.errors import StoreUnavailable

FOLDER = Path(__file__).parent.parent / "migrations"

_APPLIED = Statement("SELECT number, checksum FROM migrations ORDER BY number")


class Migration(NamedTuple):
    number: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        from hashlib import sha256

        return sha256(self.text.encode()).hexdigest()


@cache
def migrations() -> tuple[Migration, ...]:
    """All migrations that this program knows, in order."""
    found = [
        Migration(int(path.name[:4]), path.stem[5:], path.read_text(encoding="utf-8"))
        for path in sorted(FOLDER.glob("[0-9][0-9][0-9][0-9]_*.sql"))
    ]
    assert [migration.number for migration in found] == list(range(1, len(found) + 1))
    return tuple(found)


@cache
def newest() -> int:
    # The names alone: every start of a command asks this, and only a migration reads the texts.
    return len(list(FOLDER.glob("[0-9][0-9][0-9][0-9]_*.sql")))


def open_schema(database: Database, *, change: bool = True) -> None:
    """See that the store has the schema of this program, or say in a sentence why it has not.

    Without `change`, nothing is made and nothing is upgraded.
    """
    found = database.schema_version()
    if found == newest():
        return
    if found == 0 and not change:
        raise StoreUnavailable(
            f"There is no store at {database.url} yet; it is made when it is first used.",
            reason="missing",
        )
    if found > AWAY:
        from corral.db.store_move import sign

        raise sign(database)
    if found > newest():
        raise StoreUnavailable(
            f"The store {database.url} was written by a newer Corral (its schema is {found}, this "
            f"program knows {newest()}); upgrade Corral. Nothing was changed.",
            reason="newer",
            found=found,
            known=newest(),
        )
    if found and (database.engine == "postgres" or not change):
        raise StoreUnavailable(
            f"The store {database.url} has an older schema ({found} of {newest()}); stop older "
            "programs that use it, then run `corral db migrate`.",
            reason="older",
            found=found,
            known=newest(),
        )
    migrate(database)
    if database.schema_version() != newest():
        # Another process created the store first as the target of a move: do not open it.
        open_schema(database, change=False)


def create_schema(database: Database, number: int, then: Sequence[str]) -> bool:
    """Create the schema in an empty place and run `then`, in one transaction.

    `number` is the version that the store has from then on. Returns False, without any change, if
    the place is not empty.
    """
    with database.migrating():
        if database.schema_version() != 0:
            return False
        database.run_migration(number, [*_whole(database), *then])
    return True


def migrate(database: Database) -> list[int]:
    """Apply what is missing; gives back the numbers applied. Whoever comes second finds it done."""
    applied: list[int] = []
    with database.migrating():
        found = database.schema_version()
        if found and isinstance(database, SqliteDatabase):
            _keep_copy(database, found)
        missing = migrations()[found:]
        if missing and not found:
            database.run_migration(newest(), _whole(database))
            return [migration.number for migration in missing]
        for migration in missing:
            database.run_migration(migration.number, _recorded(migration, database))
            applied.append(migration.number)
        if found:
            database.adopt_events()
    return applied


def altered(database: Database) -> list[int]:
    """The migrations whose text in the store's record differs from this program's."""
    known = {migration.number: migration.checksum for migration in migrations()}
    applied = database.read(lambda tx: tx.run(_APPLIED))
    return [number for number, checksum in applied if known.get(number) != checksum]


def _keep_copy(database: SqliteDatabase, version: int) -> None:
    if version < newest():
        copy = database.path.with_name(f"{database.path.name}.before-{version + 1:04d}")
        copy.unlink(missing_ok=True)
        make_new_private_file(copy)
        database.backup(copy)


def split_statements(text: str) -> list[str]:
    return re.split(r";[ \t]*\n", text)


def statements_until(version: int, engine: Engine) -> list[str]:
    """What makes the schema of that version, from nothing."""
    return [part for each in migrations()[:version] for part in _statements(each, engine)]


def _statements(migration: Migration, engine: Engine) -> list[str]:
    own = [for_engine(part, engine) for part in split_statements(migration.text)]
    return [part for part in own if part.strip()]


def _whole(database: Database) -> list[str]:
    """Return all statements for an empty store, to run in one transaction: a partial schema would
    look like an older version."""
    return [part for migration in migrations() for part in _recorded(migration, database)]


def _recorded(migration: Migration, database: Database) -> list[str]:
    record = (
        "INSERT INTO migrations (number, name, checksum, applied_at) VALUES "
        f"({migration.number}, '{migration.name}', '{migration.checksum}', {database.clock.now()})"
    )
    return [*_statements(migration, database.engine), record]
