"""Records are built by position: the columns that an engine reports must match the fields."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import apsw.ext
import msgspec
import psycopg
import pytest

import corral
from corral.db.statement import Query, Statement
from tests.support.statements import statements

STATEMENTS = statements()
QUERIES = {name: item for name, item in STATEMENTS.items() if isinstance(item, Query)}

Describe = Callable[[Statement], list[str]]


@pytest.fixture
def describe(url: str, engine: str) -> Iterator[Describe]:
    """Return a function that asks the engine for a statement's columns without running it."""
    if engine == "sqlite":
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        yield lambda statement: _sqlite_columns(connection, statement)
        connection.close()
        return
    with psycopg.connect(url) as server:
        yield lambda statement: _postgres_columns(server, statement)


def _sqlite_columns(connection: apsw.Connection, statement: Statement) -> list[str]:
    described = apsw.ext.query_info(connection, statement.sqlite.text)
    return [column[0] for column in described.description]


def _postgres_columns(server: "psycopg.Connection[Any]", statement: Statement) -> list[str]:
    prepared = server.pgconn.prepare(b"asked", statement.postgres.text.encode())
    assert prepared.status == psycopg.pq.ExecStatus.COMMAND_OK, prepared.error_message.decode()
    result = server.pgconn.describe_prepared(b"asked")
    server.rollback()
    server.execute("DEALLOCATE asked")
    return [(result.fname(column) or b"").decode() for column in range(result.nfields)]


def test_statements_exist() -> None:
    assert {"mail.CLAIM_UNORDERED", "mail.LETTERS.by_key", "projects.IDS.resolve"} <= {*STATEMENTS}


def test_every_query_selects_the_fields_of_its_record_in_order(describe: Describe) -> None:
    mismatched = {}
    for name, query in QUERIES.items():
        fields = msgspec.structs.fields(query.record)
        columns = describe(query)
        # Trailing fields with a default may be filled in by the concept.
        value, rest = fields[: len(columns)], fields[len(columns) :]
        if columns != [field.name for field in value] or any(field.required for field in rest):
            mismatched[name] = (columns, [field.name for field in fields])
    assert mismatched == {}


def test_every_other_statement_is_valid(describe: Describe) -> None:
    for name, statement in STATEMENTS.items():
        if name not in QUERIES:
            describe(statement)


def test_statements_of_a_concept_are_in_its_sql_files() -> None:
    files = [*Path(corral.__file__).parent.glob("domain/**/*.py")]
    assert len(files) > 100
    # integrity.py builds its statements from the declarations of the tables that it checks.
    generated = {"integrity.py"}
    for file in files:
        if file.name in generated:
            continue
        if file.name != "sql.py" and not file.name.endswith("_sql.py"):
            text = file.read_text(encoding="utf-8")
            assert "Statement(" not in text, file
            assert "Query(" not in text, file
