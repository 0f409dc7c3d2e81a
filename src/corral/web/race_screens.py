"""The terminals of a round's attempts in one stream: browsers limit connections per server.

The events are those of a single run (see `terminal.py`), with the run's id before the data. `begin`
precedes the events of a run, also after a reconnect; `end_of_round` ends the stream of the round.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, Full, Queue

from anyio import to_thread
from starlette.requests import Request
from starlette.responses import Response

from corral.api import Corral
from corral.domain.races.model import Round
from corral.kernel.errors import CorralError
from corral.web.races import MAX_SCREENS, find_round
from corral.web.terminal import (
    POLL_SECONDS,
    TerminalEvent,
    end_event,
    output_events,
    sse_response,
)

MAX_QUEUED_EVENTS = 64
"""Reader threads block while this many events wait for a slow browser."""


async def stream(http: Request) -> Response:
    store: Corral = http.state.store
    id, number = http.path_params["id"], http.query_params.get("round")
    race = await to_thread.run_sync(lambda: store.races.get(id))
    find_round(race, number)
    closed = threading.Event()
    return sse_response(http, _RoundScreens(store, race.id, number, closed).chunks(), closed)


class _RoundScreens:
    """The screens of a round. One thread reads each run until the client disconnects."""

    def __init__(
        self, store: Corral, race: str, number: str | None, closed: threading.Event
    ) -> None:
        self._store = store
        self._race = race
        self._number = number
        self._closed = closed
        self._queue: Queue[tuple[str, TerminalEvent]] = Queue(MAX_QUEUED_EVENTS)
        self._started: set[str] = set()
        self._active = 0

    def chunks(self) -> Iterator[bytes]:
        polled_at, may_start_more = 0.0, True
        while not self._closed.is_set():
            if time.monotonic() - polled_at >= POLL_SECONDS:
                polled_at = time.monotonic()
                with suppress(CorralError):
                    may_start_more = self._start_readers()
            try:
                run, event = self._queue.get(timeout=POLL_SECONDS)
            except Empty:
                if not (may_start_more or self._active):
                    yield b"event: end_of_round\ndata:\n\n"
                    return
                continue
            self._active -= event.name == "end"
            yield b"event: %s\ndata: %s %s\n\n" % (event.name.encode(), run.encode(), event.data)

    def _start_readers(self) -> bool:
        """Start a reader for every new run; return whether more may start later."""
        round: Round = find_round(self._store.races.get(self._race), self._number)
        for attempt in round.attempts[:MAX_SCREENS]:
            if attempt.run_id is not None and attempt.run_id not in self._started:
                self._started.add(attempt.run_id)
                self._active += 1
                threading.Thread(target=self._read, args=(attempt.run_id,), daemon=True).start()
        return any(attempt.is_open for attempt in round.attempts)

    def _read(self, id: str) -> None:
        self._put(id, TerminalEvent("begin", b""))
        try:
            run = self._store.runs.get(id)
        except CorralError as error:
            self._put(id, end_event(error))
            return
        for event in output_events(self._store, run, None, self._closed):
            self._put(id, event)

    def _put(self, id: str, event: TerminalEvent) -> None:
        while not self._closed.is_set():
            with suppress(Full):
                self._queue.put((id, event), timeout=POLL_SECONDS)
                return
