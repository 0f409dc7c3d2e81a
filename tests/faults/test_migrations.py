"""A store of an older version: migrated or left unchanged.

The last migration is invented for the test and stands for all future ones.
"""

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import corral
from corral.api import Corral
from corral.db import migrations, schema
from corral.db.statement import Statement
from corral.kernel.errors import StoreUnavailable
from tests.crash.harness import Probe
from tests.support.errors import because
from tests.support.invariants import check_store
from tests.support.processes import Child, Signal, run_concurrently
from tests.support.store_urls import wait_until_alone

GOOD = """
-- A table of a later version.
CREATE TABLE extra (
    id {key} PRIMARY KEY,
    size {integer} NOT NULL
) {strict};

INSERT INTO extra (id, size) VALUES ('one', 1);
"""

BAD = GOOD + "\nINSERT INTO extra (id, size) VALUES ('one', 2);\n"

FIRST_LETTER = (
    """INSERT INTO letters (mailbox, body, rank, state, due_at, queue_at, created_at)
       VALUES ('agent:ada', '"hello"', 0, 'waiting', 1, 1, 1)""",
    """INSERT INTO events (at, actor, kind, verb, subject)
       VALUES (1, 'user:tester', 'letter', 'put', 'let_1')""",
)

InstallMigration = Callable[[str], None]
MIGRATIONS = Path(migrations.__file__).parent.parent / "migrations"
CURRENT_VERSION = migrations.latest_version()


@pytest.fixture
def install_migration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[InstallMigration]:
    """Return a function that adds one more migration to the program."""
    folder = tmp_path / "migrations"

    def install(text: str) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for migration in MIGRATIONS.glob("*.sql"):
            shutil.copy(migration, folder)
        (folder / f"{CURRENT_VERSION + 1:04d}_extra.sql").write_text(text)
        monkeypatch.setattr(migrations, "DIRECTORY", folder)
        _clear_caches()

    yield install
    monkeypatch.undo()
    _clear_caches()


def _clear_caches() -> None:
    migrations.load_migrations.cache_clear()
    migrations.latest_version.cache_clear()
    schema.tables.cache_clear()
    schema._build_nonempty_statement.cache_clear()


@pytest.fixture
def old_url(empty_url: str) -> str:
    """A store of the current version with content."""
    with corral.open(empty_url) as store:
        store.mail.put("agent:ada", "hello")
    return empty_url


def upgrade(url: str, probe: Probe | None = None) -> None:
    """Migrate: SQLite when the store is opened, PostgreSQL on request."""
    if url.startswith("sqlite"):
        corral.open(url, probe=probe).close()
        return
    with corral.open(url, check_schema=False, probe=probe) as store:
        store.db.migrate()


def is_upgraded(store: Corral) -> bool:
    rows = store.db.sql("SELECT number FROM migrations ORDER BY number").rows
    assert rows == [[number] for number in range(1, store.db.schema_version() + 1)]
    return store.db.schema_version() == CURRENT_VERSION + 1


def check_content(store: Corral) -> None:
    assert [letter.body for letter in store.mail.list().items] == ["hello"]
    store.mail.put("agent:ada", "second")
    if is_upgraded(store):  # an older store lacks tables that the check reads
        check_store(store, schema=True)


def backup_path(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///") + f".before-{CURRENT_VERSION + 1:04d}")


def test_older_store_is_migrated(old_url: str, install_migration: InstallMigration) -> None:
    install_migration(GOOD)
    upgrade(old_url)
    with corral.open(old_url) as store:
        assert is_upgraded(store)
        assert store.db.sql("SELECT id, size FROM extra").rows == [["one", 1]]
        check_content(store)


def test_sqlite_keeps_a_private_backup_before_migrating(
    old_url: str, install_migration: InstallMigration, engine: str
) -> None:
    install_migration(GOOD)
    upgrade(old_url)
    if engine == "postgres":
        assert not backup_path(old_url).exists()  # on PostgreSQL, the server's own backups are used
        return
    assert oct(backup_path(old_url).stat().st_mode & 0o777) == "0o600"
    with corral.open(f"sqlite:///{backup_path(old_url)}", check_schema=False) as store:
        assert store.db.schema_version() == CURRENT_VERSION
        assert [row[0] for row in store.db.sql("SELECT body FROM letters").rows] == ['"hello"']


def test_run_does_not_migrate_a_store_with_unreadable_runs(
    old_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with corral.open(old_url) as store, store._database.migration_lock():
        store._database.run_migration(CURRENT_VERSION, ["ALTER TABLE runs RENAME TO old_runs"])
    monkeypatch.setenv("CORRAL_RUN", "run_1")
    with corral.open(old_url, check_schema=False) as store, pytest.raises(corral.errors.Refused):
        store.db.migrate()
    monkeypatch.delenv("CORRAL_RUN")
    with corral.open(old_url, check_schema=False) as store:
        assert store.db.migrate() == []


def test_failed_migration_leaves_the_old_store_unchanged(
    old_url: str, install_migration: InstallMigration
) -> None:
    install_migration(BAD)
    with pytest.raises(corral.errors.CorralError):
        upgrade(old_url)
    with corral.open(old_url, check_schema=False) as store:
        assert not is_upgraded(store)
        with pytest.raises(corral.errors.CorralError, check=because("bad_query")):
            store.db.sql("SELECT * FROM extra")
        check_content(store)


def test_failed_migration_can_be_repeated(
    old_url: str, install_migration: InstallMigration
) -> None:
    install_migration(BAD)
    with pytest.raises(corral.errors.CorralError):
        upgrade(old_url)
    install_migration(GOOD)
    upgrade(old_url)
    with corral.open(old_url) as store:
        assert is_upgraded(store)
        check_content(store)


@pytest.mark.parametrize("moment", [0, 1], ids=["before commit", "after commit"])
def test_killed_migration_is_either_applied_or_not(
    old_url: str, install_migration: InstallMigration, moment: int
) -> None:
    install_migration(GOOD)
    with Child(lambda: upgrade(old_url, Probe(kill_at=moment))) as child:
        assert child.ended_by() is signal.SIGKILL
    wait_until_alone(old_url)
    with corral.open(old_url, check_schema=False) as store:
        assert is_upgraded(store) == (moment == 1)
    upgrade(old_url)
    with corral.open(old_url) as store:
        assert is_upgraded(store)
        check_content(store)


def test_ten_concurrent_migrations_all_succeed(
    old_url: str, install_migration: InstallMigration
) -> None:
    install_migration(GOOD)
    run_concurrently([lambda: upgrade(old_url)] * 10)
    with corral.open(old_url) as store:
        assert is_upgraded(store)
        assert store.db.sql("SELECT id, size FROM extra").rows == [["one", 1]]
        check_content(store)


def test_older_postgres_store_is_migrated_only_on_request(
    old_url: str, install_migration: InstallMigration, engine: str
) -> None:
    install_migration(GOOD)
    if engine == "sqlite":
        corral.open(old_url).close()
        assert backup_path(old_url).exists()
        return
    with pytest.raises(StoreUnavailable, match="corral db migrate") as caught:
        corral.open(old_url)
    assert caught.value.reason == "older"
    with corral.open(old_url, check_schema=False) as store:
        assert store.db.schema_version() == CURRENT_VERSION, "the rejection changes nothing"
        assert store.db.migrate() == [CURRENT_VERSION + 1]
        assert store.db.migrate() == []
    corral.open(old_url).close()


def test_process_with_the_old_store_open_continues_to_work(
    old_url: str, install_migration: InstallMigration
) -> None:
    opened, upgraded = Signal(), Signal()

    def work_during_upgrade() -> None:
        with corral.open(old_url) as store:
            opened.send()
            upgraded.wait()
            store.mail.put("agent:ada", "after the upgrade")
            assert len(store.mail.list().items) == 2

    with Child(work_during_upgrade) as child:
        opened.wait()
        install_migration(GOOD)
        upgrade(old_url)
        upgraded.send()
        child.result()


def test_store_of_an_early_schema_is_migrated_to_the_latest(
    empty_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "early"
    folder.mkdir()
    (last,) = MIGRATIONS.glob("*_mail.sql")
    early_version = int(last.name[:4])
    for migration in MIGRATIONS.glob("*.sql"):
        if migration.name <= last.name:
            shutil.copy(migration, folder)
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "DIRECTORY", folder)
        _clear_caches()
        try:
            with corral.open(empty_url, check_schema=False) as store:
                store.db.migrate()
                assert store.db.schema_version() == early_version
                # Written like that version: the operations need the current columns.
                with store.transaction() as tx:
                    for text in FIRST_LETTER:
                        tx.run(Statement(text))
        finally:
            patch.undo()
            _clear_caches()
    upgrade(empty_url)
    with corral.open(empty_url) as store:
        assert store.db.schema_version() == CURRENT_VERSION
        assert [letter.body for letter in store.mail.list().items] == ["hello"]
        session = store.sessions.open(title="new")
        assert store.sessions.append(session, "user", "hi").number == 1
        check_store(store, schema=True)
