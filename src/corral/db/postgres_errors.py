"""PostgreSQL's errors as CorralErrors."""

import psycopg
from psycopg import errors as pg

from corral.db.write_guard import write_guard_error
from corral.kernel.errors import Conflict, CorralError, StoreUnavailable

TOO_MANY_CLIENTS = "too_many_clients"

# libpq gives no SQLSTATE for a refused connection. These are the messages of 53300.
_FULL_MESSAGES = ("too many clients", "connection slots are reserved", "too many connections for")


def unreachable_error(url: str, cause: Exception) -> StoreUnavailable:
    """Return the error for a connection that broke or could not be opened."""
    is_full = any(text in str(cause) for text in _FULL_MESSAGES)
    if getattr(cause, "sqlstate", None) == "53300" or is_full:
        return full_server_error(url, extract_first_line(cause))
    if isinstance(cause, pg.IdleInTransactionSessionTimeout):
        return StoreUnavailable(
            f"PostgreSQL at {url} ended a transaction that was idle for too long (a stopped "
            "process?). Nothing was saved; try again.",
            reason="idle_transaction",
            url=url,
        )
    if "does not exist" in str(cause) and "database" in str(cause):
        return StoreUnavailable(
            f"The database at {url} does not exist. Create it with `createdb`.",
            reason="missing",
            url=url,
        )
    return StoreUnavailable(
        f"Cannot reach PostgreSQL at {url}{_quote_driver_message(cause, url)}. Check that the "
        "server runs and that the URL is right.",
        reason="unreachable",
        url=url,
    )


def full_server_error(url: str, why: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"The server of {url} has no free connection ({why}). Try again, end programs that hold "
        "connections, or raise max_connections (of a pooler: its pool size).",
        reason="too_many_clients",
        url=url,
    )


def _quote_driver_message(cause: Exception, url: str) -> str:
    """Return the driver's message in brackets, unless it may contain a part of the password.

    The driver takes a part of a malformed URL for the host, and quotes it.
    """
    message = extract_first_line(cause)
    host = url.rpartition("@")[2].partition("/")[0].partition(":")[0]
    is_safe = "@" not in message and (host in message or "host" not in message)
    return f" ({message})" if is_safe else ""


def unknown_outcome_error(url: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"The connection to PostgreSQL at {url} broke during the commit. Check whether the change "
        "was saved before you try again.",
        reason="unknown_outcome",
        url=url,
    )


def translate(error: psycopg.Error, url: str) -> CorralError:
    """Return the CorralError for an error of PostgreSQL."""
    match error:
        case pg.DiskFull():
            return StoreUnavailable(
                f"The server of {url} has no disk space left. Free some space and try again. "
                "Nothing was changed.",
                reason="full",
                url=url,
            )
        case pg.SerializationFailure() | pg.DeadlockDetected():
            return StoreUnavailable(
                f"Another transaction changed the same rows of {url}. Nothing was saved; try "
                "again.",
                reason="locked",
                url=url,
            )
        case pg.ReadOnlySqlTransaction():
            return StoreUnavailable(
                f"The server of {url} is read-only (a standby?). Use the URL of the primary.",
                reason="unwritable",
                url=url,
            )
        case pg.InsufficientPrivilege():
            return StoreUnavailable(
                f"The database user lacks a privilege on {url}: {extract_first_line(error)}. "
                "Grant it.",
                reason="unwritable",
                url=url,
            )
        case pg.UndefinedColumn() | pg.DuplicateTable():
            return StoreUnavailable(
                f"{url} contains tables of another program ({extract_first_line(error)}). Use a "
                "separate database for Corral.",
                reason="foreign",
                url=url,
            )
        case pg.IntegrityError():
            return Conflict(
                f"The change violates a constraint of the store: {extract_first_line(error)}.",
                constraint=error.diag.constraint_name,
            )
        case pg.RaiseException() if moved := write_guard_error(str(error), url):
            return moved
        case _:
            return StoreUnavailable(
                f"Unexpected error of PostgreSQL: {extract_first_line(error)} (store {url}). "
                "Please report it.",
                reason="engine",
                url=url,
            )


def extract_first_line(error: Exception) -> str:
    """Return the first line of an error's message, without its full stop."""
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def remove_password(url: str) -> str:
    """Return the URL for display: without everything between the user name and the last @."""
    scheme, _, rest = url.partition("://")
    credentials, at, host = rest.rpartition("@")
    return f"{scheme}://{credentials.partition(':')[0]}{at}{host.partition('?')[0]}"


def remove_secrets(url: str) -> str:
    """Return the URL with all connection parameters except passwords."""
    query = url.partition("?")[2]
    kept = [part for part in query.split("&") if part and "password" not in part.lower()]
    return remove_password(url) + (f"?{'&'.join(kept)}" if kept else "")
