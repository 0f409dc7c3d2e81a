"""LISTEN and NOTIFY: wake other processes on a PostgreSQL store after a commit."""

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import psycopg

from corral.db.statement import Row
from corral.kernel.errors import StoreUnavailable

CHANNEL = "corral"
NOTIFY_INTERVAL = 0.015
"""Commits closer together than this many seconds share one notification."""
CLOSE_TIMEOUT = 5


class ListenConnection(Protocol):
    """A connection that a listener needs."""

    connection: psycopg.Connection[Row]

    def run(self, text: str) -> list[Row]: ...


class CommitNotifier:
    """A helper thread that notifies other processes of commits, and closes unused connections.

    NOTIFY runs after the commit, on another connection: inside the transaction, PostgreSQL would
    serialize the commits of all notifying transactions. If this process dies in between, the
    fallback poll of the listeners finds the change.
    """

    def __init__(self, send: Callable[[], None], close_unused: Callable[[], float | None]) -> None:
        """Start no thread yet.

        `close_unused` returns the seconds until its next call, or None: not before the next
        `watch_connections`.
        """
        self._send = send
        self._close_unused = close_unused
        self._wake = threading.Event()
        self._is_pending = False
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def notify(self) -> None:
        """Send a notification soon."""
        self._is_pending = True
        if not self._wake.is_set():
            self._wake.set()
        if self._thread is None:
            self._start()

    def watch_connections(self) -> None:
        """Start watching for unused connections, after one was opened."""
        self._wake.set()
        if self._thread is None and not self._is_closed:
            self._start()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, daemon=True, name="notifier")
                self._thread.start()

    def _loop(self) -> None:
        while True:
            self._wake.wait(self._close_unused())
            self._wake.clear()
            if is_pending := self._is_pending:
                self._is_pending = False
                self._send()
            if self._is_closed:
                return
            if is_pending:
                time.sleep(NOTIFY_INTERVAL)

    def close(self) -> None:
        """Send a pending notification and end the thread."""
        self._is_closed = True
        if self._thread is not None:
            self._wake.set()
            self._thread.join(CLOSE_TIMEOUT)


class NotifyListener:
    """A listener on a connection with LISTEN; polls slowly as a fallback."""

    SAFETY_POLL = 1.0

    def __init__(self, connect: Callable[[], ListenConnection]) -> None:
        """`connect` must not wait for a free connection: without one, `wait` polls."""
        self._connect = connect
        self._connection: ListenConnection | None = None
        self.paused_at = 0.0
        """When the listener was last paused."""
        with suppress(psycopg.Error, StoreUnavailable):  # the server is away: `wait` tries again
            self._subscribe()

    def _subscribe(self) -> None:
        self._connection = self._connect()
        self._connection.run(f"LISTEN {CHANNEL}")

    def resume(self) -> None:
        self._run_or_close(f"LISTEN {CHANNEL}")

    def pause(self) -> None:
        self.paused_at = time.monotonic()
        # The server would queue notifications for a client that listens and does not read.
        self._run_or_close(f"UNLISTEN {CHANNEL}")

    def _run_or_close(self, text: str) -> None:
        try:
            if self._connection is not None:
                self._connection.run(text)
        except psycopg.Error:
            self.close()

    def wait(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        try:
            if self._connection is None:
                self._subscribe()
                return True  # commits before the subscription went unnoticed
            remaining = min(timeout, self.SAFETY_POLL)
            for _ in self._connection.connection.notifies(timeout=remaining, stop_after=1):
                return True
        except (psycopg.Error, StoreUnavailable) as error:
            self.close()
            is_full = isinstance(error, StoreUnavailable) and error.reason == "too_many_clients"
            pause = self.SAFETY_POLL if is_full else random.uniform(0.05, 0.3)
            time.sleep(min(max(deadline - time.monotonic(), 0), pause))
        # The end of a poll counts as a wake-up, so that the caller runs its query again.
        return time.monotonic() < deadline

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.connection.close()
