"""What tasks of another program wait for."""

from collections.abc import Sequence
from typing import Any

from corral.db.intake import put_many
from corral.db.moves import encode_rows
from corral.db.tx import Tx
from corral.rooms.tasks import sql


def take_in_edges(tx: Tx, rows: Sequence[dict[str, Any]]) -> None:
    """Keep what was taken in as waiting for something, and count anew how much of it is open.

    None of these tasks is under way, so nothing else follows from it.
    """
    put_many(tx, "edges", rows, unless="(task_id, needs_id)")
    tx.run(sql.RECOUNT, keys_=encode_rows(sorted({row["task_id"] for row in rows})))
