"""A store of an older version: migrated or left unchanged.

The last migration here is made up and stands for all future ones.
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
-- Something that a later Corral needs.
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

Later = Callable[[str], None]
TODAYS = Path(migrations.__file__).parent.parent / "migrations"
TODAY = migrations.latest_version()


@pytest.fixture
def later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Later]:
    """A function that turns this program into a later version with one more migration."""
    folder = tmp_path / "migrations"

    def become_later(text: str) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for own in TODAYS.glob("*.sql"):
            shutil.copy(own, folder)
        (folder / f"{TODAY + 1:04d}_extra.sql").write_text(text)
        monkeypatch.setattr(migrations, "DIRECTORY", folder)
        _forget()

    yield become_later
    monkeypatch.undo()
    _forget()


def _forget() -> None:
    migrations.load_migrations.cache_clear()
    migrations.latest_version.cache_clear()
    schema.tables.cache_clear()
    schema._build_nonempty_statement.cache_clear()


@pytest.fixture
def old(empty_url: str) -> str:
    """A store of the current version with content."""
    with corral.open(empty_url) as store:
        store.mail.put("agent:ada", "hello")
    return empty_url


def upgrade(url: str, probe: Probe | None = None) -> None:
    """Migrate: SQLite when the store is opened, PostgreSQL on request."""
    if url.startswith("sqlite"):
        corral.open(url, probe=probe).close()
        return
    with corral.open(url, upgrade=True, probe=probe) as store:
        store.db.migrate()


def is_upgraded(store: Corral) -> bool:
    rows = store.db.sql("SELECT number FROM migrations ORDER BY number").rows
    assert rows == [[number] for number in range(1, store.db.schema_version() + 1)]
    return store.db.schema_version() == TODAY + 1


def is_whole(store: Corral) -> None:
    assert [letter.body for letter in store.mail.list().items] == ["hello"]
    store.mail.put("agent:ada", "again")
    if is_upgraded(store):  # an older store lacks tables that the check reads
        check_store(store, schema=True)


def copy_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///") + f".before-{TODAY + 1:04d}")


def test_older_store_is_migrated(old: str, later: Later) -> None:
    later(GOOD)
    upgrade(old)
    with corral.open(old) as store:
        assert is_upgraded(store)
        assert store.db.sql("SELECT id, size FROM extra").rows == [["one", 1]]
        is_whole(store)


def test_sqlite_keeps_a_private_backup_before_migrating(
    old: str, later: Later, engine: str
) -> None:
    later(GOOD)
    upgrade(old)
    if engine == "postgres":
        assert not copy_of(old).exists()  # on PostgreSQL, the server's own backups are used
        return
    assert oct(copy_of(old).stat().st_mode & 0o777) == "0o600"
    with corral.open(f"sqlite:///{copy_of(old)}", upgrade=True) as store:
        assert store.db.schema_version() == TODAY
        assert [row[0] for row in store.db.sql("SELECT body FROM letters").rows] == ['"hello"']


def test_failed_migration_leaves_the_old_store_unchanged(old: str, later: Later) -> None:
    later(BAD)
    with pytest.raises(corral.errors.CorralError):
        upgrade(old)
    with corral.open(old, upgrade=True) as store:
        assert not is_upgraded(store)
        with pytest.raises(corral.errors.CorralError, check=because("bad_query")):
            store.db.sql("SELECT * FROM extra")
        is_whole(store)


def test_failed_migration_can_be_repeated(old: str, later: Later) -> None:
    later(BAD)
    with pytest.raises(corral.errors.CorralError):
        upgrade(old)
    later(GOOD)
    upgrade(old)
    with corral.open(old) as store:
        assert is_upgraded(store)
        is_whole(store)


@pytest.mark.parametrize("moment", [0, 1], ids=["before commit", "after commit"])
def test_killed_migration_is_either_applied_or_not(old: str, later: Later, moment: int) -> None:
    later(GOOD)
    with Child(lambda: upgrade(old, Probe(kill_at=moment))) as child:
        assert child.ended_by() is signal.SIGKILL
    wait_until_alone(old)
    with corral.open(old, upgrade=True) as store:
        assert is_upgraded(store) == (moment == 1)
    upgrade(old)
    with corral.open(old) as store:
        assert is_upgraded(store)
        is_whole(store)


def test_ten_concurrent_migrations_all_succeed(old: str, later: Later) -> None:
    later(GOOD)
    run_concurrently([lambda: upgrade(old)] * 10)
    with corral.open(old) as store:
        assert is_upgraded(store)
        assert store.db.sql("SELECT id, size FROM extra").rows == [["one", 1]]
        is_whole(store)


def test_older_postgres_store_is_migrated_only_on_request(
    old: str, later: Later, engine: str
) -> None:
    later(GOOD)
    if engine == "sqlite":
        corral.open(old).close()
        assert copy_of(old).exists()
        return
    with pytest.raises(StoreUnavailable, match="corral db migrate") as caught:
        corral.open(old)
    assert caught.value.reason == "older"
    with corral.open(old, upgrade=True) as store:
        assert store.db.schema_version() == TODAY, "the rejection changes nothing"
        assert store.db.migrate() == [TODAY + 1]
        assert store.db.migrate() == []
    corral.open(old).close()


def test_process_with_the_old_store_open_continues_to_work(old: str, later: Later) -> None:
    opened, upgraded = Signal(), Signal()

    def work_through_it() -> None:
        with corral.open(old) as store:
            opened.send()
            upgraded.wait()
            store.mail.put("agent:ada", "still there")
            assert len(store.mail.list().items) == 2

    with Child(work_through_it) as child:
        opened.wait()
        later(GOOD)
        upgrade(old)
        upgraded.send()
        child.result()


def test_store_of_the_first_schema_is_migrated_to_the_latest(
    empty_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "first"
    folder.mkdir()
    shutil.copy(min(TODAYS.glob("0001_*.sql")), folder)
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "DIRECTORY", folder)
        _forget()
        try:
            with corral.open(empty_url, upgrade=True) as store:
                store.db.migrate()
                assert store.db.schema_version() == 1
                # As the first version wrote it: today's operations need today's columns.
                with store.transaction() as tx:
                    for text in FIRST_LETTER:
                        tx.run(Statement(text))
        finally:
            patch.undo()
            _forget()
    upgrade(empty_url)
    with corral.open(empty_url) as store:
        assert store.db.schema_version() == TODAY
        assert [letter.body for letter in store.mail.list().items] == ["hello"]
        session = store.sessions.open(title="new")
        assert store.sessions.append(session, "user", "hi").number == 1
        check_store(store, schema=True)
