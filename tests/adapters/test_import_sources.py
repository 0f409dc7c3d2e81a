"""Source databases of other tools: read from a consistent copy, never changed."""

import os
import tempfile
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.db.schema import tables
from corral.importers.mappings.registry import TOOL_NAMES, check_signature, find_tool
from corral.importers.mappings.types import KEPT, NOT_IMPORTED
from corral.importers.source import private_copy
from corral.importers.source.database import BATCH_ROWS, SourceDatabase, open_source
from corral.importers.source.timestamps import parse_timestamp
from corral.kernel.clock import DAY, YEAR
from corral.kernel.errors import CorralError, Invalid, NotFound, Refused
from tests.support import source_databases
from tests.support.processes import Child, as_nobody

EACH_TOOL = pytest.mark.parametrize("tool", TOOL_NAMES)


def read_files(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in folder.iterdir()}


def read_rows(path: Path, table: str = "runs") -> list[dict[str, object]]:
    with open_source(path) as source:
        return [row.values for piece in source.read_batches(table, ("id",)) for row in piece]


# -- the source -----------------------------------------------------------------------------------


@pytest.mark.parametrize("wal", [False, True])
def test_no_file_is_created_or_changed_beside_a_source(wal: bool, tmp_path: Path) -> None:
    path = source_databases.make(
        tmp_path / "s.db", source_databases.AGENT_YES, source_databases.AGENT_YES_ROWS, wal=wal
    )
    before = read_files(tmp_path)
    assert len(read_rows(path)) == 4
    assert read_files(tmp_path) == before


def test_wal_of_a_live_writer_is_read(tmp_path: Path) -> None:
    path = source_databases.make(tmp_path / "s.db", source_databases.AGENT_YES, {}, wal=True)
    writer = apsw.Connection(str(path))
    try:
        source_databases.fill(writer, source_databases.AGENT_YES_ROWS)
        before = read_files(tmp_path)
        assert "s.db-wal" in before
        assert len(read_rows(path)) == 4
        assert read_files(tmp_path) == before
    finally:
        writer.close()


def test_wal_of_a_dead_writer_is_read_and_left_unchanged(tmp_path: Path) -> None:
    path = source_databases.make(tmp_path / "live.db", source_databases.AGENT_YES, {}, wal=True)
    writer = apsw.Connection(str(path))
    source_databases.fill(writer, source_databases.AGENT_YES_ROWS)
    copy = tmp_path / "left"
    copy.mkdir()
    for end in ("", "-wal"):
        (copy / f"s.db{end}").write_bytes(path.with_name(f"live.db{end}").read_bytes())
    writer.close()
    before = read_files(copy)
    assert len(read_rows(copy / "s.db")) == 4
    assert read_files(copy) == before


def test_uncommitted_transaction_is_not_read(tmp_path: Path) -> None:
    path = source_databases.make(
        tmp_path / "live.db", source_databases.AGENT_YES, source_databases.AGENT_YES_ROWS
    )
    writer = apsw.Connection(str(path))
    writer.execute("PRAGMA cache_size = 1; PRAGMA cache_spill = 1; BEGIN; DELETE FROM runs")
    writer.execute(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)"
        " INSERT INTO projects (dir, cmd, created_at, updated_at)"
        " SELECT printf('/%d', i), hex(randomblob(200)), 1, 1 FROM n"
    )
    copy = tmp_path / "left"
    copy.mkdir()
    for end in ("", "-journal"):
        (copy / f"s.db{end}").write_bytes(path.with_name(f"live.db{end}").read_bytes())
    before = read_files(copy)
    assert len(read_rows(copy / "s.db")) == 4, "the delete was not committed"
    assert read_files(copy) == before
    writer.execute("ROLLBACK")
    writer.close()


@pytest.fixture
def busy_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A database whose writer moves an amount between rows continuously.

    Its writer pauses now and then, for longer the more often a copy failed: also on a slow machine
    a copy fits into a pause.
    """
    failed_copies = 0
    copied = private_copy._try_copy

    def copy_and_count(*paths: Path) -> bool:
        nonlocal failed_copies
        result = copied(*paths)
        failed_copies = 0 if result else failed_copies + 1
        return result

    monkeypatch.setattr(private_copy, "_try_copy", copy_and_count)
    path = tmp_path / "s.db"
    writer = apsw.Connection(str(path))
    writer.execute(
        "PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 20;"
        "CREATE TABLE runs (id INTEGER PRIMARY KEY, amount INTEGER, filler TEXT)"
    ).fetchall()
    with writer:
        for number in range(300):
            writer.execute("INSERT INTO runs VALUES (?, 10, ?)", (number, "x" * 500))
    stop = threading.Event()

    def move() -> None:
        number = 0
        while not stop.is_set():
            with writer:
                writer.execute("UPDATE runs SET amount = amount - 1 WHERE id = ?", (number % 300,))
                other = (number * 7 + 1) % 300
                writer.execute("UPDATE runs SET amount = amount + 1 WHERE id = ?", (other,))
            number += 1
            stop.wait(0.004 if number % 40 else 0.08 * 2 ** (failed_copies // 5))

    thread = threading.Thread(target=move)
    thread.start()
    yield path
    stop.set()
    thread.join()
    writer.close()


def test_copy_of_a_source_with_a_writer_is_consistent(
    busy_database: Path,
) -> None:
    for _ in range(5):
        amounts = [row["amount"] for row in read_rows(busy_database)]
        assert sum(amounts) == 3_000


def test_source_that_is_rewritten_continuously_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = source_databases.make(tmp_path / "s.db", source_databases.AGENT_YES, {}, wal=True)
    monkeypatch.setattr(private_copy, "MAX_ATTEMPTS", 3)
    monkeypatch.setattr(private_copy, "_try_copy", lambda *_: False)
    with pytest.raises(Refused, match="keeps changing"), open_source(path):
        pass


def test_rows_are_read_in_batches_of_bounded_size(tmp_path: Path) -> None:
    path = source_databases.make(tmp_path / "s.db", source_databases.AGENT_YES, {})
    source_databases.change(
        path,
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1300)"
        " INSERT INTO runs SELECT i, i, 1, 'failed', 1, i, i, iif(i < 3, hex(zeroblob(700000)), '')"
        " FROM n",
    )
    with open_source(path) as source:
        sizes = [len(piece) for piece in source.read_batches("runs", ("id",))]
    assert sum(sizes) == 1_300
    assert max(sizes) <= BATCH_ROWS
    assert sizes[:2] == [1, 1], "large values make small batches"


# -- rejected files -------------------------------------------------------------------------------


def open_and_fail(path: Path, tool: str = "agent-yes") -> CorralError:
    with pytest.raises(CorralError) as caught, open_source(path) as source:
        check_signature(source, find_tool(tool), find_tool(tool).signature)
    return caught.value


def test_file_that_is_not_a_database_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello " * 100)
    (tmp_path / "empty").touch()
    half = tmp_path / "half.db"
    whole = source_databases.make(
        tmp_path / "s.db", source_databases.AGENT_YES, source_databases.AGENT_YES_ROWS
    )
    half.write_bytes(whole.read_bytes()[:5_000])
    assert open_and_fail(tmp_path / "a.txt").details["reason"] == "not_sqlite"
    os.mkfifo(tmp_path / "pipe")  # without a writer
    assert open_and_fail(tmp_path / "pipe").details["reason"] == "not_sqlite"
    for end in ("-wal", "-journal"):
        sound = source_databases.make(tmp_path / f"beside{end}.db", source_databases.AGENT_YES, {})
        os.mkfifo(f"{sound}{end}")
        assert open_and_fail(sound).details == {"path": f"{sound}{end}", "reason": "not_sqlite"}
    assert open_and_fail(tmp_path / "empty").details["reason"] == "empty"
    assert open_and_fail(half).details["reason"] == "damaged"
    assert open_and_fail(tmp_path).details["reason"] == "is_a_folder"
    assert isinstance(open_and_fail(tmp_path / "missing"), NotFound)


def test_unreadable_file_is_rejected() -> None:
    # Outside of the test folder, which an unprivileged user cannot reach.
    with tempfile.TemporaryDirectory(prefix="corral-test-") as folder:
        Path(folder).chmod(0o755)
        path = source_databases.make(Path(folder) / "s.db", source_databases.AGENT_YES, {})
        path.chmod(0)
        with Child(as_nobody(lambda: open_and_fail(path).message)) as child:
            assert "Cannot read" in child.result()


def test_locked_file_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = source_databases.make(
        tmp_path / "s.db", source_databases.AGENT_YES, source_databases.AGENT_YES_ROWS
    )
    monkeypatch.setattr(private_copy, "BUSY_MS", 50)
    writer = apsw.Connection(str(path))
    writer.execute("BEGIN EXCLUSIVE")
    try:
        assert open_and_fail(path).details["reason"] == "locked"
    finally:
        writer.close()


@EACH_TOOL
def test_database_of_another_tool_is_rejected_by_name(tool: str, tmp_path: Path) -> None:
    path = source_databases.MAKERS[tool](tmp_path)
    for other in TOOL_NAMES:
        if other == tool:
            continue
        error = open_and_fail(path, other)
        assert isinstance(error, Invalid)
        assert error.details["reason"] == "other_tool"
        assert error.details["looks_like"] == tool


def test_database_of_an_unknown_tool_is_rejected_with_its_tables(tmp_path: Path) -> None:
    path = source_databases.make(tmp_path / "s.db", "CREATE TABLE stamps (id TEXT)", {})
    error = open_and_fail(path)
    assert error.details["reason"] == "unknown_schema"
    assert "stamps" in error.message


def test_corral_store_is_rejected_as_a_source(tmp_path: Path) -> None:
    schema = "CREATE TABLE letters (mailbox TEXT); CREATE TABLE events (subject TEXT)"
    path = source_databases.make(tmp_path / "s.db", schema, {})
    assert open_and_fail(path).details["reason"] == "corral_store"


# -- mappings -------------------------------------------------------------------------------------


@EACH_TOOL
def test_every_column_of_a_tool_is_mapped_to_an_existing_column(tool: str, tmp_path: Path) -> None:
    columns_of_corral = {
        f"{table.name}.{column.name}" for table in tables() for column in table.columns
    }
    known = {table.name: table for table in find_tool(tool).tables if not table.alias}
    covered: set[str] = set()
    for number, schema in enumerate(source_databases.SCHEMAS[tool]):
        path = source_databases.make(tmp_path / f"{number}.db", schema, {})
        with open_source(path) as source:
            for name, columns in source.tables.items():
                covered.add(name)
                assert {column.lower() for column in columns} == {*known[name].columns}, name
    assert covered == {*known}
    for table in find_tool(tool).tables:
        for column, homes in table.columns.items():
            if homes not in (KEPT, NOT_IMPORTED):
                assert {*homes.split(", ")} <= columns_of_corral, f"{table.name}.{column}"


# -- times ----------------------------------------------------------------------------------------

TIMES = st.integers(min_value=946_684_800_000, max_value=4_102_444_800_000)  # 2000 to 2100


@given(TIMES)
def test_time_is_the_same_in_every_unit(ms: int) -> None:
    assert parse_timestamp(ms) == ms
    assert parse_timestamp(ms * 1_000) == ms
    assert parse_timestamp(ms * 1_000_000) == ms
    assert parse_timestamp(ms // 1_000) == ms // 1_000 * 1_000
    assert parse_timestamp(str(ms)) == ms
    assert parse_timestamp(str(ms // 1_000)) == ms // 1_000 * 1_000
    assert abs((parse_timestamp(ms / 1_000) or 0) - ms) <= 1


@given(TIMES)
def test_time_is_the_same_in_every_text_format(ms: int) -> None:
    time = datetime.fromtimestamp(ms / 1_000, UTC)
    ms = int(time.timestamp() * 1_000 + 0.5)
    time = datetime.fromtimestamp(ms / 1_000, UTC)
    text = time.strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1_000:03}"
    for spelled in (f"{text}Z", f"{text}+00:00", text.replace("T", " "), f" {text}z "):
        assert parse_timestamp(spelled) == ms, spelled


@given(st.one_of(st.text(), st.integers(), st.floats(), st.none(), st.binary(), st.booleans()))
def test_any_value_is_a_valid_time_or_none(value: object) -> None:
    result = parse_timestamp(value)
    assert result is None or 0 < result < 10_000 * YEAR + DAY


def test_open_source_lists_its_tables_and_columns(tmp_path: Path) -> None:
    with open_source(source_databases.make_flightdeck(tmp_path)) as source:
        assert isinstance(source, SourceDatabase)
        assert len(source.tables) == 24
        assert "knowledge_fts" in source.derived
        assert source.count_rows("messages") == 3
