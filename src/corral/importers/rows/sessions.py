"""Turns and retrospectives of another program, taken in many at a time."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from corral.db.bulk_insert import put_many
from corral.db.tx import Tx
from corral.domain.sessions import sql


def take_in_turns(tx: Tx, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Keep turns behind those that their sessions have, in the given order; gives their ids.

    Also in sessions that are closed here: what was said there was said.
    """
    latest: dict[str, int] = {}
    for row in rows:
        latest[row["session_id"]] = max(latest.get(row["session_id"], 0), row["at"])
    counts = Counter(row["session_id"] for row in rows)
    numbers = {
        id: tx.value(sql.MAKE_ROOM_IN_PAST, id=id, count=count, at=latest[id]) - count
        for id, count in counts.items()
    }
    for row in rows:
        numbers[row["session_id"]] += 1
        row["number"] = numbers[row["session_id"]]
    tx.noted = True
    return [f"trn_{seq}" for (seq,) in sorted(put_many(tx, "turns", rows, returned="seq"))]


def take_in_retros(tx: Tx, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Keep looks back at sessions behind those that these have."""
    for row in rows:
        last = tx.value(sql.LAST_RETRO, session_id=row["session_id"])
        row["number"] = int(last or 0) + 1
        put_many(tx, "retros", [row])
    return [row["session_id"] for row in rows]


def take_in_provider_sessions(tx: Tx, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Set the provider's session id of sessions that have none."""
    for row in rows:
        tx.run(sql.NAME_PROVIDER_SESSION, **row)
    return [row["id"] for row in rows]


def order_turns(tx: Tx, session_id: str, *, after: int) -> None:
    """Renumber the turns after `after` by time.

    In two steps, because a number must be unique at every moment.
    """
    tx.run(sql.UNNUMBER, session_id=session_id, after=after)
    tx.run(sql.NUMBER_BY_TIME, session_id=session_id, after=after)
