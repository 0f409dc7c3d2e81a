"""One connection to a SQLite file."""

from collections.abc import Sequence
from contextlib import suppress

import apsw

from corral.db.dialect import Engine
from corral.db.sqlite_deferred_indexes import FILL_INTERVAL, fill_deferred_indexes
from corral.db.statement import Params, Row, Statement
from corral.db.tx import INSERT_EVENT

_INSERT_EVENT = INSERT_EVENT.sqlite.text


def invalid_text_error(error: UnicodeDecodeError) -> apsw.Error:
    """Return the error for stored text that is not UTF-8: it counts as corruption.

    Corral never writes such text, but SQLite accepts any bytes as text.
    """
    return apsw.CorruptError(f"it holds text that is not UTF-8, as {error.object[:20]!r}")


class SqliteConnection:
    """Runs statements; fetches all rows of a statement at once, so one cursor serves all."""

    engine: Engine = "sqlite"

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection
        cursor = connection.cursor()
        self.run = cursor.execute
        self._run_each = cursor.executemany
        self._fetch = cursor.fetchall

    def execute(self, statement: Statement, params: Params) -> list[Row]:
        text, _, values = statement.sqlite
        try:
            self.run(text, values(params))
            if statement.returns_key_only:
                return self._read_inserted_number()
            rows: list[Row] = self._fetch()
        except UnicodeDecodeError as error:
            raise invalid_text_error(error) from None
        return rows

    def execute_batch(self, statement: Statement, param_sets: Sequence[Params]) -> list[list[Row]]:
        text, _, values = statement.sqlite
        if not statement.returns_key_only:
            self._run_each(text, map(values, param_sets))
            return []
        run, inserted_number = self.run, self._read_inserted_number
        results = []
        for params in param_sets:
            run(text, values(params))
            results.append(inserted_number())
        return results

    def _read_inserted_number(self) -> list[Row]:
        """Return the row number of a statement that returns only a key; no row if none changed."""
        return [(self.connection.last_insert_rowid(),)] if self.connection.changes() else []

    def insert_event(self, values: Row) -> None:
        self.run(_INSERT_EVENT, values)
        if self.connection.last_insert_rowid() % FILL_INTERVAL == 0:
            fill_deferred_indexes(self.run)

    def count_inserted_events(self, count: int) -> None:
        # Whether one of the last `count` numbers is a multiple of the interval.
        if self.connection.last_insert_rowid() % FILL_INTERVAL < count:
            fill_deferred_indexes(self.run)

    def close(self) -> None:
        self.connection.close()

    def begin(self) -> None:
        self.run("BEGIN IMMEDIATE")

    def roll_back(self) -> None:
        if self.connection.in_transaction:
            # After some errors (a full disk) SQLite has already rolled back.
            with suppress(apsw.Error):
                self.run("ROLLBACK")
