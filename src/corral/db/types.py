"""Types that both engines and their callers share."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from corral.db.statement import Row

ReadTable = Callable[[str, list[str], str], Iterator[Row]]
"""Iterates over the rows of a table; the arguments are its name, columns and key."""
Probe = Callable[[str], None]
"""Called at named points of a commit; crash tests stop the process there."""
ProgressCallback = Callable[[str, int, int], None]
"""Called during a long operation with the current part, the amount done and the total."""


def no_progress(part: str, done: int, total: int) -> None:
    """Ignore progress."""


MAX_LISTEN_SECONDS = 1.0
"""Seconds; bounds a wait of a `Listener` in case a wake-up is missed."""


class Listener(Protocol):
    """Wakes up when another commit may have changed the result of a query.

    Open it before the query: every commit after the opening, or after the last `wait`, makes the
    next `wait` return.
    """

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for a commit; return False if the time ran out."""
        ...

    def pause(self) -> None:
        """Use no resources until `resume`."""
        ...

    def resume(self) -> None:
        """Listen again, for commits from now on."""
        ...

    def close(self) -> None: ...


class Finding(msgspec.Struct, frozen=True):
    """The result of one check of `corral doctor`."""

    check: str
    state: str
    """ok, warning or broken."""
    message: str


class SchemaObject(NamedTuple):
    """The identity of one object of a schema."""

    kind: str
    """table, index, trigger, view; on PostgreSQL also constraint and rule."""
    name: str
    table: str
    """The table that it belongs to; for a table or view, its own name."""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (f" on {self.table}" if self.table != self.name else "")


SchemaObjects = Mapping[SchemaObject, str]
"""All objects of a schema, each with its definition."""


class QueryResult(msgspec.Struct, frozen=True):
    """The rows of a read-only query."""

    columns: list[str]
    rows: list[list[Any]]
    truncated: bool
    """Whether the query had more rows."""
