"""Imported agents, under names that are not taken."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec

from corral.db.bulk_insert import ImportedRow, insert_many
from corral.db.bulk_transitions import import_many
from corral.db.statement import encode_rows
from corral.db.tx import Tx
from corral.domain.agents import sql
from corral.domain.agents.model import AgentContent, AgentLimits

_CONTENT = ("role", "provider", "model", "command", "instructions", "workspace")


def insert_agents(tx: Tx, rows: Sequence[dict[str, Any]]) -> list[ImportedRow]:
    """Insert agents. A number is appended to a name that is taken."""
    names = [row["name"] for row in rows]
    keys = encode_rows([row["name"] for row in rows])
    used_names = {name for (name,) in tx.run(sql.NAMES_TAKEN, keys_=keys)}
    for row in rows:
        row["name"] = _find_unused_name(tx, row["name"], used_names)
        used_names.add(row["name"])
    return [
        ImportedRow(id, "" if row["name"] == name else "its name is taken; a number was added")
        for id, row, name in zip(import_many(tx, sql.AGENTS, rows), rows, names, strict=True)
    ]


def _find_unused_name(tx: Tx, name: str, used_names: set[str]) -> str:
    unused, number = name, 1
    while unused in used_names or (
        number > 1 and tx.run(sql.NAMES_TAKEN, keys_=encode_rows([unused]))
    ):
        number += 1
        unused = f"{name}-{number}"
    return unused


def insert_versions(tx: Tx, rows: Sequence[dict[str, Any]]) -> None:
    """Insert the content of agents as their first version."""
    for row in rows:
        content = AgentContent(**{name: row[name] for name in _CONTENT}, limits=AgentLimits())
        row["hash"] = sha256(msgspec.json.encode(content)).hexdigest()
    insert_many(tx, "agent_versions", rows)
