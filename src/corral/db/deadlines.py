"""Rows that wait for somebody in one state, and end at a deadline if nobody came."""

from typing import Generic, TypeVar

from corral.db.statement import Query, Statement
from corral.db.transitions import StateTable

R = TypeVar("R")


class Deadlines(Generic[R]):
    """The statements about the rows of a table that wait: `state` is the one in which they do, and
    `whose` the column of whoever waits for them. Each row has `deadline_at` and `project_id`."""

    def __init__(self, table: StateTable[R], *, state: str, whose: str) -> None:
        waiting = f"FROM {table.table} WHERE state = '{state}'"
        self.due = Query(
            table.record,
            f"""SELECT {table.columns} {waiting} AND deadline_at <= :now
            ORDER BY deadline_at, {table.key} LIMIT :limit {{skip_locked}}""",
        )
        self.next = Statement(f"SELECT min(deadline_at) {waiting}")
        self.count_of = Statement(f"SELECT count(*) {waiting} AND {whose} = :whose")
        self.of_project = Statement(f"SELECT {table.key} {waiting} AND project_id = :project_id")
