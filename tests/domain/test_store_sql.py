"""A person's own queries: reading, within bounds, and nothing else."""

from pathlib import Path

import pytest

from corral.api import Corral
from corral.kernel.errors import Invalid
from tests.support.grouped_cases import each_case
from tests.support.store import refuses, unchanged

ENDLESS = (
    "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i > 0)"
    " SELECT count(*) FROM n"
)


def test_a_query_gives_columns_and_rows_alike_on_both_engines(store: Corral) -> None:
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


def test_a_query_without_rows_still_names_its_columns(store: Corral) -> None:
    table = store.db.sql("SELECT seq, mailbox FROM letters")
    assert (table.columns, table.rows, table.truncated) == (["seq", "mailbox"], [], False)


@pytest.mark.parametrize(("limit", "truncated"), [(1, True), (2, True), (3, False), (4, False)])
def test_rows_past_the_limit_are_left_out_and_that_is_said(
    store: Corral, limit: int, truncated: bool
) -> None:
    for n in range(3):
        store.mail.put("agent:ada", n)
    table = store.db.sql("SELECT seq FROM letters ORDER BY seq", limit=limit)
    assert [row[0] for row in table.rows] == [1, 2, 3][:limit]
    assert table.truncated is truncated


def test_a_query_without_end_gives_the_rows_up_to_the_limit(store: Corral) -> None:
    table = store.db.sql(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n", limit=5
    )
    assert [row[0] for row in table.rows] == [1, 2, 3, 4, 5]
    assert table.truncated is True


def test_a_query_that_takes_too_long_is_stopped(store: Corral) -> None:
    with refuses(store, Invalid) as caught:
        store.db.sql(ENDLESS, timeout_ms=100)
    assert caught.value.details["timeout_ms"] == 100


@each_case("limit", [0, -1, 100_001])
def test_a_limit_out_of_bounds_is_refused(store: Corral, limit: int) -> None:
    with refuses(store, Invalid):
        store.db.sql("SELECT 1", limit=limit)


@each_case("timeout_ms", [0, -1, 600_001])
def test_a_time_out_of_bounds_is_refused(store: Corral, timeout_ms: int) -> None:
    with refuses(store, Invalid):
        store.db.sql("SELECT 1", timeout_ms=timeout_ms)


@each_case(
    "query",
    [
        "DELETE FROM events",
        "UPDATE store_options SET durability = 'full'",
        "INSERT INTO secrets VALUES ('a', 'env:A', 1, 'x')",
        "INSERT INTO secrets VALUES ('a', 'env:A', 1, 'x') RETURNING name",
        "DROP TABLE letters",
        "CREATE TABLE mine (a INTEGER)",
        "CREATE TEMPORARY TABLE mine (a INTEGER)",
        "CREATE INDEX mine ON letters (owner)",
        "ALTER TABLE letters ADD COLUMN mine INTEGER",
        "WITH gone AS (DELETE FROM events RETURNING seq) SELECT * FROM gone",
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
        "SAVEPOINT mine",
        "TRUNCATE events",
        "LOCK TABLE events",
        "SELECT setval('events_seq_seq', 1)",
        "SELECT nextval('events_seq_seq')",
        "SELECT * FROM events FOR UPDATE",
        "NOTIFY corral",
        "SELECT load_extension('x')",
    ],
)
def test_what_is_no_reading_is_refused(store: Corral, query: str) -> None:
    store.mail.put("agent:ada", 1)
    with refuses(store, Invalid):
        store.db.sql(query)


def test_no_file_is_written_by_a_query(store: Corral, tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.parent.chmod(0o777)
    for query in (
        f"VACUUM INTO '{target}'",
        f"ATTACH '{target}' AS other",
        f"COPY (SELECT 1) TO '{target}'",
        f"SELECT 1; COPY (SELECT 1) TO '{target}'",
        f"SELECT writefile('{target}', 'x')",
    ):
        with refuses(store, Invalid):
            store.db.sql(query)
        assert not target.exists()


@each_case(
    "query",
    ["", "  ", "nonsense", "SELECT * FROM nowhere", "SELECT (", "SELECT 1 \0", "\ud800", "--"],
    ids=ascii,
)
def test_what_is_no_query_is_refused_with_a_sentence(store: Corral, query: str) -> None:
    with refuses(store, Invalid) as caught:
        store.db.sql(query)
    assert caught.value.message.endswith(".")


def test_an_error_inside_a_query_is_the_persons_own(store: Corral) -> None:
    store.mail.put("agent:ada", 1)
    with refuses(store, Invalid):
        store.db.sql("SELECT abs(-9223372036854775807 - 1), 1/(seq - seq) FROM letters")


def test_a_query_may_be_asked_again_and_again(store: Corral) -> None:
    for _ in range(40):  # each would keep a connection if it were not given back
        assert store.db.sql("SELECT 1").rows == [[1]]


def test_a_query_sees_what_was_committed_and_is_in_nobodys_way(store: Corral) -> None:
    store.mail.put("agent:ada", 1)
    with unchanged(store):
        assert store.db.sql("SELECT count(*) FROM letters").rows == [[1]]
    store.mail.put("agent:ada", 2)
    assert store.db.sql("SELECT count(*) FROM letters").rows == [[2]]
