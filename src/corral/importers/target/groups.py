"""Imported posts of groups."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from corral.db.bulk_insert import insert_many
from corral.db.tx import Tx
from corral.domain.groups import sql


def insert_posts(tx: Tx, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Append posts to their groups in the given order, without notifications."""
    counts = Counter(row["group_id"] for row in rows)
    numbers = {
        id: tx.value(sql.RESERVE_NUMBERS, id=id, count=count) - count
        for id, count in counts.items()
    }
    for row in rows:
        numbers[row["group_id"]] += 1
        row["number"] = numbers[row["group_id"]]
    insert_many(tx, "posts", rows)
    return [row["id"] for row in rows]
