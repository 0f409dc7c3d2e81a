"""Queries of runs that several workflows use."""

from typing import TYPE_CHECKING

from corral.domain.runs import ops
from corral.domain.runs.model import Run

if TYPE_CHECKING:
    from corral.db.database import Database


def get_run(database: "Database", id: str) -> Run:
    """Return a run; raises NotFound."""
    return database.read(lambda tx: ops.get(tx, id))
