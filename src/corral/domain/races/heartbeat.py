"""What the keeper of a run asks of races at its end; it loads nothing else."""

from corral.db.tx import Tx
from corral.domain.races import sql


def has_attempt(tx: Tx, run_id: str) -> bool:
    """Whether an attempt waits for a run."""
    return bool(tx.run(sql.HAS_ATTEMPT, run_id=run_id))
