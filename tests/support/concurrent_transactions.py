"""Two concurrent transactions: the first has an uncommitted change when the second starts."""

from collections.abc import Callable
from typing import TypeVar

from corral.api import Corral
from corral.db.statement import Statement
from corral.db.tx import Tx
from tests.support.threads import Racer

T = TypeVar("T")

_WAITS = Statement("SELECT 1 FROM pg_locks WHERE NOT granted LIMIT 1")


def meanwhile(store: Corral, change: Callable[[Tx], object], work: Callable[[], T]) -> Racer[T]:
    """Run `work` in another thread while a transaction with an uncommitted `change` is open.

    The change is committed once the work waits for it or has finished. On SQLite, which has one
    writer at a time, the work waits from its first statement on.
    """
    with store.transaction() as tx:
        change(tx)
        racer = Racer(work)
        while tx.engine == "postgres" and racer.is_running and not tx.run(_WAITS):
            pass
    return racer.join()
