"""Due schedules become letters, and letters whose time has passed are ended."""

from collections.abc import Iterator

from corral.api import Corral
from corral.api.wait import SOON
from corral.daemon.loop import Plain
from corral.daemon.schedule_scripts import Checker
from corral.domain.mail.model import Letter

# Behind a wake-up that never came.
LONGEST_SLEEP = 30.0


class Scheduler(Plain):
    name = "scheduler"

    def round(self, store: Corral) -> int:
        upcoming = store.schedules.next_at()
        if upcoming is None or upcoming > store.now():
            return 0  # nothing is written, and nobody waits in line, to find that out
        return len(store.schedules.fire_due())

    def pause(self, store: Corral) -> float:
        return _pause(store)


def run_scheduler(store: Corral) -> Iterator[Letter]:
    """Put letters when their moments come, for ever; yields each letter that was put.

    It sleeps until the next moment, or until a commit may have brought an earlier one; scripts that
    are asked first are run by it, too. Two of them on one store do no harm: a moment is put once,
    whoever comes first.
    """
    checker = Checker()
    with store.listening() as listener:
        while True:
            letters = store.schedules.fire_due()
            yield from letters
            store.mail.expire_due()
            if not letters and not checker.round(store):
                listener.wait(min(_pause(store), checker.pause(store)))


def _pause(store: Corral) -> float:
    upcoming = store.schedules.next_at()
    if upcoming is None:
        return LONGEST_SLEEP
    return min(max((upcoming - store.now()) / 1_000, SOON), LONGEST_SLEEP)
