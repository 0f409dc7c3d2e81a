"""Wirings and destinations of another program; none of them is in force."""

from collections.abc import Sequence
from typing import Any

from corral.db.bulk_insert import Placed
from corral.db.bulk_transitions import encode_rows, import_many
from corral.db.tx import Tx
from corral.domain.chat import sql


def take_in_wirings(tx: Tx, rows: Sequence[dict[str, Any]]) -> list[str | None]:
    """Keep wirings on the channels that their places are on."""
    found = tx.run(sql.CHANNELS_OF, keys_=encode_rows(sorted({row["place_id"] for row in rows})))
    channels = {id: channel for id, channel in found}
    for row in rows:
        row["channel_id"] = channels[row["place_id"]]
    return import_many(tx, sql.WIRINGS, rows)


def take_in_destinations(tx: Tx, rows: Sequence[dict[str, Any]]) -> list[Placed]:
    """Keep destinations. One that the agent has or had already is not changed."""
    placed = []
    for row in rows:
        known = tx.value(sql.DESTINATION_TO, agent=row["agent_id"], place=row["place_id"])
        if known is not None:
            placed.append(Placed(known, "the agent has a destination to that place already"))
        else:
            placed.append(Placed(import_many(tx, sql.DESTINATIONS, [row])[0]))
    return placed
