"""SQLite indexes that are filled in batches, behind the writer.

A commit writes every page that it touched to the log, so an index entry costs as much as a row. Two
indexes over the fastest growing tables serve only occasional queries. They are tables of their own,
and every FILL_INTERVAL events the new rows are sorted into them. Queries read a view that joins the
index with the few hundred rows that are not indexed yet, so no row is ever missing. PostgreSQL has
ordinary indexes instead.
"""

from collections.abc import Callable
from typing import Any

import apsw

FILL_INTERVAL = 256
"""Number of events between two batches; each new message writes one event."""

DEFERRED_INDEXES = {"events": "subject", "letters": "mailbox"}
"""Table and indexed column. `db/dialect.py` creates the index and its view."""


def fill_deferred_indexes(run: Callable[[str], Any]) -> None:
    """Add all rows that are not indexed yet to the indexes, in the open transaction."""
    for table, column in DEFERRED_INDEXES.items():
        # Sorted, so that each index page is written once.
        run(
            f"INSERT INTO {table}_by_{column} ({column}, seq) SELECT {column}, seq FROM {table}"
            f" WHERE seq > {_select_indexed_until(table)} ORDER BY {column}, seq"
        )
        run(
            f"UPDATE deferred_indexes SET seq = (SELECT coalesce(max(seq), 0) FROM {table})"
            f" WHERE name = '{table}'"
        )


def find_mismatched_indexes(connection: apsw.Connection) -> list[str]:
    """List the indexes that do not hold exactly the rows that count as indexed."""
    return [
        f"{table}_by_{column}"
        for table, column in DEFERRED_INDEXES.items()
        # Indexed rows that are missing from the index:
        if connection.execute(
            f"SELECT {column}, seq FROM {table} WHERE seq <= {_select_indexed_until(table)}"
            f" EXCEPT SELECT {column}, seq FROM {table}_by_{column}"
        ).fetchall()
        # Index entries without a row:
        or connection.execute(
            f"SELECT {column}, seq FROM {table}_by_{column}"
            f" EXCEPT SELECT {column}, seq FROM {table}"
        ).fetchall()
    ]


def _select_indexed_until(table: str) -> str:
    return f"(SELECT seq FROM deferred_indexes WHERE name = '{table}')"
