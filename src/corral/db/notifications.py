"""What passes between processes on a PostgreSQL store beside its rows: notices, and the time."""

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import psycopg

from corral.db.statement import Row
from corral.kernel.errors import CorralError, StoreUnavailable

CHANNEL = "corral"
BELL_PAUSE = 0.015  # commits closer together than this ring once
LAST_RING_SECONDS = 5


class Wire(Protocol):
    connection: psycopg.Connection[Row]

    def run(self, text: str) -> list[Row]: ...


class ServerClock:
    """The server's time, so that machines whose own clocks differ agree on leases.

    The difference is measured now and then and carried on with the steady clock in between, also
    while the server is away.
    """

    SECONDS = 30.0
    ROUND_TRIP = 0.2  # seconds; one that took longer, because it was stopped, say, is made again
    TRIES = 5

    def __init__(
        self, ask: Callable[[], int], *, at_first: Callable[[], int] | None = None
    ) -> None:
        """`at_first`: who asks now, where there is a quicker way than later."""
        self._ask = ask
        self._asking = threading.Lock()
        self._known = self._measure(at_first or ask)

    def now(self) -> int:
        measured, told = self._known
        passed = time.monotonic() - measured
        if passed > self.SECONDS and self._asking.acquire(blocking=False):
            try:
                with suppress(CorralError):
                    measured, told = self._known = self._measure(self._ask)
                    passed = time.monotonic() - measured
            finally:
                self._asking.release()
        return told + int(passed * 1_000)

    def _measure(self, ask: Callable[[], int]) -> tuple[float, int]:
        best: tuple[float, float, int] | None = None
        for _ in range(self.TRIES):
            before = time.monotonic()
            told = ask()
            after = time.monotonic()
            # The server answered somewhere between the two; the middle is off by half at the most.
            measured = after - before, (before + after) / 2, told
            best = min(best or measured, measured)
            if best[0] <= self.ROUND_TRIP:
                break
        assert best is not None
        return best[1:]


class Bell:
    """A helper thread that notifies other processes of commits, and closes unused connections.

    The notice is sent after the commit and beside it: inside, PostgreSQL would let notifying
    transactions commit only one after the other. Commits that are close together send one notice.
    If this process dies in between, the slow poll of the listeners finds the change.
    """

    def __init__(self, ring: Callable[[], None], close_unused: Callable[[], float | None]) -> None:
        """`close_unused` returns the seconds until its next call; None: not before the next
        `attend`."""
        self._send = ring
        self._close_unused = close_unused
        self._wake = threading.Event()
        self._to_send = False
        self._closed = False
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def ring(self) -> None:
        """Send a notice soon."""
        self._to_send = True
        if not self._wake.is_set():
            self._wake.set()
        if self._thread is None:
            self._start()

    def attend(self) -> None:
        """Start watching for unused connections, after one was opened."""
        self._wake.set()
        if self._thread is None and not self._closed:
            self._start()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, daemon=True, name="bell")
                self._thread.start()

    def _loop(self) -> None:
        while True:
            self._wake.wait(self._close_unused())
            self._wake.clear()
            if sends := self._to_send:
                self._to_send = False
                self._send()
            if self._closed:
                return
            if sends:
                time.sleep(BELL_PAUSE)

    def close(self) -> None:
        """Send a pending notice and end the thread."""
        self._closed = True
        if self._thread is not None:
            self._wake.set()
            self._thread.join(LAST_RING_SECONDS)


class NotifyListener:
    SAFETY_POLL = 1.0

    def __init__(self, connect: Callable[[], Wire]) -> None:
        """`connect` must not wait for a free connection: without one, `wait` polls."""
        self._connect = connect
        self._wire: Wire | None = None
        self.rested = 0.0
        with suppress(psycopg.Error, StoreUnavailable):  # a server that is away: `wait` tries again
            self._subscribe()

    def _subscribe(self) -> None:
        self._wire = self._connect()
        self._wire.run(f"LISTEN {CHANNEL}")

    def resume(self) -> None:
        self._or_break_off(f"LISTEN {CHANNEL}")

    def rest(self) -> None:
        self.rested = time.monotonic()
        # The server would keep notices for one who listens and never reads them.
        self._or_break_off(f"UNLISTEN {CHANNEL}")

    def _or_break_off(self, text: str) -> None:
        try:
            if self._wire is not None:
                self._wire.run(text)
        except psycopg.Error:
            self.close()

    def wait(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        try:
            if self._wire is None:
                self._subscribe()
                return True  # whatever happened while nobody listened
            left = min(timeout, self.SAFETY_POLL)
            for _ in self._wire.connection.notifies(timeout=left, stop_after=1):
                return True
        except (psycopg.Error, StoreUnavailable) as error:
            self.close()
            full = isinstance(error, StoreUnavailable) and error.reason == "too_many_clients"
            pause = self.SAFETY_POLL if full else random.uniform(0.05, 0.3)
            time.sleep(min(max(deadline - time.monotonic(), 0), pause))
        # A poll that came out empty counts as a wake-up: better one query too many.
        return time.monotonic() < deadline

    def close(self) -> None:
        wire, self._wire = self._wire, None
        if wire is not None:
            with suppress(psycopg.Error):
                wire.connection.close()
