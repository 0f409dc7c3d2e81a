"""Whether a run belongs to an attempt.

The supervisor asks this at the end of every run, so this module must stay cheap to import.
"""

from corral.db.tx import Tx
from corral.domain.races import sql


def has_attempt(tx: Tx, run_id: str) -> bool:
    """Return whether a running attempt waits for the end of a run."""
    return bool(tx.run(sql.HAS_ATTEMPT, run_id=run_id))
