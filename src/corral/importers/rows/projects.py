"""Projects of another program: a directory is one project, whoever knew it first."""

from collections.abc import Sequence
from typing import Any

from corral.db.bulk_insert import Placed
from corral.db.bulk_transitions import import_many
from corral.db.tx import Tx
from corral.domain.projects import sql

KNOWN = "its directory is registered here already; that project is not changed"


def take_in(tx: Tx, rows: Sequence[dict[str, Any]]) -> list[Placed]:
    """Keep projects. A project whose directory is registered already is not changed."""
    placed = []
    for row in rows:
        found = tx.one(sql.BY_DIR, dir=row["dir"])
        if found is not None:
            placed.append(Placed(found.id, KNOWN))
        else:
            placed.append(Placed(import_many(tx, sql.PROJECTS, [row])[0]))
    return placed
