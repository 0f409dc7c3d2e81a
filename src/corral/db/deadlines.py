"""Statements for tables whose rows wait in one state until a deadline."""

from typing import Generic, TypeVar

from corral.db.stateful_table import StatefulTable
from corral.db.statement import Query, Statement

R = TypeVar("R")


class Deadlines(Generic[R]):
    """The statements for the waiting rows of a table.

    `state` is the state in which a row waits, and `owner` the column of the party that asked. The
    table must have the columns `deadline_at` and `project_id`.
    """

    def __init__(self, table: StatefulTable[R], *, state: str, owner: str) -> None:
        waiting = f"FROM {table.table} WHERE state = '{state}'"
        # {skip_locked}: concurrent callers expire different rows instead of blocking each other.
        self.due = Query(
            table.record,
            f"""SELECT {table.columns} {waiting} AND deadline_at <= :now
            ORDER BY deadline_at, {table.key} LIMIT :limit {{skip_locked}}""",
        )
        self.next = Statement(f"SELECT min(deadline_at) {waiting}")
        self.count_of = Statement(f"SELECT count(*) {waiting} AND {owner} = :owner")
        self.of_project = Statement(f"SELECT {table.key} {waiting} AND project_id = :project_id")
