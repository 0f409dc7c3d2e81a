"""Agents of another program, under names that are free here."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec

from corral.db.bulk_insert import Placed, put_many
from corral.db.bulk_transitions import encode_rows, import_many
from corral.db.tx import Tx
from corral.domain.agents import sql
from corral.domain.agents.model import Content, Limits

_CONTENT = ("role", "provider", "model", "command", "instructions", "workspace")


def take_in(tx: Tx, rows: Sequence[dict[str, Any]]) -> list[Placed]:
    """Keep agents; one whose name is taken gets a number behind it."""
    given = [row["name"] for row in rows]
    wanted = encode_rows([row["name"] for row in rows])
    taken = {name for (name,) in tx.run(sql.NAMES_TAKEN, keys_=wanted)}
    for row in rows:
        row["name"] = _free(tx, row["name"], taken)
        taken.add(row["name"])
    return [
        Placed(id, "" if row["name"] == name else "its name is taken here; a number was added")
        for id, row, name in zip(import_many(tx, sql.AGENTS, rows), rows, given, strict=True)
    ]


def _free(tx: Tx, name: str, taken: set[str]) -> str:
    free, number = name, 1
    while free in taken or (number > 1 and tx.run(sql.NAMES_TAKEN, keys_=encode_rows([free]))):
        number += 1
        free = f"{name}-{number}"
    return free


def take_in_versions(tx: Tx, rows: Sequence[dict[str, Any]]) -> None:
    """Keep what agents are, each as its first version."""
    for row in rows:
        content = Content(**{name: row[name] for name in _CONTENT}, limits=Limits())
        row["hash"] = sha256(msgspec.json.encode(content)).hexdigest()
    put_many(tx, "agent_versions", rows)
