"""The event feed for many clients: one thread follows the store and dispatches to all subscribers.

The follower encodes every event once; all subscribers share the bytes. Each subscriber has a
bounded queue. A subscriber that falls behind reads the events it missed from the store, at its own
pace. So 500 browsers cost one query per event, and an idle subscriber costs next to nothing.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from typing import NamedTuple

import msgspec
from anyio import CapacityLimiter, to_thread

from corral.api import Corral
from corral.domain.events.model import Event
from corral.kernel.errors import CorralError
from corral.kernel.pagination import Page

log = logging.getLogger("corral.http")

MAX_QUEUED_EVENTS = 5_000  # per subscriber
MAX_QUEUED_BYTES = 4 * 1024 * 1024  # per subscriber, although the bytes are shared
MAX_UNDISPATCHED = 5_000  # events that the follower may be ahead of the event loop
DISPATCH_BATCH = 200  # events dispatched before other tasks of the event loop run
MAX_CHUNK_BYTES = 64 * 1024
PAGE_SIZE = 100
HEARTBEAT_SECONDS = 15.0
HEARTBEAT_FRAME = b": \n\n"
RETRY_MS = 1_000  # reconnection delay of browsers
RETRY_SECONDS = 1.0  # between attempts to follow an unavailable store


class FeedFrame(NamedTuple):
    """An event and its encoded form."""

    position: tuple[int, int]
    event: Event
    data: bytes


class FeedSubscriber:
    """The queue of one client, and the cursor of the last event that it received."""

    def __init__(self, is_wanted: Callable[[Event], bool], cursor: str) -> None:
        self._is_wanted = is_wanted
        self._queue: deque[FeedFrame] = deque()
        self._queued_bytes = 0
        self._wakeup = asyncio.Event()
        self.is_lagging = False
        """The queue overflowed: the client must read what it missed from the store."""
        self.cursor = cursor

    def put(self, frame: FeedFrame) -> None:
        if self.is_lagging or not self._is_wanted(frame.event):
            return
        self._queue.append(frame)
        self._queued_bytes += len(frame.data)
        if len(self._queue) > MAX_QUEUED_EVENTS or self._queued_bytes > MAX_QUEUED_BYTES:
            self.is_lagging = True
        self._wakeup.set()

    def wake(self) -> None:
        self._wakeup.set()

    def clear(self) -> None:
        self._queue.clear()
        self._queued_bytes = 0
        self.is_lagging = False

    async def take(self, timeout: float) -> bytes:
        """Return up to MAX_CHUNK_BYTES of queued frames; empty when none arrives in time."""
        if not self._queue:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wakeup.wait(), timeout)
        self._wakeup.clear()
        chunks: list[bytes] = []
        size, position = 0, parse_cursor_position(self.cursor)
        while self._queue and size < MAX_CHUNK_BYTES:
            frame = self._queue.popleft()
            size += len(frame.data)
            # Frames up to the cursor were already read from the store.
            if frame.position > position:
                chunks.append(frame.data)
                self.cursor = frame.event.cursor
        self._queued_bytes -= size
        return b"".join(chunks)

    def encode_page(self, events: list[Event]) -> bytes:
        """Encode events that were read from the store, and advance the cursor."""
        self.cursor = events[-1].cursor
        return b"".join([encode_frame(event) for event in events if self._is_wanted(event)])


class EventFeed:
    """Follows a store from `start` to `close` and dispatches its events to subscribers."""

    def __init__(self, store: Corral, *, on_event: Callable[[Event], object] | None = None) -> None:
        self._store = store
        self._on_event = on_event
        self._registered: set[FeedSubscriber] = set()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._readers = CapacityLimiter(4)
        self._undispatched: deque[FeedFrame] = deque()
        self._is_dispatch_scheduled = False
        self._last_cursor = "0-0"
        self.seen = 0
        """Number of events read."""
        self.subscriber_count = 0
        """Number of subscribers, including those that are lagging."""

    async def start(self) -> None:
        """Start following. No event after the return of this call is missed."""
        self._loop = asyncio.get_running_loop()
        newest = await to_thread.run_sync(lambda: self._store.events.newest(limit=1).next)
        self._last_cursor = newest or self._last_cursor
        self._thread = threading.Thread(
            target=self._follow, args=(self._last_cursor,), name="feed", daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """End all subscriptions, from any thread. Clients reconnect, perhaps to another daemon."""
        self._stopping.set()
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wake_all)

    async def close(self) -> None:
        self.end()
        if self._thread is not None:
            await to_thread.run_sync(self._thread.join, 5.0)

    def _wake_all(self) -> None:
        for subscriber in self._registered:
            subscriber.wake()

    async def subscribe(
        self,
        after: str | None = None,
        *,
        kind: str | None = None,
        subject: str | None = None,
        project: str | None = None,
    ) -> AsyncGenerator[bytes]:
        """Yield server-sent events: every event after a cursor, in order, each once.

        Without `after`, start with the next event.
        """

        def is_wanted(event: Event) -> bool:
            return (
                (kind is None or event.kind == kind)
                and (subject is None or event.subject == subject)
                and (project is None or event.project_id == project)
            )

        subscriber = FeedSubscriber(is_wanted, after or self._last_cursor)
        self.subscriber_count += 1
        try:
            yield f"retry: {RETRY_MS}\n\n".encode()
            while not self._stopping.is_set():
                # Read the backlog while nothing is queued for this subscriber. Then register and
                # read once more, so that no event is missed between the two.
                async for chunk in self._send_backlog(subscriber):
                    yield chunk
                subscriber.clear()
                self._registered.add(subscriber)
                async for chunk in self._send_backlog(subscriber):
                    yield chunk
                while not subscriber.is_lagging and not self._stopping.is_set():
                    yield await subscriber.take(HEARTBEAT_SECONDS) or HEARTBEAT_FRAME
                self._registered.discard(subscriber)
        finally:
            self._registered.discard(subscriber)
            self.subscriber_count -= 1

    async def _send_backlog(self, subscriber: FeedSubscriber) -> AsyncIterator[bytes]:
        while not self._stopping.is_set():
            page = await to_thread.run_sync(
                self._read_page, subscriber.cursor, limiter=self._readers
            )
            if not page.items:
                return
            yield subscriber.encode_page(page.items) or HEARTBEAT_FRAME

    def _read_page(self, cursor: str) -> Page[Event]:
        return self._store.events.after(cursor, limit=PAGE_SIZE)

    # -- follower thread ------------------------------------------------------------------------

    def _follow(self, cursor: str) -> None:
        while not self._stopping.is_set():
            try:
                for event in self._store.events.follow(cursor, is_finished=self._stopping.is_set):
                    self._enqueue(event)
                    cursor = event.cursor
                    if self._stopping.is_set():
                        return
            except CorralError as error:
                # No event is lost: following resumes after the last cursor.
                log.warning("The event feed is waiting for the store: %s", error.message)
            except Exception:
                if not self._stopping.is_set():
                    log.exception("The event feed failed and restarts")
            self._stopping.wait(RETRY_SECONDS)

    def _enqueue(self, event: Event) -> None:
        """Hand an event to the event loop; blocks while the loop is far behind."""
        self.seen += 1
        if self._on_event is not None:
            self._on_event(event)
        self._undispatched.append(
            FeedFrame(parse_cursor_position(event.cursor), event, encode_frame(event))
        )
        assert self._loop is not None
        if not self._is_dispatch_scheduled:
            self._is_dispatch_scheduled = True
            with suppress(RuntimeError):  # the event loop has closed
                self._loop.call_soon_threadsafe(self._dispatch)
        while len(self._undispatched) > MAX_UNDISPATCHED and not self._stopping.wait(0.005):
            pass

    # -- event loop thread ----------------------------------------------------------------------

    def _dispatch(self) -> None:
        """Queue one batch for every subscriber, then yield to the event loop."""
        self._is_dispatch_scheduled = False
        for _ in range(min(DISPATCH_BATCH, len(self._undispatched))):
            frame = self._undispatched.popleft()
            self._last_cursor = frame.event.cursor
            for subscriber in self._registered:
                subscriber.put(frame)
        if self._undispatched and not self._is_dispatch_scheduled:
            self._is_dispatch_scheduled = True
            assert self._loop is not None
            self._loop.call_soon(self._dispatch)


def encode_frame(event: Event) -> bytes:
    """Encode an event as a server-sent event."""
    return b"id: %s\ndata: %s\n\n" % (event.cursor.encode(), msgspec.json.encode(event))


def parse_cursor_position(cursor: str) -> tuple[int, int]:
    """Convert a cursor to a value that can be compared."""
    first, dash, second = cursor.partition("-")
    return (int(first), int(second)) if dash else (0, int(first))
