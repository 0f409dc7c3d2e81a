"""Attempts of another program's races, and which of them won."""

from collections.abc import Sequence
from typing import Any

from corral.db.bulk_insert import put_many
from corral.db.bulk_transitions import encode_rows, import_many
from corral.db.tx import Tx
from corral.domain.races import sql


def take_in_attempts(tx: Tx, rows: Sequence[dict[str, Any]]) -> list[str | None]:
    """Keep attempts in the races that their rounds belong to."""
    found = tx.run(sql.RACES_OF, keys_=encode_rows(sorted({row["round_id"] for row in rows})))
    races = {round_id: (race_id, project_id) for round_id, race_id, project_id in found}
    for row in rows:
        row["race_id"], row["project_id"] = races[row["round_id"]]
    return import_many(tx, sql.ATTEMPTS, rows)


def take_in_winners(tx: Tx, rows: Sequence[dict[str, Any]]) -> None:
    """Keep the choices, and name the chosen ones in their rounds."""
    for row in rows:
        tx.run(sql.NAME_WINNER, id=row["round_id"], attempt=row["attempt_id"], by=row["by"])
    put_many(tx, "choices", rows, unless="(round_id, number)")
