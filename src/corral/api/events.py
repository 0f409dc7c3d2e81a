import math
import time
from collections.abc import Callable, Iterator

from corral.api.operation import Room, read
from corral.db.database import Listener
from corral.domain.events import ops
from corral.domain.events.model import Event

PAGE = 200
LONGEST_SLEEP = 60.0
# While events are held back by a transaction that may end without a word: it is looked for soon,
# then more and more seldom, so that one that is open for hours costs little.
SOON, AT_LATEST = 0.005, 0.25


class Events(Room):
    """The append-only record of all changes."""

    noun = "event"

    after = read(ops.after, mode="one")
    newest = read(ops.newest, mode="one")
    before = read(ops.before, mode="one")
    _held_back = read(ops.held_back, mode="one")

    def follow(
        self,
        after: str | None = None,
        *,
        subject: str | None = None,
        project: str | None = None,
        timeout_ms: int | None = None,
        over: Callable[[], bool] | None = None,
    ) -> Iterator[Event]:
        """Every event behind a cursor, as it happens; from now on without one.

        It ends when nothing new came for `timeout_ms`, or soon after `over` says that nobody wants
        more; never without either.
        """
        with self._database.listening() as listener:
            cursor = after or self.newest(limit=1).next or "0-0"
            patience = math.inf if timeout_ms is None else timeout_ms / 1_000
            deadline = time.monotonic() + patience
            pause = SOON
            while True:
                # Asked first: what holds something back may end, without a word, before the look.
                held_back = self._held_back(cursor)
                page = self.after(cursor, subject=subject, project=project, limit=PAGE)
                yield from page.items
                cursor = page.next or cursor
                if page.items:
                    deadline = time.monotonic() + patience
                    pause = SOON
                    continue
                left = max(deadline - time.monotonic(), 0)
                _sleep(listener, min(left, pause if held_back else LONGEST_SLEEP), over)
                pause = min(pause * 2, AT_LATEST) if held_back else SOON
                if time.monotonic() >= deadline or (over is not None and over()):
                    return


def _sleep(listener: Listener, seconds: float, over: Callable[[], bool] | None) -> None:
    """Until a commit, or for so long; `over` is asked now and then, which asks no store."""
    if over is None:
        listener.wait(seconds)
        return
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0:
        if listener.wait(min(left, AT_LATEST)) or over():
            return
