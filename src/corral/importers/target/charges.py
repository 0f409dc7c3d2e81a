"""Imported charges, which are included in all totals."""

from collections.abc import Mapping, Sequence
from typing import Any

from corral.adapters.providers.facts import UsageFact
from corral.db.bulk_insert import insert_many
from corral.db.tx import Tx
from corral.domain.charges import ops, sql
from corral.domain.charges.model import CostSource

_CONTEXT = ("run_id", "session_id", "project_id", "agent_id", "provider", "at")


def insert_charges(tx: Tx, rows: Sequence[dict[str, Any]]) -> list[str]:
    """Insert charges, on the days of their usage."""
    ids = []
    for row in rows:
        figures = {
            name: value for name, value in row.items() if name not in (*_CONTEXT, "imported_at")
        }
        used = UsageFact(**{"model": None, **figures})
        charge = ops.add(tx, used, **{name: row[name] for name in _CONTEXT if name in row})
        ids.append(charge.id if charge else "")
    ops.mark_imported(tx, [id for id in ids if id])
    return ids


def restore_charges(tx: Tx, rows: Sequence[dict[str, Any]]) -> list[str]:
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
    complete = [{**_NO_TOKENS, **row, "source": _find_cost_source(row)} for row in rows]
    return [
        f"chg_{seq}" for (seq,) in sorted(insert_many(tx, "charges", complete, returning="seq"))
    ]


_NO_TOKENS = dict.fromkeys(("input", "output", "cache_read", "cache_write", "reasoning"), 0)


def _find_cost_source(row: Mapping[str, Any]) -> str | None:
    return None if row.get("cost_micros") is None else CostSource.PROVIDER


def insert_totals(tx: Tx, scope: str, summed: Mapping[tuple[str, str], Mapping[str, int]]) -> int:
    """Insert the totals of a store whose charges all belong to one scope; returns their number.

    The scope's own totals become those of the store, because they still include deleted charges.
    The totals of agents and models are the given sums.
    """
    added = len(tx.run(sql.COPY_TOTALS_TO_ALL, scope=scope))
    for (subject, day), figures in summed.items():
        if subject.startswith(("agent:", "model:")):
            tx.run(sql.INSERT_TOTAL, scope=subject, day=day, now=tx.now, **figures)
            added += 1
    return added
