"""Record the SQL that an operation sends to its engine."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import apsw
import pytest

from corral.api import Corral
from corral.db import postgres, sqlite
from corral.db.statement import Params, Row, Statement


class Call(NamedTuple):
    """A statement of a concept with its parameters."""

    statement: Statement
    params: Params


class Trace:
    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.texts: list[str] = []
        """Every text that was sent to the engine, including BEGIN and COMMIT."""

    @property
    def transactions(self) -> int:
        """The number of transactions; a statement outside BEGIN and COMMIT counts as one."""
        count, inside = 0, False
        for word in self.words:
            if not inside:
                count += 1
            inside = word == "BEGIN" or (inside and word not in ("COMMIT", "ROLLBACK"))
        return count

    @property
    def words(self) -> list[str]:
        """The first word of each statement; PRAGMAs change the connection and not the store."""
        words = [text.split()[0].upper() for text in self.texts]
        return [word for word in words if word != "PRAGMA"]

    @property
    def statements(self) -> int:
        """The number of statements except BEGIN and COMMIT."""
        return len([word for word in self.words if word not in ("BEGIN", "COMMIT", "ROLLBACK")])


@contextmanager
def trace_statements(store: Corral, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trace]:
    """Record the statements of the block. The store must have been read and written before."""
    trace = Trace()
    with monkeypatch.context() as patch:
        if store.db.engine == "sqlite":
            _patch_sqlite(store._database, trace, patch)
        else:
            _patch_postgres(trace, patch)
        yield trace
    if store.db.engine == "sqlite":
        for connection in _connections(store._database):
            connection.trace_v2(0, None)


def _connections(database: Any) -> list[apsw.Connection]:
    shared = database._shared
    assert shared.writer is not None, "the store must have been written once"
    return [link.connection for link in [*shared.readers, shared.writer]]


def _patch_sqlite(database: Any, trace: Trace, patch: pytest.MonkeyPatch) -> None:
    execute = sqlite.SqliteConnection.execute

    def recorded(self: sqlite.SqliteConnection, statement: Statement, params: Params) -> list[Row]:
        trace.calls.append(Call(statement, dict(params)))
        return execute(self, statement, params)

    execute_batch = sqlite.SqliteConnection.execute_batch

    def recorded_each(
        self: sqlite.SqliteConnection, statement: Statement, batch: Sequence[Params]
    ) -> list[list[Row]]:
        trace.calls += [Call(statement, dict(params)) for params in batch]
        return execute_batch(self, statement, batch)

    patch.setattr(sqlite.SqliteConnection, "execute", recorded)
    patch.setattr(sqlite.SqliteConnection, "execute_batch", recorded_each)
    for connection in _connections(database):
        # SQLite reports every statement that it starts.
        connection.trace_v2(apsw.SQLITE_TRACE_STMT, lambda event: trace.texts.append(event["sql"]))


def _patch_postgres(trace: Trace, patch: pytest.MonkeyPatch) -> None:
    execute, item, run = (
        postgres.PostgresConnection.execute,
        postgres.PostgresConnection.execute_batch,
        postgres.PostgresConnection.run,
    )
    current = threading.get_ident()

    def recorded(
        self: postgres.PostgresConnection, statement: Statement, params: Params
    ) -> list[Row]:
        trace.calls.append(Call(statement, dict(params)))
        trace.texts.append(statement.postgres.text)
        return execute(self, statement, params)

    def recorded_each(
        self: postgres.PostgresConnection, statement: Statement, batch: Sequence[Params]
    ) -> list[list[Row]]:
        trace.calls += [Call(statement, dict(params)) for params in batch]
        trace.texts += [statement.postgres.text for _ in batch]
        return item(self, statement, batch)

    def recorded_run(self: postgres.PostgresConnection, text: str) -> list[Row]:
        # Listeners use their own thread, and a connection is set up only once.
        if threading.get_ident() == current:
            trace.texts.append(text)
        return run(self, text)

    patch.setattr(postgres.PostgresConnection, "execute", recorded)
    patch.setattr(postgres.PostgresConnection, "execute_batch", recorded_each)
    patch.setattr(postgres.PostgresConnection, "run", recorded_run)
