"""What keepers ask of locks: they renew with every heartbeat, and hardly any run has locks."""

from corral.db.tx import Tx
from corral.domain.locks import sql


def renew_all(tx: Tx, run: str) -> int:
    """Keep everything that a run has locked, or waits for, for another term; how many those are."""
    return len(tx.run(sql.RENEW_OF_RUN, run_id=run, now=tx.now))


def has_any(tx: Tx, run: str) -> bool:
    """Whether a run has locked anything, or waits for it."""
    return bool(tx.run(sql.LIVE_OF_RUN, run_id=run))
