"""Indexes of SQLite that are filled behind the writer, a batch at a time.

A commit writes every page that it touched, whole, to the log: an entry in an index costs as much as
the row. So two indexes over the tables that grow with every call, which serve only questions that
people ask now and then, are tables of their own, and every so many events what has come since is
sorted into them. A question asks a view, which reads what is filed and, of the table itself, the
few hundred rows that are not: nothing is ever missing. PostgreSQL has plain indexes in their place.
"""

from collections.abc import Callable
from typing import Any

import apsw

EVERY = 256
"""After so many events; each letter that is put writes one."""

FILED = {"events": "subject", "letters": "mailbox"}
"""Table and column. The index and its view are made in `db/dialect.py`."""


def file_behind(run: Callable[[str], Any]) -> None:
    """Sort all that is not filed yet into the indexes, in the open transaction."""
    for table, column in FILED.items():
        run(
            f"INSERT INTO {table}_by_{column} ({column}, seq) SELECT {column}, seq FROM {table}"
            f" WHERE seq > {_filed_until(table)} ORDER BY {column}, seq"
        )
        run(
            f"UPDATE filed SET seq = (SELECT coalesce(max(seq), 0) FROM {table})"
            f" WHERE name = '{table}'"
        )


def wrongly_filed(connection: apsw.Connection) -> list[str]:
    """The indexes that do not hold exactly the rows that are said to be filed."""
    return [
        f"{table}_by_{column}"
        for table, column in FILED.items()
        if connection.execute(
            f"SELECT {column}, seq FROM {table} WHERE seq <= {_filed_until(table)}"
            f" EXCEPT SELECT {column}, seq FROM {table}_by_{column}"
        ).fetchall()
        or connection.execute(
            f"SELECT {column}, seq FROM {table}_by_{column}"
            f" EXCEPT SELECT {column}, seq FROM {table}"
        ).fetchall()
    ]


def _filed_until(table: str) -> str:
    return f"(SELECT seq FROM filed WHERE name = '{table}')"
