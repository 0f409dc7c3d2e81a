"""Renewal of the locks of a run by its heartbeat.

Separate from `ops`, so that supervisors import less.
"""

from corral.db.tx import Tx
from corral.domain.locks import sql


def renew_locks_of_run(tx: Tx, run: str) -> int:
    """Renew the leases of all locks that a run holds or waits for; returns how many."""
    return len(tx.run(sql.RENEW_OF_RUN, run_id=run, now=tx.now))


def has_locks(tx: Tx, run: str) -> bool:
    """Whether a run holds a lock or waits for one."""
    return bool(tx.run(sql.LIVE_OF_RUN, run_id=run))
