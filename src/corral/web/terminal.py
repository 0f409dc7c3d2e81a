"""A run's output for the terminal on its page: what is there, then what comes, as it comes.

It is sent as server-sent events: `output` holds bytes in base64, with the offset to go on from as
its id; `told` holds words of an agent's structured stream, which begins anew when the connection
does; `size` holds the rows and columns of the run's terminal, before what was drawn in it; `over`
says that nothing more will come, or why nothing can be shown.
"""

import threading
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from corral.api import Corral
from corral.domain.runs.model import Run
from corral.kernel.errors import CorralError, NotFound
from corral.services.runs.transcript_text import telling_of
from corral.web.request import Visit

if TYPE_CHECKING:
    from corral.adapters.output.read import Output as Files
    from corral.adapters.output.sealed import Sealed

# Of a long output the end is shown; all of it can be downloaded.
SHOWN = 512 * 1024
# How often a silent run is asked for whether it has ended.
LOOK_EVERY = 0.25
# Each terminal that is looked at waits on a thread of its own, and not on those of other pages.
MOST = 256

_threads: CapacityLimiter | None = None


async def stream(request: Request) -> Response:
    store: Corral = request.state.store
    given = request.headers.get("last-event-id") or request.query_params.get("offset", "")
    offset = int(given) if given.isdecimal() and len(given) < 16 else None
    run = await to_thread.run_sync(lambda: store.runs.get(request.path_params["id"]))
    gone = threading.Event()
    return sending((_event(*told) for told in tellings(store, run, offset, gone)), gone)


def sending(pieces: Iterator[bytes], gone: threading.Event) -> Response:
    """Server-sent events, made on a thread; `gone` is set when nobody listens any more."""
    return StreamingResponse(
        _sent(pieces, gone),
        media_type="text/event-stream",
        headers={"cache-control": "no-store", "x-accel-buffering": "no"},
    )


async def _sent(pieces: Iterator[bytes], gone: threading.Event) -> AsyncIterator[bytes]:
    global _threads
    _threads = _threads or CapacityLimiter(MOST)
    ended = object()
    try:
        yield b"retry: 1000\n\n"
        while True:
            piece = await to_thread.run_sync(
                partial(next, pieces, ended), limiter=_threads, abandon_on_cancel=True
            )
            if piece is ended:
                return
            assert isinstance(piece, bytes)
            yield piece
    finally:
        gone.set()  # whoever reads for it wakes up, and stops


class Told(NamedTuple):
    """Something to be told of a run's output."""

    name: str
    data: bytes
    next: int | None = None
    """The offset to go on from."""


def tellings(store: Corral, run: Run, offset: int | None, gone: threading.Event) -> Iterator[Told]:
    """What there is of a run's output, then what comes, until it is over or nobody listens."""
    try:
        over = _Watch(store, run, gone)
        yield from over.new_size()
        text = _opened(store, run, over, gone)
        begin = max(text.size - SHOWN, 0) if offset is None else offset
        telling = telling_of(store, run)
        if telling is not None:
            begin = 0 if text.size <= 8 * SHOWN else text.size - 8 * SHOWN
        elif offset is None and begin:
            yield Told("left_out", str(begin).encode())
        for piece in text.follow(begin, over=over, wait=gone.wait):
            if gone.is_set():
                return
            yield from over.new_size()
            if telling is not None:
                if words := telling.feed(piece.text):
                    yield Told("told", b64encode(words.encode()))
            else:
                yield Told("output", b64encode(piece.text), piece.next)
        if telling is not None and (words := telling.finish()):
            yield Told("told", b64encode(words.encode()))
        yield Told("over", b"")
    except CorralError as error:
        yield over_because(error)


def over_because(error: CorralError) -> Told:
    """Nothing can be shown, and why."""
    return Told("over", b64encode(error.message.encode()))


def _opened(
    store: Corral, run: Run, over: Callable[[], bool], gone: threading.Event
) -> "Files | Sealed":
    """The run's output, once there is any: one that waits in line has none yet."""
    while True:
        ended = over()
        try:
            return store.outputs.open(run.id)
        except NotFound:
            if ended:
                raise
        gone.wait(LOOK_EVERY)


class _Watch:
    """The current state of the run, read from the store every LOOK_EVERY seconds."""

    def __init__(self, store: Corral, run: Run, gone: threading.Event) -> None:
        self._store = store
        self._run = run
        self._gone = gone
        self._looked = 0.0
        self._size: tuple[int, int] | None = None

    def __call__(self) -> bool:
        """Whether the output is complete."""
        if self._run.is_live and time.monotonic() - self._looked >= LOOK_EVERY:
            self._looked = time.monotonic()
            with suppress(CorralError):
                self._run = self._store.runs.get(self._run.id)
        return not self._run.is_live or self._gone.is_set()

    def new_size(self) -> Iterator[Told]:
        """Yield the size of the terminal, if it has changed."""
        rows, columns = self._run.screen_rows, self._run.screen_columns
        if rows and columns and self._size != (rows, columns):
            self._size = rows, columns
            yield Told("size", b"%dx%d" % self._size)


def _event(name: str, data: bytes, id: int | None = None) -> bytes:
    mark = b"" if id is None else b"id: %d\n" % id
    return b"%sevent: %s\ndata: %s\n\n" % (mark, name.encode(), data)


def download(visit: Visit) -> Response:
    """All that a run wrote, as a file; secrets are taken out of it as everywhere."""
    run = visit.store.runs.get(visit.path("id"))
    text = visit.store.outputs.open(run.id)
    pieces = (bytes(piece.text) for piece in text.follow(0, over=lambda: True))
    return StreamingResponse(
        pieces,
        media_type="application/octet-stream",
        headers={"content-disposition": f'attachment; filename="{run.id}.log"'},
    )
