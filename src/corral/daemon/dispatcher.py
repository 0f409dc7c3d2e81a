"""The dispatcher loop: starts queued runs on this machine."""

from corral.api import Corral
from corral.daemon.loop import BaseLoop

MAX_SLEEP = 30.0


class Dispatcher(BaseLoop):
    """Starts queued runs that are due, match this machine's labels, and have a free slot."""

    name = "dispatcher"
    needs_leader = False

    def run_once(self, store: Corral) -> int:
        return len(store.runs.start_queued())

    def next_delay(self, store: Corral) -> float:
        # Only a due time passes without a commit; everything else wakes the loop.
        due = store.runs.next_due()
        if due is None:
            return MAX_SLEEP
        return min(max((due - store.now()) / 1_000, 0.001), MAX_SLEEP)
