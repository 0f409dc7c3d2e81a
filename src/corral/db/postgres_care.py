"""Looking into a PostgreSQL store: what does a person's query give?"""

from typing import Any

import psycopg
from psycopg import errors as pg

from corral.db.database import Table
from corral.db.postgres_errors import first_line
from corral.db.statement import Row
from corral.kernel.errors import Invalid

_NO_READING = (pg.ReadOnlySqlTransaction, pg.InvalidCursorDefinition, pg.FeatureNotSupported)


def run_query(
    connection: psycopg.Connection[Row], sql: str, *, limit: int, timeout_ms: int
) -> Table:
    """One reading statement on a connection that is used for nothing else."""
    try:
        connection.execute("BEGIN READ ONLY")
        connection.execute(f"SET LOCAL statement_timeout = {int(timeout_ms)}".encode())
        # A cursor on the server: it takes a single statement, and gives no more than is asked for.
        with connection.cursor("person") as cursor:
            cursor.execute(sql.encode())
            columns = [column.name for column in cursor.description or []]
            rows = [[plain(value) for value in row] for row in cursor.fetchmany(limit + 1)]
    except pg.QueryCanceled:
        raise Invalid(
            f"The query took more than {timeout_ms} ms; narrow it, or give it more time with "
            "--timeout.",
            timeout_ms=timeout_ms,
        ) from None
    except _NO_READING:
        raise Invalid(
            "Only reading is allowed here; change things by Corral's own commands."
        ) from None
    except (psycopg.ProgrammingError, psycopg.DataError) as error:
        raise Invalid(f"The query is wrong: {first_line(error)}.") from None
    return Table(columns, rows[:limit], truncated=len(rows) > limit)


def plain(value: Any) -> Any:
    """JSON comes as bytes from our connections, everybody else wants text; what is no text, in hex;
    types of PostgreSQL's own as it writes them."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    return value if isinstance(value, str | int | float | bool | None) else str(value)
