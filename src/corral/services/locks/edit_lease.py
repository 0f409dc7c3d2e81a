"""Locks that hooks acquire for a file that is about to be edited."""

from typing import TYPE_CHECKING

from corral.domain.locks import queries
from corral.domain.locks.model import Lock

if TYPE_CHECKING:
    from corral.db.database import Database


def acquire_for_edit(
    database: "Database", project: str, path: str, agent: str, *, run: str | None
) -> Lock | None:
    """Lock a file if `locks.edit_lease_ms` is on; see `Guard.acquire_for_edit`."""
    ttl_ms = database.read(lambda tx: queries.get_edit_lease_ms(tx, project, agent), mode="one")
    if not ttl_ms:
        return None
    # Hooks run at every tool call, mostly without this setting.
    from corral.services.locks.acquisition import acquire

    return acquire(database, project, path, agent, ttl_ms=ttl_ms, run=run, reason="an edit")
