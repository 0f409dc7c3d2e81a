"""Connections to the server: limits on their number and on the time without a request.

A connection costs a file descriptor before its caller is known, and the daemon's loops need
descriptors too. So the number of connections is limited. Connections that wait for a request
without having shown a token may use half of the limit, those of one peer a quarter. Beyond a limit
the oldest of these is closed: idle connections cannot lock out a caller that sends its request at
once. Headers must be complete within HEADER_SECONDS.
"""

import asyncio
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from corral.kernel.identity import RunIdentity

HEADER_SECONDS = 10.0
IDLE_SECONDS = 30
RESERVED_FILES = 256  # minimum number of descriptors that connections never use
BURST_SECONDS = 1.0
MAX_PER_AGENT = 64
CONNECTION_KEY = "corral.connection"
"""The key of the connection in a request's ASGI scope."""


def choose_max_connections() -> int:
    """Return the limit that leaves half of the process's descriptors, and at least RESERVED_FILES,
    to everything else: the store's files, new supervisors, channels."""
    import resource

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        files = 65_536
    return max(32, min(files // 2, files - RESERVED_FILES))


class ConnectionPool:
    """The open connections of a server."""

    def __init__(self, limit: int | None = None) -> None:
        self.limit = limit or choose_max_connections()
        self._all: set[HttpConnection] = set()
        # Idle connections without a token, and since when; oldest first.
        self._idle: dict[HttpConnection, float] = {}
        self._idle_by_peer: Counter[str] = Counter()
        self._by_token: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._all)

    def add(self, connection: "HttpConnection") -> None:
        """Add a new connection.

        Beyond the limit, close the oldest idle connection without a token; if there is none, close
        the new one.
        """
        if len(self._all) >= self.limit and not self._close_oldest():
            connection.transport.abort()
            return
        self._all.add(connection)
        self.mark_idle(connection)

    def mark_idle(self, connection: "HttpConnection") -> None:
        """Mark a connection as waiting for a request; without a token it may be closed."""
        if connection.token is not None or connection not in self._all:
            return
        now = time.monotonic()
        self._idle[connection] = now
        self._idle_by_peer[connection.peer] += 1
        # A burst of new connections is not an attack: their requests follow.
        if self._idle_by_peer[connection.peer] > self.limit // 4:
            self._close_oldest(connection.peer, before=now - BURST_SECONDS)
        elif len(self._idle) > self.limit // 2:
            self._close_oldest(before=now - BURST_SECONDS)

    def mark_busy(self, connection: "HttpConnection") -> None:
        """Mark a connection as busy with a request: it is not closed meanwhile."""
        if self._idle.pop(connection, None) is not None:
            _decrement(self._idle_by_peer, connection.peer)

    def bind_token(self, connection: "HttpConnection", token: str, *, is_agent: bool) -> bool:
        """Assign a connection to a token; False when the token has too many connections."""
        if connection.token == token:
            return True
        limit = MAX_PER_AGENT if is_agent else self.limit
        if self._by_token[token] >= limit or connection not in self._all:
            return False
        self._unbind_token(connection)
        self.mark_busy(connection)
        connection.token = token
        self._by_token[token] += 1
        return True

    def remove(self, connection: "HttpConnection") -> None:
        self._all.discard(connection)
        self.mark_busy(connection)
        self._unbind_token(connection)

    def _close_oldest(self, peer: str | None = None, *, before: float | None = None) -> bool:
        for connection, idle_since in self._idle.items():
            if before is not None and idle_since > before:
                return False
            if peer is None or connection.peer == peer:
                self.remove(connection)
                connection.transport.abort()
                return True
        return False

    def _unbind_token(self, connection: "HttpConnection") -> None:
        token, connection.token = connection.token, None
        if token is not None:
            _decrement(self._by_token, token)


def _decrement(counter: "Counter[str]", key: str) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


class HttpConnection(H11Protocol):
    """One connection. `build_server_options` creates a subclass for each server."""

    pool: ConnectionPool
    header_seconds = HEADER_SECONDS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.peer = ""
        self.token: str | None = None
        self.identity: RunIdentity | None = None
        """The run that the calling process belongs to."""
        self.is_identified = False
        self._header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.peer = self.client[0] if self.client else ""
        self._start_header_timer()
        self.pool.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        self.pool.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self._start_header_timer()  # the next request on a kept-alive connection
        super().data_received(data)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._stop_header_timer()
            self.pool.mark_busy(self)
            # The request's task shares this scope and starts later.
            scope: Any = self.scope
            scope[CONNECTION_KEY] = self

    def on_response_complete(self) -> None:
        self.pool.mark_idle(self)
        super().on_response_complete()

    def _start_header_timer(self) -> None:
        if self._header_timer is None:
            self._header_timer = self.loop.call_later(self.header_seconds, self._abort)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _abort(self) -> None:
        self._header_timer = None
        self.transport.abort()


def build_server_options(pool: ConnectionPool | None = None, **attributes: Any) -> dict[str, Any]:
    """Return the options of `uvicorn.Config` for a server with these limits.

    `attributes` override attributes of its connections.
    """
    limits = ConnectionPool() if pool is None else pool
    protocol = type("ServedConnection", (HttpConnection,), {"pool": limits, **attributes})
    return {"http": protocol, "ws": "none", "timeout_keep_alive": IDLE_SECONDS}
