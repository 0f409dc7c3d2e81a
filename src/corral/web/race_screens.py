"""What the attempts of a round write, all in one stream: a browser opens few to one server.

It is sent as the stream of one run is (see `terminal.py`), with the run's id before the data.
`begin` comes before anything else of a run, also when the stream begins anew; `all_over` says that
nothing more will come of this round.
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
from corral.web.races import SCREENS, round_asked
from corral.web.terminal import LOOK_EVERY, Told, over_because, sending, tellings

WAITING = 64
"""So many pieces wait for a browser that takes its time; whoever reads for it waits then."""


async def stream(request: Request) -> Response:
    store: Corral = request.state.store
    id, number = request.path_params["id"], request.query_params.get("round")
    race = await to_thread.run_sync(lambda: store.races.get(id))
    round_asked(race, number)
    gone = threading.Event()
    return sending(_Screens(store, race.id, number, gone).pieces(), gone)


class _Screens:
    """The screens of a round, each read on a thread of its own as long as somebody looks."""

    def __init__(self, store: Corral, race: str, number: str | None, gone: threading.Event) -> None:
        self._store = store
        self._race = race
        self._number = number
        self._gone = gone
        self._line: Queue[tuple[str, Told]] = Queue(WAITING)
        self._known: set[str] = set()
        self._reading = 0

    def pieces(self) -> Iterator[bytes]:
        looked, is_open = 0.0, True
        while not self._gone.is_set():
            if time.monotonic() - looked >= LOOK_EVERY:
                looked = time.monotonic()
                with suppress(CorralError):
                    is_open = self._look()
            try:
                run, told = self._line.get(timeout=LOOK_EVERY)
            except Empty:
                if not (is_open or self._reading):
                    yield b"event: all_over\ndata:\n\n"
                    return
                continue
            self._reading -= told.name == "over"
            yield b"event: %s\ndata: %s %s\n\n" % (told.name.encode(), run.encode(), told.data)

    def _look(self) -> bool:
        """Begin to read what has begun to run; whether more may begin."""
        round: Round = round_asked(self._store.races.get(self._race), self._number)
        for attempt in round.attempts[:SCREENS]:
            if attempt.run_id is not None and attempt.run_id not in self._known:
                self._known.add(attempt.run_id)
                self._reading += 1
                threading.Thread(target=self._read, args=(attempt.run_id,), daemon=True).start()
        return any(attempt.is_open for attempt in round.attempts)

    def _read(self, id: str) -> None:
        self._put(id, Told("begin", b""))
        try:
            run = self._store.runs.get(id)
        except CorralError as error:
            self._put(id, over_because(error))
            return
        for told in tellings(self._store, run, None, self._gone):
            self._put(id, told)

    def _put(self, id: str, told: Told) -> None:
        while not self._gone.is_set():
            with suppress(Full):
                self._line.put((id, told), timeout=LOOK_EVERY)
                return
