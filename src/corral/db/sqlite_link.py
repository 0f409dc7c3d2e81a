"""One connection to a SQLite file."""

from contextlib import suppress

import apsw

from corral.db.dialect import Engine
from corral.db.statement import Params, Row, Statement


class Link:
    engine: Engine = "sqlite"

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection
        self.run = connection.execute

    def execute(self, statement: Statement, params: Params) -> list[Row]:
        rows: list[Row] = self.run(statement.sqlite, params).fetchall()
        return rows

    def begin(self) -> None:
        self.run("BEGIN IMMEDIATE")

    def roll_back(self) -> None:
        if self.connection.in_transaction:
            # After some failures (a full disk) SQLite has rolled back by itself.
            with suppress(apsw.Error):
                self.run("ROLLBACK")
