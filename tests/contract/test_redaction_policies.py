"""Every text column has a redaction policy, and every statement respects it."""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache

import apsw
import psycopg
import pytest

from corral.api import Corral
from corral.db import store_move_record, tx
from corral.db.bulk_insert import insert_statement
from corral.db.bulk_transitions import (
    _build_events_statement,
    _import_events,
    _insert_many,
    _update_many,
)
from corral.db.column_policies import TABLES, get_column_policies
from corral.db.dialect import Engine
from corral.db.gapless_insert import GaplessInsert
from corral.db.parameter_columns import find_parameter_columns
from corral.db.schema import tables
from corral.db.stateful_table import StatefulTable
from corral.db.statement import Statement
from corral.db.transitions import _update_query
from corral.errors import Invalid
from corral.kernel.redaction_policy import Policy
from corral.services.store.declarations import find_declarations
from tests.support.fake_keys import KEY
from tests.support.statements import statements
from tests.support.store import write

# An unlisted type counts as text, so that a new type needs a decision.
NOT_TEXT = {"INTEGER", "BLOB", "integer", "bigint", "bytea", "xid8", "tsvector"}
ONLY_SQLITE = {"deferred_indexes", "events_by_subject", "letters_by_mailbox", "passages_words"}
ENGINES: tuple[Engine, ...] = ("sqlite", "postgres")

_SQLITE_COLUMNS = """
    SELECT tables.name, columns.name, columns.type
    FROM pragma_table_list AS tables, pragma_table_xinfo(tables.name) AS columns
    WHERE tables.type IN ('table', 'virtual') AND tables.schema = 'main'
      AND tables.name NOT LIKE 'sqlite_%' AND columns.hidden = 0
"""
_POSTGRES_COLUMNS = """
    SELECT columns.table_name, column_name, data_type
    FROM information_schema.columns JOIN information_schema.tables USING (table_schema, table_name)
    WHERE table_schema = current_schema() AND table_type = 'BASE TABLE'
"""


@pytest.fixture
def text_columns(url: str, engine: str) -> set[str]:
    """Return the text columns of the migrated schema, as `table.column`."""
    if engine == "sqlite":
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        rows = connection.execute(_SQLITE_COLUMNS).fetchall()
        connection.close()
    else:
        with psycopg.connect(url) as server:
            rows = server.execute(_POSTGRES_COLUMNS).fetchall()
    return {f"{table}.{column}" for table, column, type in rows if type not in NOT_TEXT}


def test_every_text_column_has_a_policy(text_columns: set[str]) -> None:
    assert len(text_columns) > 300
    assert text_columns - _declared_columns() == set()


def test_every_declared_column_exists_and_holds_text(text_columns: set[str], engine: str) -> None:
    absent = ONLY_SQLITE if engine == "postgres" else set()
    undeclared = _declared_columns() - text_columns
    assert {column for column in undeclared if column.partition(".")[0] not in absent} == set()


def test_no_column_is_declared_twice() -> None:
    for table, policy in TABLES.items():
        names = Counter(name for name, _ in policy.declared())
        assert [name for name, count in names.items() if count > 1] == [], table


def test_every_exemption_has_a_reason() -> None:
    for table, policy in TABLES.items():
        assert all(len(reason.split()) > 2 for reason in policy.exempt), table


def _declared_columns() -> set[str]:
    return {f"{table}.{name}" for table in TABLES for name in get_column_policies(table)}


# -- statements ------------------------------------------------------------------------------


def iter_writing_statements() -> Iterator[tuple[str, Statement]]:
    yield from statements().items()
    yield "INSERT_EVENT", tx.INSERT_EVENT
    for name, value in vars(store_move_record).items():
        if isinstance(value, Statement):
            yield f"store_moves.{name}", value
    for name, numbered in find_declarations(GaplessInsert).items():
        yield f"{name}.combined", numbered.combined
    for name, table in find_declarations(StatefulTable).items():
        for suffix, statement in iter_state_table_statements(table):
            yield f"{name}.{suffix}", statement
    for item in tables():
        yield f"{item.name}.rows", insert_statement(item.name, item.names, "")


def iter_state_table_statements(table: StatefulTable[object]) -> Iterator[tuple[str, Statement]]:
    columns = next(item.names for item in tables() if item.name == table.table)
    columns = [name for name in columns if name != "state"]
    kinds = tuple((name, "text") for name in columns)
    writable = tuple(name for name in columns if name in table.writable)
    yield "change_events", _build_events_statement(table)
    yield "import_events", _import_events(table.transitions.kind)
    for engine in ENGINES:
        yield f"insert_many.{engine}", _insert_many(table, kinds, (), "", engine)
        for begin in table.transitions.initial_states:
            yield f"{begin}.{engine}", table.insert_query(dict.fromkeys(columns), "", begin, engine)
        for verb in table.transitions.verbs:
            for returns_row in (True, False):
                move = _update_query(table, verb, writable, True, returns_row, engine)
                yield f"{verb}.{engine}.{returns_row}", move
            yield f"{verb}_many.{engine}", _update_many(table, verb, writable, engine)


@cache
def writing_statements() -> dict[str, Statement]:
    return {name: item for name, item in iter_writing_statements() if not item.reads}


def test_statements_of_every_kind_exist() -> None:
    names = {"mail.ADD_LETTER_CHAIN", "mail.LETTERS.ack.postgres.True", "sessions.APPEND.combined"}
    assert names <= {*writing_statements()}


def test_every_stored_parameter_has_a_policy() -> None:
    for name, statement in writing_statements().items():
        try:
            searched = statement.redactable_params
        except LookupError as error:
            pytest.fail(f"{name}: {error}")
        assert {*statement.policies, *searched} <= {*statement.sqlite.names}, name


def test_every_derived_column_exists() -> None:
    columns = {f"{table.name}.{column}" for table in tables() for column in table.names}
    for name, statement in writing_statements().items():
        result = find_parameter_columns(statement.text)
        derived = set().union(*result.columns.values(), *result.row_columns.values())
        assert derived <= columns, name


def test_renaming_a_parameter_keeps_its_policy() -> None:
    for name, statement in writing_statements().items():
        params = {*re.findall(r"(?<!:):([a-z_]\w*)", statement.text)}
        renamed = Statement(
            re.sub(
                r"(?<!:):([a-z_]\w*)", lambda match: f":{rename_param(match[1])}", statement.text
            ),
            policies={rename_param(item): policy for item, policy in statement.policies.items()},
        )
        assert {item: stored.policy for item, stored in renamed.redactable_params.items()} == {
            rename_param(item) if item in params else item: stored.policy
            for item, stored in statement.redactable_params.items()
        }, name


def rename_param(name: str) -> str:
    """Return a parameter name that used to disable the secret scan."""
    return f"{name}_at"


def test_secret_is_redacted_whatever_the_parameter_name(store: Corral) -> None:
    session = store.sessions.open(title="a title")
    for name in ("title", "id", "cursor", "created_at", "key"):
        rename = Statement(f"UPDATE sessions SET title = :{name} WHERE id = '{session.id}'")
        write(store, lambda tx, name=name, sql=rename: tx.run(sql, **{name: f"see {KEY}"}))
        assert store.sessions.get(session.id).title == "see [redacted]"


def test_secret_is_rejected_whatever_the_parameter_name(store: Corral) -> None:
    agent = store.agents.create("ada", command="true")
    for name in ("name", "id", "cursor", "created_at", "body"):
        rename = Statement(f"UPDATE agents SET name = :{name} WHERE id = '{agent.id}'")
        with pytest.raises(Invalid) as caught:
            write(store, lambda tx, name=name, sql=rename: tx.run(sql, **{name: KEY}))
        assert caught.value.details["field"] == "name"
    assert store.agents.get(agent.id).name == "ada"


def test_parameter_of_unknown_use_is_not_stored(store: Corral) -> None:
    statement = Statement("""
        INSERT INTO retros (session_id, number, body, created_at)
        SELECT 'ses_1', 1, given.text, 0 FROM (SELECT :text AS text) AS given
    """)
    with pytest.raises(LookupError, match="No redaction policy for text"):
        write(store, lambda tx: tx.run(statement, text='"x"'))


def test_policy_of_the_statement_takes_precedence() -> None:
    text = "UPDATE sessions SET title = :title WHERE id = :id"
    assert Statement(text, policies={"title": Policy.EXEMPT}).redactable_params == {}
    assert Statement(text, policies={"id": Policy.REJECTED}).redactable_params.keys() == {
        "title",
        "id",
    }
