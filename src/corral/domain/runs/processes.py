"""Find the runs that processes belong to.

Every command and every hook imports this module and `process_sql`, so both import little.
"""

from typing import TYPE_CHECKING

from corral.domain.runs import process_sql as sql
from corral.kernel.identity import RunIdentity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from corral.adapters.processes.process import ProcessIdentity
    from corral.db.tx import Tx
    from corral.domain.runs.model import Run

ProcessKey = tuple[int, str]
"""A pid and its start token, on this boot."""


def find_runs(
    tx: "Tx", processes: "Sequence[ProcessKey]", boot_id: str
) -> dict[ProcessKey, RunIdentity]:
    """Map these processes to the runs whose agent or supervisor they are."""
    keys = f"[{','.join(str(pid) for pid, _ in processes)}]"
    rows = tx.run(sql.OF_PROCESSES, keys_=keys, boot_id=boot_id)
    return {(row[0], row[1]): RunIdentity(*row[2:]) for row in reversed(rows)}


def find_live_run(tx: "Tx", id: str) -> RunIdentity | None:
    """Return a live run by its full id; None when it has ended or does not exist."""
    rows = tx.run(sql.OF_ID, id=id)
    return RunIdentity(*rows[0][2:]) if rows else None


def get_identity(run: "Run", pid: int | None, token: str | None) -> "ProcessIdentity | None":
    """Return the recorded identity of one of a run's processes; None while it is unknown."""
    from corral.adapters.processes.process import ProcessIdentity

    if run.host is None or run.boot_id is None or pid is None or token is None:
        return None
    return ProcessIdentity(run.host, run.boot_id, pid, token)
