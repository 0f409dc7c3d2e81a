"""Posts of another program, taken in many at a time."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from corral.db.bulk_insert import put_many
from corral.db.tx import Tx
from corral.domain.groups import sql


def take_in_posts(tx: Tx, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Keep posts behind those that their groups have, in the given order; nobody is told."""
    counts = Counter(row["group_id"] for row in rows)
    numbers = {
        id: tx.value(sql.MAKE_ROOM, id=id, count=count) - count for id, count in counts.items()
    }
    for row in rows:
        numbers[row["group_id"]] += 1
        row["number"] = numbers[row["group_id"]]
    put_many(tx, "posts", rows)
    return [row["id"] for row in rows]
