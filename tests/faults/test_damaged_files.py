"""Damaged, foreign and newer files: distinguished, rejected with a reason, and left unchanged."""

import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import apsw
import pytest

import corral
from corral.api import Corral
from corral.domain.mail import ops as mail
from corral.kernel.errors import StoreUnavailable
from tests.crash.harness import ALL
from tests.support.cli_runner import Cli
from tests.support.postgres_server import PostgresServer


def page_size(file: Path) -> int:
    return int.from_bytes(file.read_bytes()[16:18])  # by the file format


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A closed store with content."""
    path = tmp_path / "store" / "corral.db"
    with corral.open(path) as store:
        with store.transaction() as tx:
            for number in range(300):
                mail.put(tx, f"queue:{number % 7}", "x" * 100, key=str(number))
        store.settings.set("mail.max_attempts", 3)
        store.timers.set("agent:ada", "body", delay_ms=5_000)
    return path


def read_everything(store: Corral) -> None:
    store.settings.list()
    store.timers.list()
    for page in (
        store.mail.list(all=True, limit=1_000),
        store.mail.list(limit=1_000),
        store.events.after(limit=1_000),
    ):
        assert len(page.items) >= 300
    for number in range(7):
        store.mail.list(mailbox=f"queue:{number}", limit=1_000)


def assert_rejected(
    reason: str, path: Path, use: Callable[[Corral], object] = read_everything
) -> None:
    """Assert the rejection, at opening or first use, and that the file is unchanged."""
    before = path.read_bytes()
    with pytest.raises(StoreUnavailable) as caught:
        open_and_use(path, use)
    assert caught.value.reason == reason
    assert str(path) in caught.value.message
    assert path.read_bytes() == before


def open_and_use(path: Path, use: Callable[[Corral], object]) -> None:
    with corral.open(path) as store:
        use(store)


def test_file_of_random_bytes_is_rejected_as_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "corral.db"
    path.write_bytes(random.Random(1).randbytes(20_000))
    assert_rejected("corrupt", path)


def test_short_text_file_is_rejected_as_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "corral.db"
    path.write_text("plain text")
    assert_rejected("corrupt", path)


@pytest.mark.parametrize("share", [0.5, 0.9])
def test_truncated_store_is_rejected_as_corrupt(file: Path, share: float) -> None:
    content, size = file.read_bytes(), page_size(file)
    file.write_bytes(content[: int(len(content) // size * share) * size])
    assert_rejected("corrupt", file)


def test_damaged_page_is_reported_and_never_returns_wrong_data(file: Path) -> None:
    """For any damaged page: the data read is correct, or the store is reported as corrupt."""
    count = 0
    for page, damaged in damage_each_page(file):
        file.write_bytes(damaged)
        reason = get_reason(partial(open_and_use, file, read_everything))
        assert reason in (None, "corrupt"), f"page {page}"
        count += reason is not None
        assert file.read_bytes() == damaged
    assert count >= 5


def test_full_check_finds_any_damaged_page(file: Path) -> None:
    for page, damaged in damage_each_page(file):
        file.write_bytes(damaged)
        with corral.open(file) as store:
            assert "broken" in [finding.state for finding in store.db.verify()], f"page {page}"


def damage_each_page(file: Path) -> Iterator[tuple[int, bytes]]:
    """Yield copies of the file, each with one page of random bytes.

    The first page is excluded, because opening reads its schema. CORRAL_CRASH=all damages
    every page, otherwise every third.
    """
    content, size = file.read_bytes(), page_size(file)
    for page in range(1, len(content) // size, 1 if ALL else 3):
        garbage = random.Random(page).randbytes(size)
        yield page, content[: page * size] + garbage + content[(page + 1) * size :]


def get_reason(work: Callable[[], object]) -> str | None:
    try:
        work()
    except StoreUnavailable as error:
        return error.reason
    return None


def test_write_that_hits_a_damaged_page_changes_nothing(file: Path) -> None:
    """A put needs the pages of the table of letters and of its indexes."""
    connection = apsw.Connection(str(file))
    ((root,),) = connection.execute(
        "SELECT rootpage FROM sqlite_schema WHERE name = 'letters'"
    ).fetchall()
    connection.close()
    size = page_size(file)
    with file.open("r+b") as raw:
        raw.seek((root - 1) * size)
        raw.write(random.Random(3).randbytes(size))
    assert_rejected("corrupt", file, lambda store: store.mail.put("agent:ada", "hello"))


def test_database_of_another_program_is_rejected_and_left_alone(
    tmp_path: Path,
) -> None:
    path = tmp_path / "other" / "places.sqlite"
    path.parent.mkdir()
    connection = apsw.Connection(str(path))
    connection.execute("CREATE TABLE places (name TEXT)")
    connection.close()
    assert_rejected("foreign", path)
    assert [entry.name for entry in path.parent.iterdir()] == ["places.sqlite"]


def test_file_with_another_application_id_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "corral.db"
    connection = apsw.Connection(str(path))
    connection.execute("PRAGMA application_id = 12345; CREATE TABLE letters (seq INTEGER)")
    connection.close()
    assert_rejected("foreign", path)


def test_newer_file_is_rejected_and_unchanged(file: Path) -> None:
    connection = apsw.Connection(str(file))
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreUnavailable, match="Upgrade Corral"):
        corral.open(file)
    assert_rejected("newer", file)


def test_newer_postgres_store_is_rejected_and_unchanged(
    postgres_server: PostgresServer, postgres_template: str
) -> None:
    url = postgres_server.new_database(template=postgres_template)
    name = url.rpartition("/")[2]
    postgres_server.run_sql("INSERT INTO migrations VALUES (99, 'later', 'x', 0)", name)
    with pytest.raises(StoreUnavailable, match="Upgrade Corral") as caught:
        corral.open(url)
    assert caught.value.reason == "newer"
    assert caught.value.details["version"] == 99
    postgres_server.drop_database(url)


def test_store_with_foreign_migrations_is_reported_by_a_check(url: str) -> None:
    from corral.db.statement import Statement

    with corral.open(url) as store:
        with store.transaction() as tx:
            tx.run(Statement("UPDATE migrations SET checksum = 'altered' WHERE number = 1"))
        (finding,) = [item for item in store.db.check() if item.check == "schema"]
        assert finding.state == "broken"
        assert "another build" in finding.message


def test_advised_repair_of_a_damaged_store_restores_it(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with corral.open(file) as store:
        store.db.backup(tmp_path / "copy.db")
    file.write_bytes(random.Random(4).randbytes(20_000))
    corral_cli = Cli(capsys, f"sqlite:///{file}")
    result = corral_cli("mail", "list")
    assert result.code == 5
    assert "corral db restore FILE" in result.err
    restored = corral_cli("db", "restore", str(tmp_path / "copy.db"))
    assert restored.code == 0, restored.err
    open_and_use(file, read_everything)
