"""PostgreSQL's errors as sentences that name the next step."""

import psycopg
from psycopg import errors as pg

from corral.db.write_fence import refusal
from corral.kernel.errors import Conflict, CorralError, StoreUnavailable

TOO_MANY_CLIENTS = "too_many_clients"

# libpq gives no SQLSTATE for a refused connection. These are the messages of 53300.
_FULL = ("too many clients", "connection slots are reserved", "too many connections for")


def unreachable(url: str, cause: Exception) -> StoreUnavailable:
    if getattr(cause, "sqlstate", None) == "53300" or any(text in str(cause) for text in _FULL):
        return no_free_connection(url, first_line(cause))
    if isinstance(cause, pg.IdleInTransactionSessionTimeout):
        return StoreUnavailable(
            f"PostgreSQL at {url} ended a transaction that was idle for too long (a stopped "
            "process?). Nothing was saved; try again.",
            reason="idle_transaction",
            url=url,
        )
    if "does not exist" in str(cause) and "database" in str(cause):
        return StoreUnavailable(
            f"There is no database at {url}; make it with `createdb`.", reason="missing", url=url
        )
    return StoreUnavailable(
        f"PostgreSQL at {url} cannot be reached{_why(cause, url)}; see that the server runs and "
        "that the URL is right.",
        reason="unreachable",
        url=url,
    )


def no_free_connection(url: str, why: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"The server of {url} has no free connection ({why}); try again, end programs that hold "
        "connections, or raise max_connections (of a pooler: its pool size).",
        reason="too_many_clients",
        url=url,
    )


def _why(cause: Exception, url: str) -> str:
    """The driver's own words, unless they name another host than we do: then it took a part of the
    password for one."""
    said = first_line(cause)
    host = url.rpartition("@")[2].partition("/")[0].partition(":")[0]
    return f" ({said})" if "@" not in said and (host in said or "host" not in said) else ""


def unknown_outcome(url: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"PostgreSQL at {url} went away at the moment of saving; look whether it was saved before "
        "you do it again.",
        reason="unknown_outcome",
        url=url,
    )


def translate(error: psycopg.Error, url: str) -> CorralError:
    match error:
        case pg.DiskFull():
            return StoreUnavailable(
                f"The server of {url} has no room left; free some space and try again. Nothing was "
                "changed.",
                reason="full",
                url=url,
            )
        case pg.SerializationFailure() | pg.DeadlockDetected():
            return StoreUnavailable(
                f"Another transaction changed the same rows of {url}; nothing of this one was "
                "kept, try again.",
                reason="locked",
                url=url,
            )
        case pg.ReadOnlySqlTransaction():
            return StoreUnavailable(
                f"The server of {url} is read-only (a standby?); use the primary's URL.",
                reason="unwritable",
                url=url,
            )
        case pg.InsufficientPrivilege():
            return StoreUnavailable(
                f"{url} refuses this user: {first_line(error)}; grant it what it needs.",
                reason="unwritable",
                url=url,
            )
        case pg.UndefinedColumn() | pg.DuplicateTable():
            return StoreUnavailable(
                f"{url} holds tables of another program ({first_line(error)}); give Corral a "
                "database of its own.",
                reason="foreign",
                url=url,
            )
        case pg.IntegrityError():
            return Conflict(
                f"The store refused it: {first_line(error)}.",
                constraint=error.diag.constraint_name,
            )
        case pg.RaiseException() if moved := refusal(str(error), url):
            return moved
        case _:
            return StoreUnavailable(
                f"PostgreSQL refused: {first_line(error)} (store {url}). This should not happen; "
                "please report it.",
                reason="engine",
                url=url,
            )


def first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")


def without_password(url: str) -> str:
    """The URL as people may see it: all between the user's name and the last @ is left out."""
    scheme, _, rest = url.partition("://")
    credentials, at, host = rest.rpartition("@")
    return f"{scheme}://{credentials.partition(':')[0]}{at}{host.partition('?')[0]}"


def without_secrets(url: str) -> str:
    """The URL with all that is needed to connect, but for passwords."""
    query = url.partition("?")[2]
    kept = [part for part in query.split("&") if part and "password" not in part.lower()]
    return without_password(url) + (f"?{'&'.join(kept)}" if kept else "")
