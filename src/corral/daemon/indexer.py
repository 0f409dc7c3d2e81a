"""Full-text indexing of turns, asynchronous to the writers."""

from corral.api import Corral
from corral.daemon.loop import BaseLoop

BATCHES = 5
MAX_SLEEP, CATCH_UP_SLEEP = 30.0, 1.0


class Indexer(BaseLoop):
    """Adds new turns to the search index."""

    name = "indexer"
    min_interval = 1.0

    def run_once(self, store: Corral) -> int:
        return store.search.catch_up(batches=BATCHES) if store.search.count_unindexed() else 0

    def next_delay(self, store: Corral) -> float:
        # An open transaction may still add an older turn; the newer ones wait for its end.
        return CATCH_UP_SLEEP if store.search.count_unindexed() else MAX_SLEEP
