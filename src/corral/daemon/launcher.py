"""Queued runs are started on this machine when they are due, fit it, and there is room."""

from corral.api import Corral
from corral.daemon.loop import Plain

LONGEST_SLEEP = 30.0


class Launcher(Plain):
    name = "launcher"
    is_led = False

    def round(self, store: Corral) -> int:
        return len(store.runs.start_queued())

    def pause(self, store: Corral) -> float:
        """Until the next run becomes due; whatever else lets one start is a commit."""
        due = store.runs.next_due()
        if due is None:
            return LONGEST_SLEEP
        return min(max((due - store.now()) / 1_000, 0.001), LONGEST_SLEEP)
