"""The runs that processes belong to. Every command and hook loads this, so it imports little."""

from typing import TYPE_CHECKING

from corral.domain.runs import process_sql as sql
from corral.kernel.identity import RunIdentity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.db.tx import Tx

Process = tuple[int, str]
"""A pid and its start, on this boot."""


def find_runs(tx: "Tx", processes: "Sequence[Process]", boot_id: str) -> dict[Process, RunIdentity]:
    """Return the runs whose agent or supervisor is one of these processes, by process."""
    keys = f"[{','.join(str(pid) for pid, _ in processes)}]"
    rows = tx.run(sql.OF_PROCESSES, keys_=keys, boot_id=boot_id)
    return {(row[0], row[1]): RunIdentity(*row[2:]) for row in reversed(rows)}


def find_live_run(tx: "Tx", id: str) -> RunIdentity | None:
    """Return a live run by its full id."""
    rows = tx.run(sql.OF_ID, id=id)
    return RunIdentity(*rows[0][2:]) if rows else None


def any_at_work(tx: "Tx") -> bool:
    """Whether any run that Corral started is live."""
    return bool(tx.run(sql.AT_WORK))
