"""The files of the sandbox bridge: one writer each, and the host trusts no outbound data."""

import fcntl
import json
import multiprocessing
import os
import random
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from corral.adapters.sandbox_bridge import agent_client, inbound, outbound
from corral.adapters.sandbox_bridge.files import SessionFiles, acknowledge
from corral.adapters.sandbox_bridge.outbound import FileBusy, HotJournal, InvalidFile
from corral.adapters.sandbox_bridge.rows import (
    DeliveryOutcome,
    DestinationRow,
    InboundRow,
    InboundView,
    OutboundSnapshot,
)
from corral.adapters.sandbox_bridge.schema import OUTBOUND, SessionFolder
from tests.support.errors import because
from tests.support.processes import Child

pytestmark = pytest.mark.slow

NOW = 1_700_000_000_000
SEED_002 = {
    "messages_in": "id seq kind timestamp status process_after recurrence tries platform_id "
    "channel_type thread_id content",
    "delivered": "message_out_id platform_message_id status delivered_at",
    "destinations": "name display_name type channel_type platform_id agent_group_id",
    "session_routing": "id channel_type platform_id thread_id",
    "messages_out": "id seq in_reply_to timestamp deliver_after recurrence kind platform_id "
    "channel_type thread_id content",
    "processing_ack": "message_id status status_changed",
    "session_state": "key value updated_at",
}


@pytest.fixture
def folder(tmp_path: Path) -> SessionFolder:
    session_folder = SessionFolder(str(tmp_path))
    os.mkdir(session_folder.inside)
    os.mkdir(session_folder.outside)
    inbound.write_view(session_folder, InboundView(), NOW)
    return session_folder


def run_sql(path: str, *statements: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection, connection:
        rows: list[tuple[object, ...]] = []
        for statement in statements:
            rows = connection.execute(statement).fetchall()
        return rows


def post_message(folder: SessionFolder, text: str) -> tuple[str, int]:
    files = SessionFiles(folder.top)
    with files.writing() as connection:
        return files.put(connection, "chat", {"text": text})


def read_snapshot(folder: SessionFolder, ingested: int = 0) -> OutboundSnapshot:
    return outbound.read_snapshot(folder, ingested_seq=ingested, above=0)


# -- schema ---------------------------------------------------------------------------------------


def test_schema_has_the_expected_tables_and_columns(folder: SessionFolder) -> None:
    post_message(folder, "x")
    columns_by_table = {}
    for path in (folder.inbound, folder.outbound):
        for (table,) in run_sql(path, "SELECT name FROM sqlite_schema WHERE type = 'table'"):
            columns = run_sql(path, f"PRAGMA table_info({table})")
            columns_by_table[str(table)] = " ".join(str(column[1]) for column in columns)
        assert run_sql(path, "PRAGMA journal_mode") == [("delete",)]
    assert columns_by_table == SEED_002
    assert not outbound.FUNCTIONS & {"load_extension", "writefile", "edit"}
    assert {name: SEED_002[name] for name in outbound.TABLES} == outbound.TABLES


def test_routing_table_has_at_most_one_row(folder: SessionFolder) -> None:
    inbound.write_view(folder, InboundView(routing=("home", "room", None)), NOW)
    inbound.write_view(folder, InboundView(routing=("home", "other", "t1")), NOW)
    assert run_sql(folder.inbound, "SELECT * FROM session_routing") == [(1, "home", "other", "t1")]
    with pytest.raises(sqlite3.IntegrityError):
        run_sql(folder.inbound, "INSERT INTO session_routing (id) VALUES (2)")


def test_writing_the_same_view_changes_nothing(folder: SessionFolder) -> None:
    picture = InboundView(
        rows=[InboundRow("let_1.1", "chat", NOW, "{}"), InboundRow("let_2.1", "chat", NOW, "{}")],
        destinations=[DestinationRow("team", "The team", "channel", "home", "room")],
        routing=("home", "room", None),
        outcomes=[DeliveryOutcome("out-1", "m1", "delivered", NOW)],
    )
    first = inbound.write_view(folder, picture, NOW)
    data = Path(folder.inbound).read_bytes()
    assert inbound.write_view(folder, picture, NOW + 1) == first
    assert Path(folder.inbound).read_bytes() == data
    assert first is not None
    assert first.largest == 4
    assert first.known == {"out-1"}
    assert not os.path.exists(f"{folder.inbound}-journal")


def test_first_outcome_of_a_message_is_kept(folder: SessionFolder) -> None:
    inbound.write_view(
        folder, InboundView(outcomes=[DeliveryOutcome("o", "m1", "delivered", NOW)]), NOW
    )
    inbound.write_view(
        folder, InboundView(outcomes=[DeliveryOutcome("o", None, "failed", NOW)]), NOW
    )
    assert run_sql(folder.inbound, "SELECT platform_message_id, status FROM delivered") == [
        ("m1", "delivered")
    ]


def test_destinations_are_replaced_by_the_current_ones(folder: SessionFolder) -> None:
    team = DestinationRow("team", "The team", "channel", "home", "room")
    inbound.write_view(folder, InboundView(destinations=[team]), NOW)
    inbound.write_view(folder, InboundView(destinations=[]), NOW)
    assert run_sql(folder.inbound, "SELECT * FROM destinations") == []


def test_damaged_inbound_file_is_quarantined_and_recreated(folder: SessionFolder) -> None:
    Path(folder.inbound).write_bytes(b"garbage" * 1_000)
    result = inbound.write_view(
        folder, InboundView(rows=[InboundRow("let_1.1", "chat", NOW, "{}")]), NOW
    )
    assert result is not None
    assert result.rebuilt
    assert run_sql(folder.inbound, "SELECT id, seq FROM messages_in") == [("let_1.1", 2)]
    assert (Path(folder.inside) / "damaged-inbound.db").exists()


def test_lock_on_the_inbound_file_does_not_block_the_host(folder: SessionFolder) -> None:
    with closing(sqlite3.connect(f"file:{folder.inbound}?mode=ro", uri=True)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM messages_in").fetchall()
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.apply(is_blocked, (folder,))
    assert (
        inbound.write_view(folder, InboundView(rows=[InboundRow("r", "chat", NOW, "{}")]), NOW)
        is not None
    )


def is_blocked(folder: SessionFolder) -> bool:
    """Write in another process, because SQLite locks are held per process."""
    return (
        inbound.write_view(folder, InboundView(rows=[InboundRow("r", "chat", NOW, "{}")]), NOW)
        is None
    )


# -- numbers --------------------------------------------------------------------------------------


def write_inbound(folder: SessionFolder, writer: int, count: int) -> None:
    random.seed(writer)
    for n in range(count):
        row = InboundRow(f"let_{writer}.{n}", "chat", NOW, "{}")
        while inbound.write_view(folder, InboundView(rows=[row]), NOW) is None:
            pass


def write_outbound(folder: SessionFolder, writer: int, count: int) -> None:
    for n in range(count):
        post_message(folder, f"{writer}:{n}")


def test_host_numbers_are_even_and_sandbox_numbers_odd(
    folder: SessionFolder,
) -> None:
    count, context = 40, multiprocessing.get_context("spawn")
    works: list[Callable[[SessionFolder, int, int], None]] = [write_inbound, write_outbound]
    processes = [
        context.Process(target=work, args=(folder, n, count)) for n in (1, 2) for work in works
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    inbound_numbers = [
        int(str(n)) for (n,) in run_sql(folder.inbound, "SELECT seq FROM messages_in")
    ]
    outbound_numbers = [
        int(str(n)) for (n,) in run_sql(folder.outbound, "SELECT seq FROM messages_out")
    ]
    assert len({*inbound_numbers}) == len({*outbound_numbers}) == 2 * count
    assert all(n % 2 == 0 for n in inbound_numbers)
    assert all(n % 2 == 1 for n in outbound_numbers)
    rows = read_snapshot(folder).rows
    for writer in (1, 2):
        texts = [json.loads(row.content)["text"] for row in rows]
        writer_texts = [text for text in texts if text.startswith(f"{writer}:")]
        assert writer_texts == [f"{writer}:{n}" for n in range(count)], (
            "the order of each writer is kept"
        )


def test_new_numbers_exceed_all_ingested_ones(folder: SessionFolder) -> None:
    inbound.write_view(folder, InboundView(rows=[InboundRow("a", "chat", NOW, "{}")], above=9), NOW)
    assert run_sql(folder.inbound, "SELECT seq FROM messages_in") == [(10,)]
    assert post_message(folder, "x")[1] == 11


# -- outbound messages ----------------------------------------------------------------------------


def test_snapshot_reads_messages_acks_and_state_in_order(folder: SessionFolder) -> None:
    first, number = post_message(folder, "one")
    second, _ = post_message(folder, "two")
    with SessionFiles(folder.top).writing() as connection:
        acknowledge(connection, ["let_1.1"], "completed")
        connection.execute("INSERT INTO session_state VALUES ('k', 'v', 't')")
    snapshot = read_snapshot(folder)
    assert [row.id for row in snapshot.rows] == [first, second]
    assert snapshot.acks == {"let_1.1": "completed"}
    assert snapshot.state == {"k": "v"}
    later = read_snapshot(folder, ingested=number)
    assert [row.id for row in later.rows] == [second]
    assert later.old == {first}


def test_missing_or_empty_file_is_an_empty_snapshot(folder: SessionFolder) -> None:
    assert read_snapshot(folder).rows == []
    Path(folder.outbound).touch()
    assert read_snapshot(folder).rows == []


INVALID_ROWS = {
    "an even number": "INSERT INTO messages_out VALUES ('s', 8, NULL, 't', NULL, NULL, 'chat', "
    "NULL, NULL, NULL, '{}')",
    "no number": "INSERT INTO messages_out VALUES ('s', NULL, NULL, 't', NULL, NULL, 'chat', "
    "NULL, NULL, NULL, '{}')",
    "a negative number": "INSERT INTO messages_out VALUES ('s', -3, NULL, 't', NULL, NULL, 'chat', "
    "NULL, NULL, NULL, '{}')",
    "a text for a number": "INSERT INTO messages_out VALUES ('s', 'x', NULL, 't', NULL, NULL, "
    "'chat', NULL, NULL, NULL, '{}')",
    "a number far ahead": "INSERT INTO messages_out VALUES ('s', 9223372036854775807, NULL, 't', "
    "NULL, NULL, 'chat', NULL, NULL, NULL, '{}')",
    "a blob for the content": "INSERT INTO messages_out VALUES ('s', 9, NULL, 't', NULL, NULL, "
    "'chat', NULL, NULL, NULL, x'00ff')",
    "no UTF-8": "INSERT INTO messages_out VALUES ('s', 9, NULL, 't', NULL, NULL, 'chat', "
    "CAST(x'ff41' AS TEXT), NULL, NULL, '{}')",
    "a zero byte in an address": "INSERT INTO messages_out VALUES ('s', 9, NULL, 't', NULL, NULL, "
    "'chat', CAST(x'410042' AS TEXT), NULL, NULL, '{}')",
    "a huge content": "INSERT INTO messages_out VALUES ('s', 9, NULL, 't', NULL, NULL, 'chat', "
    "NULL, NULL, NULL, hex(zeroblob(2000000)))",
    "a huge address": "INSERT INTO messages_out VALUES ('s', 9, NULL, 't', NULL, NULL, 'chat', "
    "hex(zeroblob(5000)), NULL, NULL, '{}')",
}


@pytest.mark.parametrize("name", INVALID_ROWS)
def test_invalid_row_is_skipped_and_others_are_read(folder: SessionFolder, name: str) -> None:
    id, _ = post_message(folder, "valid")
    run_sql(folder.outbound, INVALID_ROWS[name])
    snapshot = read_snapshot(folder)
    assert [row.id for row in snapshot.rows] == [id]
    assert [row.id for row in snapshot.invalid] == ["s"]
    assert snapshot.invalid[0].why


FORGED_SCHEMAS = {
    "garbage": ("PRAGMA user_version = 1", "not_sqlite"),
    "a trigger": (
        "CREATE TRIGGER t AFTER INSERT ON processing_ack BEGIN DELETE FROM messages_out; END",
        "triggers_or_views",
    ),
    "a view": ("CREATE VIEW v AS SELECT 1", "triggers_or_views"),
    "a view for a table": (
        "DROP TABLE session_state; CREATE VIEW session_state AS SELECT 1 AS key",
        "triggers_or_views",
    ),
    "a generated column": (
        "DROP TABLE session_state; CREATE TABLE session_state (key TEXT, value TEXT "
        "GENERATED ALWAYS AS (hex(zeroblob(100000000))), updated_at TEXT)",
        "other_columns",
    ),
    "a virtual table": (
        "DROP TABLE session_state; CREATE VIRTUAL TABLE session_state USING fts5(key, value)",
        "missing_table",
    ),
    "a missing table": ("DROP TABLE processing_ack", "missing_table"),
    "another column": ("ALTER TABLE messages_out ADD COLUMN more TEXT", "other_columns"),
    "an index by a function": (
        "CREATE INDEX i ON messages_out (abs(seq))",
        "",
    ),
    "a write-ahead log": ("PRAGMA journal_mode = WAL", "journal_mode"),
    "an id of blob": (
        "INSERT INTO messages_out VALUES (x'00', 9, NULL, 't', NULL, NULL, 'chat', NULL, NULL, "
        "NULL, '{}')",
        "bad_id",
    ),
    "an id that is a path": (
        "INSERT INTO messages_out VALUES ('../x', 9, NULL, 't', NULL, NULL, 'chat', NULL, NULL, "
        "NULL, '{}')",
        "bad_id",
    ),
    "many tables": ("; ".join(f"CREATE TABLE t{n} (x)" for n in range(120)), "too_many_tables"),
}


@pytest.mark.parametrize("name", FORGED_SCHEMAS)
def test_file_with_a_forged_schema_is_rejected(folder: SessionFolder, name: str) -> None:
    post_message(folder, "valid")
    statements, reason = FORGED_SCHEMAS[name]
    try:
        run_sql(
            folder.outbound,
            *statements.split("; ") if name == "many tables" else _script(statements),
        )
    except sqlite3.OperationalError as error:
        pytest.skip(f"this SQLite cannot make it: {error}")
    if name == "garbage":
        Path(folder.outbound).write_bytes(b"x" * 5_000)
    if name == "an index by a function":
        assert len(read_snapshot(folder).rows) == 1, "an unused object is harmless"
        return
    with pytest.raises(InvalidFile, check=because(reason)):
        read_snapshot(folder)


def _script(statements: str) -> list[str]:
    return [statements] if "TRIGGER" in statements else statements.split("; ")


def test_file_with_a_torn_page_is_rejected(folder: SessionFolder) -> None:
    for n in range(50):
        post_message(folder, f"{n} " * 100)
    data = bytearray(Path(folder.outbound).read_bytes())
    for offset in range(4_200, len(data), 64):
        data[offset] ^= 0xFF
    Path(folder.outbound).write_bytes(data)
    with pytest.raises(InvalidFile):
        read_snapshot(folder)


def test_column_name_that_is_not_utf8_is_rejected(folder: SessionFolder) -> None:
    post_message(folder, "valid")
    data = Path(folder.outbound).read_bytes()
    Path(folder.outbound).write_bytes(data.replace(b"in_reply_to", b"\x80n_reply_to"))
    with pytest.raises(InvalidFile, check=because("not_utf8")):
        read_snapshot(folder)


# -- hostile files --------------------------------------------------------------------------------


def test_only_regular_files_with_one_link_are_opened(folder: SessionFolder, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    run_sql(str(other), *OUTBOUND.split(";"))
    makers: list[Callable[[], object]] = [
        lambda: os.mkfifo(folder.outbound),
        lambda: os.symlink(other, folder.outbound),
        lambda: os.link(other, folder.outbound),
        lambda: os.mkdir(folder.outbound),
        lambda: os.symlink("/dev/zero", folder.outbound),
    ]
    for make in makers:
        make()
        with pytest.raises(InvalidFile):
            read_snapshot(folder)
        outbound.quarantine(folder)
        assert outbound.file_stamp(folder) is None
    assert other.exists()


def test_too_large_file_is_rejected(folder: SessionFolder) -> None:
    post_message(folder, "x")
    os.truncate(folder.outbound, outbound.MAX_BYTES + 1)
    with pytest.raises(InvalidFile, check=because("too_large")):
        read_snapshot(folder)


def test_too_many_messages_are_rejected(
    folder: SessionFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbound, "MAX_ROWS", 5)
    for n in range(6):
        post_message(folder, f"{n}")
    with pytest.raises(InvalidFile, check=because("too_many_rows")):
        read_snapshot(folder)


@pytest.fixture
def short_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbound, "WAIT_SECONDS", 0.05)


@pytest.mark.usefixtures("short_timeout")
def test_locked_file_is_busy_until_released(folder: SessionFolder) -> None:
    post_message(folder, "x")
    with closing(sqlite3.connect(folder.outbound)) as writer:
        writer.isolation_level = None
        writer.execute("BEGIN EXCLUSIVE")
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.apply(is_busy, (folder,))
        writer.execute("COMMIT")
    assert len(read_snapshot(folder).rows) == 1


def is_busy(folder: SessionFolder) -> bool:
    """Read in another process, because SQLite locks are held per process."""
    try:
        read_snapshot(folder)
    except FileBusy:
        return True
    return False


def leave_a_journal(folder: SessionFolder) -> None:
    """Kill a process in the middle of a transaction, with a hot journal."""
    writer = sqlite3.connect(folder.outbound)
    writer.isolation_level = None
    writer.execute("PRAGMA cache_size = 1")
    writer.execute("BEGIN")
    for n in range(200):
        writer.execute("INSERT INTO session_state VALUES (?, ?, 't')", (f"k{n}", "v" * 4_000))
    os._exit(9)


def test_hot_journal_is_recovered_only_inside_the_sandbox(folder: SessionFolder) -> None:
    id, _ = post_message(folder, "before")
    died = multiprocessing.get_context("fork").Process(target=leave_a_journal, args=(folder,))
    died.start()
    died.join()
    assert os.path.getsize(f"{folder.outbound}-journal") > 0
    with pytest.raises(HotJournal):
        read_snapshot(folder)
    agent_client.recover_journal(folder.outbound)
    snapshot = read_snapshot(folder)
    assert [row.id for row in snapshot.rows] == [id]
    assert snapshot.state == {}


def test_journal_naming_another_file_deletes_nothing(folder: SessionFolder, tmp_path: Path) -> None:
    """SQLite may delete the file that a journal names as its super-journal."""
    post_message(folder, "x")
    victim = tmp_path / "victim"
    victim.write_text("precious")
    name = str(victim).encode()
    sums = sum(name) & 0xFFFF_FFFF
    header = b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" + bytes(504)
    tail = name + len(name).to_bytes(4, "big") + sums.to_bytes(4, "big") + header[:8]
    Path(f"{folder.outbound}-journal").write_bytes(header + bytes(4) + tail)
    with pytest.raises(HotJournal):
        read_snapshot(folder)
    assert victim.read_text() == "precious"


def test_journal_of_a_live_writer_is_not_an_error(folder: SessionFolder) -> None:
    post_message(folder, "x")
    with closing(sqlite3.connect(folder.outbound)) as writer:
        writer.isolation_level = None
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("INSERT INTO session_state VALUES ('k', 'v', 't')")
        assert os.path.exists(f"{folder.outbound}-journal")
        with multiprocessing.get_context("fork").Pool(1) as pool:
            assert pool.apply(count_rows, (folder,)) == 1
        writer.execute("COMMIT")
    assert read_snapshot(folder).state == {"k": "v"}


def count_rows(folder: SessionFolder) -> int:
    return len(read_snapshot(folder).rows)


def test_reading_leaves_no_lock(folder: SessionFolder) -> None:
    post_message(folder, "x")
    read_snapshot(folder)

    def lock() -> None:
        handle = os.open(folder.outbound, os.O_RDWR)
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    with Child(lock) as another:  # another process, because locks are held per process
        another.result()


# -- turns ----------------------------------------------------------------------------------------


@pytest.fixture
def fast_thread_switches() -> Iterator[None]:
    """Switch threads at nearly every step."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("fast_thread_switches")
def test_agent_that_ignores_its_input_has_not_failed(
    folder: SessionFolder,
) -> None:
    """Its pipe breaks at any moment of the turn, for short and for long input."""
    order = {
        "top": folder.top,
        "args": ["/bin/true"],
        "env": {},
        "stdin": agent_client.PROMPT_PLACEHOLDER,
        "provider": "plain",
    }
    for n in range(50):
        content = json.dumps({"text": "x" * (100_000 if n % 2 else 10)})
        inbound.write_view(
            folder, InboundView(rows=[InboundRow(f"let_{n}.1", "chat", NOW, content)]), NOW
        )
        assert agent_client.run(order) == 0
