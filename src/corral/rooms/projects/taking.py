"""Projects of another program: a directory is one project, whoever knew it first."""

from collections.abc import Sequence
from typing import Any

from corral.db.moves_many import import_many
from corral.db.tx import Tx
from corral.rooms.projects import sql


def take_in(tx: Tx, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Keep projects; of those whose directory is one already, the id that it has. That one stays
    as it is."""
    ids = []
    for row in rows:
        found = tx.one(sql.BY_DIR, dir=row["dir"])
        ids.append(found.id if found else import_many(tx, sql.PROJECTS, [row])[0])
    return [id for id in ids if id]
