"""The checks of submitted tasks are run, one after the other."""

from corral.api import Corral
from corral.daemon.loop import Plain

LONGEST_SLEEP = 30.0


class Examiner(Plain):
    name = "examiner"
    is_led = False  # a check is run where the work was done

    def round(self, store: Corral) -> int:
        return 0 if store.tasks.check_next() is None else 1

    def pause(self, store: Corral) -> float:
        """A submit is a commit; one whose examiner died waits for longer."""
        return LONGEST_SLEEP
