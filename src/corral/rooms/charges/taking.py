"""Charges of another program, which count in all totals as our own do."""

from collections.abc import Sequence
from typing import Any

from corral.adapters.providers.facts import Used
from corral.db.tx import Tx
from corral.rooms.charges import ops

_OF = ("run_id", "session_id", "project_id", "agent_id", "provider", "at")


def take_in(tx: Tx, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Charge what another program counted, on the days on which it was used."""
    ids = []
    for row in rows:
        figures = {name: value for name, value in row.items() if name not in _OF}
        used = Used(**{"model": None, **figures})
        charge = ops.add(tx, used, **{name: row[name] for name in _OF if name in row})
        ids.append(charge.id if charge else "")
    return ids
