"""Imported turns, retrospectives and provider sessions."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from corral.db.bulk_insert import insert_many
from corral.db.tx import Tx
from corral.domain.sessions import sql


def insert_turns(tx: Tx, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Append turns to their sessions in the given order; returns their ids.

    Closed sessions are included: the turns were recorded before.
    """
    latest: dict[str, int] = {}
    for row in rows:
        latest[row["session_id"]] = max(latest.get(row["session_id"], 0), row["at"])
    counts = Counter(row["session_id"] for row in rows)
    numbers = {
        id: tx.value(sql.RESERVE_IMPORTED_NUMBERS, id=id, count=count, at=latest[id]) - count
        for id, count in counts.items()
    }
    for row in rows:
        numbers[row["session_id"]] += 1
        row["number"] = numbers[row["session_id"]]
    tx.has_events = True
    return [f"trn_{seq}" for (seq,) in sorted(insert_many(tx, "turns", rows, returning="seq"))]


def insert_retros(tx: Tx, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Append retrospectives to their sessions."""
    for row in rows:
        last = tx.value(sql.LAST_RETRO, session_id=row["session_id"])
        row["number"] = int(last or 0) + 1
        insert_many(tx, "retros", [row])
    return [row["session_id"] for row in rows]


def set_provider_sessions(tx: Tx, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Set the provider's session id of sessions that have none."""
    for row in rows:
        tx.run(sql.FILL_PROVIDER_SESSION, **row)
    return [row["id"] for row in rows]


def order_turns(tx: Tx, session_id: str, *, after: int) -> None:
    """Renumber the turns after `after` by time.

    In two statements, because a number must be unique at any time.
    """
    tx.run(sql.NEGATE_NUMBERS, session_id=session_id, after=after)
    tx.run(sql.NUMBER_BY_TIME, session_id=session_id, after=after)
