"""Charges of another program, which count in all totals as our own do."""

from collections.abc import Mapping, Sequence
from typing import Any

from corral.adapters.providers.facts import Used
from corral.db.bulk_insert import put_many
from corral.db.tx import Tx
from corral.domain.charges import ops, sql
from corral.domain.charges.model import Source

_OF = ("run_id", "session_id", "project_id", "agent_id", "provider", "at")


def take_in(tx: Tx, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Charge what another program counted, on the days on which it was used."""
    ids = []
    for row in rows:
        figures = {name: value for name, value in row.items() if name not in (*_OF, "imported_at")}
        used = Used(**{"model": None, **figures})
        charge = ops.add(tx, used, **{name: row[name] for name in _OF if name in row})
        ids.append(charge.id if charge else "")
    ops.mark_imported(tx, [id for id in ids if id])
    return ids


def restore(tx: Tx, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Restore charges that retention has deleted. Totals still count them, so they are not changed.

    Charges of a deleted run still exist and are not added again.
    """
    ids = []
    for row in rows:
        run = row.get("run_id")
        existing = ops.list_charges(tx, run=run, limit=1).items if run else []
        ids += [existing[0].id] if existing else _add_again(tx, [row])
    return ids


def _add_again(tx: Tx, rows: Sequence[dict[str, Any]]) -> list[str]:
    whole = [{**_NOTHING, **row, "source": _source(row)} for row in rows]
    return [f"chg_{seq}" for (seq,) in sorted(put_many(tx, "charges", whole, returned="seq"))]


_NOTHING = dict.fromkeys(("input", "output", "cache_read", "cache_write", "reasoning"), 0)


def _source(row: Mapping[str, Any]) -> str | None:
    return None if row.get("cost_micros") is None else Source.PROVIDER


def take_totals(tx: Tx, scope: str, summed: Mapping[tuple[str, str], Mapping[str, int]]) -> int:
    """Make a store whose charges are all of one scope say what all of them, its agents and its
    models cost; gives how many totals that are. Charges may be gone that the scope's own count."""
    added = len(tx.run(sql.TOTALS_AS_ALL, scope=scope))
    for (of, day), figures in summed.items():
        if of.startswith(("agent:", "model:")):
            tx.run(sql.TAKE_TOTAL, scope=of, day=day, now=tx.now, **figures)
            added += 1
    return added
