"""Imported projects. A directory is one project, whether it was imported or registered."""

from collections.abc import Sequence
from typing import Any

from corral.db.bulk_insert import ImportedRow
from corral.db.bulk_transitions import import_many
from corral.db.tx import Tx
from corral.domain.projects import sql

KNOWN = "its directory is registered already; that project is not changed"


def insert_projects(tx: Tx, rows: Sequence[dict[str, Any]]) -> list[ImportedRow]:
    """Insert projects. A project whose directory is registered already is not changed."""
    placed = []
    for row in rows:
        existing = tx.first(sql.BY_DIR, dir=row["dir"])
        if existing is not None:
            placed.append(ImportedRow(existing.id, KNOWN))
        else:
            placed.append(ImportedRow(import_many(tx, sql.PROJECTS, [row])[0]))
    return placed
