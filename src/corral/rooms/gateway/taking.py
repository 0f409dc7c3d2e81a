"""Wirings and destinations of another program; none of them is in force."""

from collections.abc import Sequence
from typing import Any

from corral.db.moves_many import encode_rows, import_many
from corral.db.tx import Tx
from corral.rooms.gateway import sql


def take_in_wirings(tx: Tx, rows: Sequence[dict[str, Any]]) -> list[str | None]:
    """Keep wirings on the channels that their places are on."""
    found = tx.run(sql.CHANNELS_OF, keys_=encode_rows(sorted({row["place_id"] for row in rows})))
    channels = {id: channel for id, channel in found}
    for row in rows:
        row["channel_id"] = channels[row["place_id"]]
    return import_many(tx, sql.WIRINGS, rows)


def take_in_destinations(tx: Tx, rows: Sequence[dict[str, Any]]) -> list[str | None]:
    """Keep destinations; of one that the agent has or had already, the id of that."""
    ids: list[str | None] = []
    for row in rows:
        known = tx.value(sql.DESTINATION_TO, agent=row["agent_id"], place=row["place_id"])
        ids.append(known or import_many(tx, sql.DESTINATIONS, [row])[0])
    return ids
