"""One connection to a SQLite file."""

from collections.abc import Sequence
from contextlib import suppress

import apsw

from corral.db.dialect import Engine
from corral.db.sqlite_deferred_indexes import EVERY, file_behind
from corral.db.statement import Params, Row, Statement
from corral.db.tx import NOTE

_NOTE = NOTE.sqlite.text


def damaged(error: UnicodeDecodeError) -> apsw.Error:
    """What a text is that nobody can have put: SQLite itself keeps any bytes as one."""
    return apsw.CorruptError(f"it holds text that is not UTF-8, as {error.object[:20]!r}")


class Link:
    """All rows of a statement are fetched at once, so one cursor serves for all of them."""

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
            if statement.unread:
                return self._number()
            rows: list[Row] = self._fetch()
        except UnicodeDecodeError as error:
            raise damaged(error) from None
        return rows

    def execute_each(self, statement: Statement, given: Sequence[Params]) -> list[list[Row]]:
        text, _, values = statement.sqlite
        if not statement.unread:
            self._run_each(text, map(values, given))
            return []
        run, number = self.run, self._number
        answers = []
        for params in given:
            run(text, values(params))
            answers.append(number())
        return answers

    def _number(self) -> list[Row]:
        """As an unread statement answers; no row when none was written."""
        return [(self.connection.last_insert_rowid(),)] if self.connection.changes() else []

    def note(self, values: Row) -> None:
        self.run(_NOTE, values)
        if self.connection.last_insert_rowid() % EVERY == 0:
            file_behind(self.run)

    def noted(self, count: int) -> None:
        # Whether a number that is a multiple was among the last that were given.
        if self.connection.last_insert_rowid() % EVERY < count:
            file_behind(self.run)

    def begin(self) -> None:
        self.run("BEGIN IMMEDIATE")

    def roll_back(self) -> None:
        if self.connection.in_transaction:
            # After some failures (a full disk) SQLite has rolled back by itself.
            with suppress(apsw.Error):
                self.run("ROLLBACK")
