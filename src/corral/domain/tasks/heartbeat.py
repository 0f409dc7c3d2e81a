"""What a run's keeper says of the tasks that are done in its run; it loads nothing else."""

from corral.db.tx import Tx
from corral.domain.tasks import sql
from corral.kernel.clock import MINUTE

RUN_LEASE_MS = 5 * MINUTE
"""What a heartbeat gives the tasks of its run: longer than a recovery needs to find a keeper."""


def renew_of_run(tx: Tx, run_id: str) -> None:
    """A run's heartbeat keeps its tasks, by one statement."""
    tx.run(sql.RENEW_OF_RUN, run_id=run_id, until=tx.now + RUN_LEASE_MS)


def has_tasks(tx: Tx, run_id: str) -> bool:
    """Whether a task is being done in a run."""
    return bool(tx.run(sql.HAS_TASKS, run_id=run_id))
