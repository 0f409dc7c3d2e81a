"""The schema of the migrations: every table, column and comment."""

import re

from corral.api import Corral
from corral.db.migrations import DIRECTORY, latest_version, load_migrations, split_statements
from corral.db.schema import TableDoc, tables
from tests.support.grouped_cases import each_case
from tests.support.store import rows

TABLES = {table.name: table for table in tables()}
EACH_TABLE = each_case("table", TABLES.values(), ids=TABLES)


def test_migrations_are_numbered_without_gaps() -> None:
    assert [migration.number for migration in load_migrations()] == list(
        range(1, latest_version() + 1)
    )
    assert len(list(DIRECTORY.glob("*.sql"))) == latest_version()


def test_migration_is_identified_by_its_checksum() -> None:
    first = load_migrations()[0]
    assert re.fullmatch("[0-9a-f]{64}", first.checksum)
    assert first._replace(text=first.text + " ").checksum != first.checksum
    assert (first.number, first.name) == (1, "core")


def test_statements_are_split_at_line_ending_semicolons() -> None:
    assert split_statements("A;\nB 'x;y' C;  \nD\n") == ["A", "B 'x;y' C", "D\n"]


def test_every_table_of_the_migrations_is_found() -> None:
    text = "".join(migration.text for migration in load_migrations())
    assert list(TABLES) == re.findall(r"CREATE TABLE (\w+)", text)


@EACH_TABLE
def test_every_table_and_column_is_documented_and_names_its_writer(table: TableDoc) -> None:
    assert "Writer:" in table.doc
    assert not table.doc.startswith("--")
    for column in table.columns:
        assert column.doc, f"{table.name}.{column.name} has no comment"
        assert column.type
        assert "{" not in column.type


@EACH_TABLE
def test_table_has_the_columns_that_the_engine_reports(store: Corral, table: TableDoc) -> None:
    if store.db.engine == "sqlite":
        result = rows(store, "SELECT name FROM pragma_table_info(:name)", name=table.name)
    else:
        result = rows(
            store,
            "SELECT column_name FROM information_schema.columns"
            " WHERE table_name = CAST(:name AS TEXT) AND column_name NOT IN ('xid', 'words')"
            " ORDER BY ordinal_position",
            name=table.name,
        )
    assert [name for (name,) in result] == [column.name for column in table.columns]


def test_every_index_is_documented_with_its_table(store: Corral) -> None:
    documented = {
        name
        for table in TABLES.values()
        for text in table.indexes
        for name in re.findall(r"INDEX (\w+) ON", text)
    }
    if store.db.engine == "sqlite":
        result = rows(store, "SELECT name FROM sqlite_schema WHERE type = 'index' AND sql <> ''")
    else:
        result = rows(
            store,
            "SELECT indexname FROM pg_indexes WHERE schemaname = 'public'"
            " AND indexname NOT LIKE '%_pkey'"
            " AND (indexname NOT LIKE '%_key' OR indexname LIKE '%_by_key')",
        )
    # Engine-specific text behind a token.
    engine_specific = {"events_by_subject", "events_feed", "letters_by_mailbox", "passages_words"}
    assert {name for (name,) in result} - engine_specific == documented


def test_table_documentation_has_columns_rules_and_indexes() -> None:
    letters = TABLES["letters"]
    types = {column.name: column.type for column in letters.columns}
    assert types["seq"] == "serial"
    assert types["mailbox"] == "key not null"
    assert types["expires_at"] == "integer"
    assert any("ended_at IS NULL" in rule for rule in letters.rules)
    assert any("letters_queue" in index for index in letters.indexes)


@EACH_TABLE
def test_times_and_durations_are_named_as_such(table: TableDoc) -> None:
    for column in table.columns:
        if column.name.endswith(("_at", "_ms", "_until")):
            assert column.type.startswith("integer"), f"{table.name}.{column.name}"
