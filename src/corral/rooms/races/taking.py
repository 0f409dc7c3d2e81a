"""Which attempts won the rounds of another program's races."""

from collections.abc import Sequence
from typing import Any

from corral.db.intake import put_many
from corral.db.tx import Tx
from corral.rooms.races import sql


def take_in_winners(tx: Tx, rows: Sequence[dict[str, Any]]) -> None:
    """Keep the choices, and name the chosen ones in their rounds."""
    for row in rows:
        tx.run(sql.NAME_WINNER, id=row["round_id"], attempt=row["attempt_id"], by=row["by"])
    put_many(tx, "choices", rows, unless="(round_id, number)")
