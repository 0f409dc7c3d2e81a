"""Keeping the tasks of a run claimed while the run is alive.

The supervisor imports this module with every run, so it must stay cheap to import.
"""

from corral.db.tx import Tx
from corral.domain.tasks import sql
from corral.kernel.clock import MINUTE

RUN_LEASE_MS = 5 * MINUTE
"""Lease that a heartbeat gives the tasks of its run.

Longer than recovery needs to find a dead supervisor, so recovery sees the tasks before they expire.
"""


def renew_for_run(tx: Tx, run_id: str) -> None:
    """Renew the leases of all running tasks of a run with one statement."""
    tx.run(sql.RENEW_FOR_RUN, run_id=run_id, until=tx.now + RUN_LEASE_MS)


def has_tasks(tx: Tx, run_id: str) -> bool:
    """Return whether a run works on a task."""
    return bool(tx.run(sql.HAS_TASKS, run_id=run_id))
