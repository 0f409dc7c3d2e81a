"""Two transactions that meet: one has changed something and is still open when the other comes."""

from collections.abc import Callable
from typing import TypeVar

from corral.api import Corral
from corral.db.statement import Statement
from corral.db.tx import Tx
from tests.support.threads import Racer

T = TypeVar("T")

_WAITS = Statement("SELECT 1 FROM pg_locks WHERE NOT granted LIMIT 1")


def meanwhile(store: Corral, change: Callable[[Tx], object], work: Callable[[], T]) -> Racer[T]:
    """Begin `work` in another thread while a transaction that has made a `change` is open.

    The change is committed when the work waits for it, or is over. On SQLite, where writers are
    alone, the work waits from its first statement on.
    """
    with store.transaction() as tx:
        change(tx)
        racer = Racer(work)
        while tx.engine == "postgres" and racer.is_running and not tx.run(_WAITS):
            pass
    return racer.join()
