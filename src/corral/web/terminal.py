"""The terminal of a run's page: its output so far, then new output as it arrives.

Server-sent events: `output` holds bytes in base64, with the next offset as its id. `text` holds the
rendered text of an agent's structured stream, which restarts from the beginning when the connection
does. `size` holds the rows and columns of the run's terminal, before the output drawn in it. `end`
ends the stream, with an error message if the output cannot be shown.
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
from corral.services.runs.output_rendering import find_renderer
from corral.services.tokens import TOKEN_CHECK_SECONDS
from corral.web.request import PageRequest

if TYPE_CHECKING:
    from corral.adapters.output.reader import OutputFiles
    from corral.adapters.output.sealed_file import SealedOutput

MAX_SHOWN_BYTES = 512 * 1024  # only the end of a long output is shown; all of it can be downloaded
MAX_STRUCTURED_BYTES = 8 * MAX_SHOWN_BYTES  # structured streams are much larger than their text
POLL_SECONDS = 0.25  # how often the state of a silent run is read
MAX_TERMINALS = 256  # each open terminal uses a thread; pages have their own

_threads: CapacityLimiter | None = None


async def stream(http: Request) -> Response:
    """Stream the output of a run, from `Last-Event-ID` or `offset`."""
    store: Corral = http.state.store
    text = http.headers.get("last-event-id") or http.query_params.get("offset", "")
    offset = int(text) if text.isdecimal() and len(text) < 16 else None
    run = await to_thread.run_sync(lambda: store.runs.get(http.path_params["id"]))
    closed = threading.Event()
    events = output_events(store, run, offset, closed)
    return sse_response(http, (_encode_event(*event) for event in events), closed)


def sse_response(http: Request, chunks: Iterator[bytes], closed: threading.Event) -> Response:
    """Respond with server-sent events that are generated on a thread.

    The stream ends when its token becomes invalid. `closed` is set when the stream ends or the
    client disconnects.
    """
    http.state.slot.release()
    return StreamingResponse(
        _iterate_in_thread(chunks, closed, partial(_is_token_valid, http)),
        media_type="text/event-stream",
        headers={"cache-control": "no-store", "x-accel-buffering": "no"},
    )


def _is_token_valid(http: Request) -> bool:
    store: Corral = http.state.store
    return store.internal.tokens.is_valid(http.state.who)


async def _iterate_in_thread(
    chunks: Iterator[bytes], closed: threading.Event, is_token_valid: Callable[[], bool]
) -> AsyncIterator[bytes]:
    global _threads
    _threads = _threads or CapacityLimiter(MAX_TERMINALS)
    end = object()
    try:
        yield b"retry: 1000\n\n"
        next_check = time.monotonic() + TOKEN_CHECK_SECONDS
        while True:
            chunk = await to_thread.run_sync(
                partial(next, chunks, end), limiter=_threads, abandon_on_cancel=True
            )
            if chunk is end:
                return
            assert isinstance(chunk, bytes)
            if time.monotonic() > next_check:
                if not await to_thread.run_sync(is_token_valid):
                    return
                next_check = time.monotonic() + TOKEN_CHECK_SECONDS
            yield chunk
    finally:
        closed.set()  # stops the generator on its thread


class TerminalEvent(NamedTuple):
    """One event of the stream."""

    name: str
    data: bytes
    next: int | None = None
    """The offset after this event."""


def output_events(
    store: Corral, run: Run, offset: int | None, closed: threading.Event
) -> Iterator[TerminalEvent]:
    """Yield a run's output so far, then new output, until it is complete or `closed` is set."""
    try:
        watch = _RunWatch(store, run, closed)
        yield from watch.size_changes()
        output = _open_output(store, run, watch, closed)
        start = max(output.size - MAX_SHOWN_BYTES, 0) if offset is None else offset
        renderer = find_renderer(run, store.runs.get_launch(run.id))
        if renderer is not None:
            is_short = output.size <= MAX_STRUCTURED_BYTES
            start = 0 if is_short else output.size - MAX_STRUCTURED_BYTES
        elif offset is None and start:
            yield TerminalEvent("truncated", str(start).encode())
        for piece in output.follow(start, is_finished=watch, wait=closed.wait):
            if closed.is_set():
                return
            yield from watch.size_changes()
            if renderer is not None:
                if rendered := renderer.feed(piece.text):
                    yield TerminalEvent("text", b64encode(rendered.encode()))
            else:
                yield TerminalEvent("output", b64encode(piece.text), piece.next)
        if renderer is not None and (rendered := renderer.finish()):
            yield TerminalEvent("text", b64encode(rendered.encode()))
        yield TerminalEvent("end", b"")
    except CorralError as error:
        yield end_event(error)


def end_event(error: CorralError) -> TerminalEvent:
    """Return the event that ends a stream with an error."""
    return TerminalEvent("end", b64encode(error.message.encode()))


def _open_output(
    store: Corral, run: Run, is_over: Callable[[], bool], closed: threading.Event
) -> "OutputFiles | SealedOutput":
    """Open the run's output; waits while the run is queued and has none."""
    while True:
        has_ended = is_over()
        try:
            return store.outputs.open(run.id)
        except NotFound:
            if has_ended:
                raise
        closed.wait(POLL_SECONDS)


class _RunWatch:
    """The current state of the run, read from the store every POLL_SECONDS."""

    def __init__(self, store: Corral, run: Run, closed: threading.Event) -> None:
        self._store = store
        self._run = run
        self._closed = closed
        self._read_at = 0.0
        self._size: tuple[int, int] | None = None

    def __call__(self) -> bool:
        """Whether the output is complete."""
        if self._run.is_live and time.monotonic() - self._read_at >= POLL_SECONDS:
            self._read_at = time.monotonic()
            with suppress(CorralError):
                self._run = self._store.runs.get(self._run.id)
        return not self._run.is_live or self._closed.is_set()

    def size_changes(self) -> Iterator[TerminalEvent]:
        """Yield the size of the terminal, if it has changed."""
        rows, columns = self._run.screen_rows, self._run.screen_columns
        if rows and columns and self._size != (rows, columns):
            self._size = rows, columns
            yield TerminalEvent("size", b"%dx%d" % self._size)


def _encode_event(name: str, data: bytes, id: int | None = None) -> bytes:
    id_line = b"" if id is None else b"id: %d\n" % id
    return b"%sevent: %s\ndata: %s\n\n" % (id_line, name.encode(), data)


def download(request: PageRequest) -> Response:
    """Download the whole output of a run, redacted."""
    run = request.store.runs.get(request.path_param("id"))
    output = request.store.outputs.open(run.id)
    chunks = (bytes(piece.text) for piece in output.follow(0, is_finished=lambda: True))
    return StreamingResponse(
        chunks,
        media_type="application/octet-stream",
        headers={"content-disposition": f'attachment; filename="{run.id}.log"'},
    )
