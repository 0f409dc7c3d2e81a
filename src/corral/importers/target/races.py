"""Imported attempts of races, and the winners."""

from collections.abc import Sequence
from typing import Any

from corral.db.bulk_insert import insert_many
from corral.db.bulk_transitions import import_many
from corral.db.statement import encode_rows
from corral.db.tx import Tx
from corral.domain.races import sql


def insert_attempts(tx: Tx, rows: Sequence[dict[str, Any]]) -> list[str | None]:
    """Insert attempts with the races of their rounds."""
    owners = tx.run(sql.ROUND_OWNERS, keys_=encode_rows(sorted({row["round_id"] for row in rows})))
    races = {round_id: (race_id, project_id) for round_id, race_id, project_id in owners}
    for row in rows:
        row["race_id"], row["project_id"] = races[row["round_id"]]
    return import_many(tx, sql.ATTEMPTS, rows)


def insert_winners(tx: Tx, rows: Sequence[dict[str, Any]]) -> None:
    """Insert the choices, and set the winners of their rounds."""
    for row in rows:
        tx.run(
            sql.SET_IMPORTED_WINNER,
            id=row["round_id"],
            attempt=row["attempt_id"],
            by=row["selected_by"],
        )
    insert_many(tx, "selections", rows, on_conflict="(round_id, number)")
