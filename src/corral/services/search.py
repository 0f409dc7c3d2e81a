"""Full-text search that indexes new turns first."""

from typing import TYPE_CHECKING

from corral.domain.search import ops
from corral.domain.search.model import Hit
from corral.kernel.pagination import Page
from corral.services.store.write_before_read import try_write_before_read

if TYPE_CHECKING:
    from corral.db.database import Database

MAX_BATCHES = 20  # of 1,000 turns: the most that one search indexes
INDEX_SECONDS = 10.0  # maximum wait for thousands of turns to be indexed


def find(
    database: "Database",
    text: str,
    *,
    kind: str | None = None,
    project: str | None = None,
    limit: int = 20,
    after: str | None = None,
) -> Page[Hit]:
    """Find passages; see `Search.find`."""

    def search(after: str | None) -> Page[Hit]:
        return database.read(
            lambda tx: ops.find(tx, text, kind=kind, project=project, limit=limit, after=after)
        )

    def catch_up() -> int:
        return index_turns(database)

    hits = search(after)
    if after is None and _is_behind(database):
        # Bounded, because the store may not be writable.
        indexed = try_write_before_read(database, "search", catch_up, seconds=INDEX_SECONDS)
        if indexed:
            return search(None)
    return hits


def index_turns(database: "Database", *, batches: int = MAX_BATCHES) -> int:
    """Index new turns in short transactions; returns their number."""
    indexed = 0
    for _ in range(batches):
        count = database.write(lambda tx: ops.index_turns(tx, limit=ops.BATCH_SIZE))
        indexed += count
        if not count or not _is_behind(database):
            break
    return indexed


def _is_behind(database: "Database") -> bool:
    return bool(database.read(ops.count_unindexed, mode="one"))
