"""Imported wirings and destinations, which are removed or revoked."""

from collections.abc import Sequence
from typing import Any

from corral.db.bulk_insert import ImportedRow
from corral.db.bulk_transitions import import_many
from corral.db.statement import encode_rows
from corral.db.tx import Tx
from corral.domain.chat import sql


def insert_wirings(tx: Tx, rows: Sequence[dict[str, Any]]) -> list[str | None]:
    """Insert wirings with the channels of their places."""
    owners = tx.run(
        sql.CHANNEL_IDS_OF_PLACES, keys_=encode_rows(sorted({row["place_id"] for row in rows}))
    )
    channels = {id: channel for id, channel in owners}
    for row in rows:
        row["channel_id"] = channels[row["place_id"]]
    return import_many(tx, sql.WIRINGS, rows)


def insert_destinations(tx: Tx, rows: Sequence[dict[str, Any]]) -> list[ImportedRow]:
    """Insert destinations. One that the agent has or had already is not changed."""
    placed = []
    for row in rows:
        known = tx.value(sql.DESTINATION_ID, agent=row["agent_id"], place=row["place_id"])
        if known is not None:
            placed.append(ImportedRow(known, "the agent has a destination to that place already"))
        else:
            placed.append(ImportedRow(import_many(tx, sql.DESTINATIONS, [row])[0]))
    return placed
