"""Operations of `store.events`."""

import math
import time
from collections.abc import Callable, Iterator

from corral.api.operation import Resource, operation, read
from corral.db.types import Listener
from corral.domain.events import ops
from corral.domain.events.model import Event

PAGE = 200
MAX_SLEEP = 60.0  # seconds; bounds the wait when a wake-up is missed
# Back-off while events are held back by an open transaction, which may end without a wake-up. A
# transaction that is open for hours must cost little.
MIN_PAUSE, MAX_PAUSE = 0.005, 0.25


def _follow_remotely(
    events: "Events",
    after: str | None = None,
    *,
    subject: str | None = None,
    project: str | None = None,
    timeout_ms: int | None = None,
    is_finished: Callable[[], bool] | None = None,
) -> Iterator[Event]:
    """`Events.follow` over HTTP."""
    import msgspec

    from corral.api.remote import encode_query, get_client

    cursor = after or events.newest(limit=1).next or "0-0"
    path = f"/api/events{encode_query({'subject': subject, 'project': project})}"
    decode = msgspec.json.Decoder(Event).decode
    frames = get_client(events).stream(
        path, last=cursor, timeout_ms=timeout_ms, is_finished=is_finished
    )
    yield from map(decode, frames)


class Events(Resource):
    """The append-only log of all changes.

    Events have a stable order, and a cursor never skips one: an event becomes visible only after
    all events before it.
    """

    noun = "event"

    after = read(ops.list_after, mode="one")
    newest = read(ops.list_newest, mode="one")
    before = read(ops.list_before, mode="one")
    _held_back = read(ops.is_held_back, mode="one")

    @operation(streamed="GET /api/events", remote=_follow_remotely)
    def follow(
        self,
        after: str | None = None,
        *,
        subject: str | None = None,
        project: str | None = None,
        timeout_ms: int | None = None,
        is_finished: Callable[[], bool] | None = None,
    ) -> Iterator[Event]:
        """Yield every event after a cursor, as it happens; without a cursor, from now on.

        Ends when no event came for `timeout_ms`, or soon after `is_finished()` is true; never
        without either. Resume after an interruption with the `cursor` of the last event.
        """
        with self._database.listener() as listener:
            cursor = after or self.newest(limit=1).next or "0-0"
            patience = math.inf if timeout_ms is None else timeout_ms / 1_000
            deadline = time.monotonic() + patience
            pause = MIN_PAUSE
            while True:
                # Read before the page: the blocking transaction may end between the two reads.
                held_back = self._held_back(cursor)
                page = self.after(cursor, subject=subject, project=project, limit=PAGE)
                yield from page.items
                cursor = page.next or cursor
                if page.items:
                    deadline = time.monotonic() + patience
                    pause = MIN_PAUSE
                    continue
                left = max(deadline - time.monotonic(), 0)
                _sleep(listener, min(left, pause if held_back else MAX_SLEEP), is_finished)
                pause = min(pause * 2, MAX_PAUSE) if held_back else MIN_PAUSE
                if time.monotonic() >= deadline or (is_finished is not None and is_finished()):
                    return


def _sleep(listener: Listener, seconds: float, is_finished: Callable[[], bool] | None) -> None:
    """Sleep until a commit, at most for `seconds`.

    Polls `is_finished`, which does not use the store.
    """
    if is_finished is None:
        listener.wait(seconds)
        return
    ends = time.monotonic() + seconds
    while (left := ends - time.monotonic()) > 0:
        if listener.wait(min(left, MAX_PAUSE)) or is_finished():
            return
