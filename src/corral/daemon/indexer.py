"""What was said is made findable, behind those who said it."""

from corral.api import Corral
from corral.daemon.loop import Plain

BATCHES = 5
LONGEST_SLEEP, SOON = 30.0, 1.0


class Indexer(Plain):
    name = "indexer"
    rest = 1.0

    def round(self, store: Corral) -> int:
        return store.search.catch_up(batches=BATCHES) if store.search.behind() else 0

    def pause(self, store: Corral) -> float:
        """While a transaction may still bring an older turn, the newer ones wait for its end."""
        return SOON if store.search.behind() else LONGEST_SLEEP
