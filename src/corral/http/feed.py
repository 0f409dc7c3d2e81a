"""The feed of events for many browsers: one follower of the store, whoever listens.

A thread follows the store and hands every event on, once, as the bytes that all subscribers are
sent. Each subscriber has a line of its own that is bounded: for whoever lags behind, what it missed
is read from the store, at its own pace. So 500 browsers cost one query an event, and one that
sleeps costs next to nothing.
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

MOST_WAITING = 5_000  # events in one subscriber's line
MOST_BYTES = 4 * 1024 * 1024  # of them; the bytes are the same ones for all subscribers
MOST_AHEAD = 5_000  # events that the follower may be ahead of what is handed out
BATCH = 200  # events handed out before the subscribers get a turn
PIECE = 64 * 1024  # bytes sent at once
PAGE = 100
HEARTBEAT = 15.0  # seconds without an event, after which a subscriber is told that the line is up
QUIET = b": \n\n"
RETRY_MS = 1_000  # when a browser tries again after it was cut off
PATIENCE = 1.0  # between two tries to follow a store that cannot be used


class Line(NamedTuple):
    """One event as it is sent."""

    place: tuple[int, int]
    event: Event
    frame: bytes


class Subscriber:
    """One browser's line, and how far it has got."""

    def __init__(self, wanted: Callable[[Event], bool], read: str) -> None:
        self._wanted = wanted
        self._lines: deque[Line] = deque()
        self._bytes = 0
        self._news = asyncio.Event()
        self.lags = False
        """Its line was full: it must read what it missed."""
        self.read = read
        """The cursor of the last event that it was given."""

    def put(self, line: Line) -> None:
        if self.lags or not self._wanted(line.event):
            return
        self._lines.append(line)
        self._bytes += len(line.frame)
        if len(self._lines) > MOST_WAITING or self._bytes > MOST_BYTES:
            self.lags = True
        self._news.set()

    def wake(self) -> None:
        self._news.set()

    def begin(self) -> None:
        """With an empty line."""
        self._lines.clear()
        self._bytes = 0
        self.lags = False

    async def take(self, seconds: float) -> bytes:
        """What waits, up to a piece of it; nothing when the time is over."""
        if not self._lines:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), seconds)
        self._news.clear()
        frames: list[bytes] = []
        size, behind = 0, place_of(self.read)
        while self._lines and size < PIECE:
            line = self._lines.popleft()
            size += len(line.frame)
            if line.place > behind:
                frames.append(line.frame)
                self.read = line.event.cursor
        self._bytes -= size
        return b"".join(frames)

    def given(self, events: list[Event]) -> bytes:
        """Events that were read for it, as they are sent."""
        self.read = events[-1].cursor
        return b"".join([frame_of(event) for event in events if self._wanted(event)])


class Feed:
    """Follows a store from `start` to `close`, for as many subscribers as there are."""

    def __init__(self, store: Corral, *, watch: Callable[[Event], object] | None = None) -> None:
        self._store = store
        self._watch = watch
        self._subscribers: set[Subscriber] = set()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reading = CapacityLimiter(4)
        self._ahead: deque[Line] = deque()
        self._called = False
        self._last = "0-0"
        self.seen = 0
        """How many events came by."""
        self.subscribers = 0
        """How many listen, those that lag behind included."""

    async def start(self) -> None:
        """From when this returns, no event is missed."""
        self._loop = asyncio.get_running_loop()
        newest = await to_thread.run_sync(lambda: self._store.events.newest(limit=1).next)
        self._last = newest or self._last
        self._thread = threading.Thread(
            target=self._follow, args=(self._last,), name="feed", daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """Let all subscribers go; they may come again elsewhere. From any thread."""
        self._stopping.set()
        if self._loop is not None:
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._wake_all)

    async def close(self) -> None:
        self.end()
        if self._thread is not None:
            await to_thread.run_sync(self._thread.join, 5.0)

    def _wake_all(self) -> None:
        for subscriber in self._subscribers:
            subscriber.wake()

    async def subscribe(
        self,
        after: str | None = None,
        *,
        kind: str | None = None,
        subject: str | None = None,
        project: str | None = None,
    ) -> AsyncGenerator[bytes]:
        """What a browser is sent: every event behind a cursor, in order, each once; from now on
        without one."""

        def wanted(event: Event) -> bool:
            return (
                (kind is None or event.kind == kind)
                and (subject is None or event.subject == subject)
                and (project is None or event.project_id == project)
            )

        subscriber = Subscriber(wanted, after or self._last)
        self.subscribers += 1
        try:
            yield f"retry: {RETRY_MS}\n\n".encode()
            while not self._stopping.is_set():
                # What is long past is read while nothing is kept in line for this subscriber; then
                # once more, so that no event falls between the reading and the line.
                async for piece in self._past(subscriber):
                    yield piece
                subscriber.begin()
                self._subscribers.add(subscriber)
                async for piece in self._past(subscriber):
                    yield piece
                while not subscriber.lags and not self._stopping.is_set():
                    yield await subscriber.take(HEARTBEAT) or QUIET
                self._subscribers.discard(subscriber)
        finally:
            self._subscribers.discard(subscriber)
            self.subscribers -= 1

    async def _past(self, subscriber: Subscriber) -> AsyncIterator[bytes]:
        while not self._stopping.is_set():
            page = await to_thread.run_sync(self._page, subscriber.read, limiter=self._reading)
            if not page.items:
                return
            yield subscriber.given(page.items) or QUIET

    def _page(self, cursor: str) -> Page[Event]:
        return self._store.events.after(cursor, limit=PAGE)

    # -- the follower's thread ------------------------------------------------------------------

    def _follow(self, cursor: str) -> None:
        while not self._stopping.is_set():
            try:
                for event in self._store.events.follow(cursor, over=self._stopping.is_set):
                    self._hand_on(event)
                    cursor = event.cursor
                    if self._stopping.is_set():
                        return
            except CorralError as error:
                # What happens meanwhile is not missed: it goes on behind the last event.
                log.warning("The feed waits for the store: %s", error.message)
            except Exception:
                if not self._stopping.is_set():
                    log.exception("The feed stumbled, and goes on")
            self._stopping.wait(PATIENCE)

    def _hand_on(self, event: Event) -> None:
        self.seen += 1
        if self._watch is not None:
            self._watch(event)
        self._ahead.append(Line(place_of(event.cursor), event, frame_of(event)))
        assert self._loop is not None
        if not self._called:
            self._called = True
            with suppress(RuntimeError):  # the server has ended
                self._loop.call_soon_threadsafe(self._hand_out)
        while len(self._ahead) > MOST_AHEAD and not self._stopping.wait(0.005):
            pass

    def _hand_out(self) -> None:
        """On the server's own thread: a batch for every subscriber, then their turn."""
        self._called = False
        for _ in range(min(BATCH, len(self._ahead))):
            line = self._ahead.popleft()
            self._last = line.event.cursor
            for subscriber in self._subscribers:
                subscriber.put(line)
        if self._ahead and not self._called:
            self._called = True
            assert self._loop is not None
            self._loop.call_soon(self._hand_out)


def frame_of(event: Event) -> bytes:
    return b"id: %s\ndata: %s\n\n" % (event.cursor.encode(), msgspec.json.encode(event))


def place_of(cursor: str) -> tuple[int, int]:
    """A cursor as something that can be compared."""
    first, dash, second = cursor.partition("-")
    return (int(first), int(second)) if dash else (0, int(first))
