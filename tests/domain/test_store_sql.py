"""SQL queries of people: read-only, with limits on rows and time."""

from pathlib import Path

import pytest

from corral.api import Corral
from corral.kernel.errors import Invalid
from tests.support.grouped_cases import each_case
from tests.support.store import raises_without_change, unchanged

ENDLESS = (
    "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i > 0)"
    " SELECT count(*) FROM n"
)


def test_query_returns_the_same_rows_on_both_engines(store: Corral) -> None:
    store.mail.put("agent:ada", {"a": [1, None]}, expires_at=store.now() + 5)
    store.mail.put("agent:bob", "x")
    table = store.db.sql(
        "SELECT seq, mailbox, body, expires_at - created_at AS life, key AS k FROM letters"
        " ORDER BY seq DESC"
    )
    assert table.columns == ["seq", "mailbox", "body", "life", "k"]
    assert table.rows == [
        [2, "agent:bob", '"x"', None, None],
        [1, "agent:ada", '{"a":[1,null]}', 5, None],
    ]
    assert table.truncated is False


def test_query_without_rows_returns_column_names(store: Corral) -> None:
    table = store.db.sql("SELECT seq, mailbox FROM letters")
    assert (table.columns, table.rows, table.truncated) == (["seq", "mailbox"], [], False)


@pytest.mark.parametrize(("limit", "truncated"), [(1, True), (2, True), (3, False), (4, False)])
def test_rows_beyond_the_limit_are_dropped_and_flagged(
    store: Corral, limit: int, truncated: bool
) -> None:
    for n in range(3):
        store.mail.put("agent:ada", n)
    table = store.db.sql("SELECT seq FROM letters ORDER BY seq", limit=limit)
    assert [row[0] for row in table.rows] == [1, 2, 3][:limit]
    assert table.truncated is truncated


def test_endless_query_returns_rows_up_to_the_limit(store: Corral) -> None:
    table = store.db.sql(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n", limit=5
    )
    assert [row[0] for row in table.rows] == [1, 2, 3, 4, 5]
    assert table.truncated is True


def test_query_beyond_its_timeout_is_stopped(store: Corral) -> None:
    with raises_without_change(store, Invalid) as caught:
        store.db.sql(ENDLESS, timeout_ms=100)
    assert caught.value.details["timeout_ms"] == 100


@each_case("limit", [0, -1, 100_001])
def test_limit_out_of_range_is_rejected(store: Corral, limit: int) -> None:
    with raises_without_change(store, Invalid):
        store.db.sql("SELECT 1", limit=limit)


@each_case("timeout_ms", [0, -1, 600_001])
def test_timeout_out_of_range_is_rejected(store: Corral, timeout_ms: int) -> None:
    with raises_without_change(store, Invalid):
        store.db.sql("SELECT 1", timeout_ms=timeout_ms)


@each_case(
    "query",
    [
        "DELETE FROM events",
        "UPDATE store_options SET durability = 'full'",
        "INSERT INTO secrets VALUES ('a', 'env:A', 1, 'x')",
        "INSERT INTO secrets VALUES ('a', 'env:A', 1, 'x') RETURNING name",
        "DROP TABLE letters",
        "CREATE TABLE extra (a INTEGER)",
        "CREATE TEMPORARY TABLE extra (a INTEGER)",
        "CREATE INDEX extra ON letters (owner)",
        "ALTER TABLE letters ADD COLUMN extra INTEGER",
        "WITH deleted AS (DELETE FROM events RETURNING seq) SELECT * FROM deleted",
        "SELECT 1; DELETE FROM events",
        "SELECT 1; COMMIT; DELETE FROM events",
        "SELECT 1; ROLLBACK; DELETE FROM events; COMMIT",
        "COMMIT; DELETE FROM events",
        "BEGIN; DELETE FROM events; COMMIT",
        "SELECT 1; SET TRANSACTION READ WRITE; DELETE FROM events; COMMIT",
        "EXPLAIN ANALYZE DELETE FROM events",
        "PRAGMA user_version = 9",
        "PRAGMA query_only = OFF",
        "PRAGMA journal_mode = DELETE",
        "SELECT 1; PRAGMA query_only = OFF; DELETE FROM events",
        "ATTACH ':memory:' AS other",
        "VACUUM",
        "REINDEX",
        "SAVEPOINT extra",
        "TRUNCATE events",
        "LOCK TABLE events",
        "SELECT setval('events_seq_seq', 1)",
        "SELECT nextval('events_seq_seq')",
        "SELECT * FROM events FOR UPDATE",
        "NOTIFY corral",
        "SELECT load_extension('x')",
    ],
)
def test_writing_statement_is_rejected(store: Corral, query: str) -> None:
    store.mail.put("agent:ada", 1)
    with raises_without_change(store, Invalid):
        store.db.sql(query)


def test_query_cannot_write_files(store: Corral, tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.parent.chmod(0o777)
    for query in (
        f"VACUUM INTO '{target}'",
        f"ATTACH '{target}' AS other",
        f"COPY (SELECT 1) TO '{target}'",
        f"SELECT 1; COPY (SELECT 1) TO '{target}'",
        f"SELECT writefile('{target}', 'x')",
    ):
        with raises_without_change(store, Invalid):
            store.db.sql(query)
        assert not target.exists()


@each_case(
    "query",
    ["", "  ", "invalid", "SELECT * FROM unknown", "SELECT (", "SELECT 1 \0", "\ud800", "--"],
    ids=ascii,
)
def test_invalid_sql_is_rejected_with_a_message(store: Corral, query: str) -> None:
    with raises_without_change(store, Invalid) as caught:
        store.db.sql(query)
    assert caught.value.message.endswith(".")


def test_runtime_error_of_a_query_is_an_input_error(store: Corral) -> None:
    store.mail.put("agent:ada", 1)
    with raises_without_change(store, Invalid):
        store.db.sql("SELECT abs(-9223372036854775807 - 1), 1/(seq - seq) FROM letters")


def test_query_can_be_repeated(store: Corral) -> None:
    for _ in range(40):  # more often than the pool has connections
        assert store.db.sql("SELECT 1").rows == [[1]]


def test_query_reads_committed_rows_without_blocking(store: Corral) -> None:
    store.mail.put("agent:ada", 1)
    with unchanged(store):
        assert store.db.sql("SELECT count(*) FROM letters").rows == [[1]]
    store.mail.put("agent:ada", 2)
    assert store.db.sql("SELECT count(*) FROM letters").rows == [[2]]
