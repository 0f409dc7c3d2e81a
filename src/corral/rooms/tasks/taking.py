"""What tasks of another program wait for."""

from collections.abc import Sequence
from typing import Any

from corral.db.intake import put_many
from corral.db.tx import Tx
from corral.rooms.tasks import sql
from corral.rooms.tasks.ripple import recount


def take_in_edges(tx: Tx, rows: Sequence[dict[str, Any]]) -> None:
    """Keep what tasks that were taken in wait for, and count anew how much of it is open, and how
    much is broken; as in a graph of our own, that goes on to those that need them."""
    put_many(tx, "edges", rows, unless="(task_id, needs_id)")
    for id in sorted({row["task_id"] for row in rows}):
        recount(tx, sql.TASKS.get(tx, id))
