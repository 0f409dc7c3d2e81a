"""Connections to the server: limits on their number and on the time without a request.

A connection costs a descriptor before its caller is known, and the daemon's loops need descriptors
too. So the number of connections is limited; half of the limit is for connections that wait for a
request without having shown a token, a quarter for those of one peer. Beyond a limit the oldest of
these is closed: idle connections cannot lock out a caller that sends its request at once. Headers
must be complete within HEADER_SECONDS.
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
RESERVED_FILES = 256  # descriptors that connections never take, at least
BURST_SECONDS = 1.0
MOST_OF_AGENT = 64
CONNECTION = "corral.connection"
"""The key of the connection in a request's ASGI scope."""


def most_connections() -> int:
    """Return the limit that leaves half of the process's descriptors, and at least RESERVED_FILES,
    to everything else: the store's files, new supervisors, channels."""
    import resource

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        files = 65_536
    return max(32, min(files // 2, files - RESERVED_FILES))


class Connections:
    """The open connections."""

    def __init__(self, most: int | None = None) -> None:
        self.most = most or most_connections()
        self._all: set[Connection] = set()
        # Connections without a token that wait for a request, and since when; oldest first.
        self._waiting: dict[Connection, float] = {}
        self._of_peer: Counter[str] = Counter()
        self._of_token: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._all)

    def add(self, connection: "Connection") -> None:
        """Add a new connection. Beyond the limit, close the oldest one that waits for a request
        without a token; if there is none, close the new one."""
        if len(self._all) >= self.most and not self._close_oldest():
            connection.transport.abort()
            return
        self._all.add(connection)
        self.wait(connection)

    def wait(self, connection: "Connection") -> None:
        """Mark a connection as waiting for a request; without a token it may be closed."""
        if connection.token is not None or connection not in self._all:
            return
        now = time.monotonic()
        self._waiting[connection] = now
        self._of_peer[connection.peer] += 1
        # A burst of new connections is not an attack: their requests follow.
        if self._of_peer[connection.peer] > self.most // 4:
            self._close_oldest(connection.peer, before=now - BURST_SECONDS)
        elif len(self._waiting) > self.most // 2:
            self._close_oldest(before=now - BURST_SECONDS)

    def work(self, connection: "Connection") -> None:
        """Mark a connection as busy with a request; it is not closed meanwhile."""
        if self._waiting.pop(connection, None) is not None:
            _count_down(self._of_peer, connection.peer)

    def prove(self, connection: "Connection", token: str, *, is_agent: bool) -> bool:
        """Assign a connection to a token; False when that token has too many connections."""
        if connection.token == token:
            return True
        most = MOST_OF_AGENT if is_agent else self.most
        if self._of_token[token] >= most or connection not in self._all:
            return False
        self._forget_token(connection)
        self.work(connection)
        connection.token = token
        self._of_token[token] += 1
        return True

    def remove(self, connection: "Connection") -> None:
        self._all.discard(connection)
        self.work(connection)
        self._forget_token(connection)

    def _close_oldest(self, peer: str | None = None, *, before: float | None = None) -> bool:
        for each, since in self._waiting.items():
            if before is not None and since > before:
                return False
            if peer is None or each.peer == peer:
                self.remove(each)
                each.transport.abort()
                return True
        return False

    def _forget_token(self, connection: "Connection") -> None:
        token, connection.token = connection.token, None
        if token is not None:
            _count_down(self._of_token, token)


def _count_down(counter: "Counter[str]", key: str) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


class Connection(H11Protocol):
    """One connection; `server_options` creates a subclass for each server."""

    pool: Connections
    header_seconds = HEADER_SECONDS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.peer = ""
        self.token: str | None = None
        self.identity: RunIdentity | None = None
        """The run that the calling process belongs to."""
        self.is_identified = False
        self._waits_for_headers: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.peer = self.client[0] if self.client else ""
        self._begin_headers()
        self.pool.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_headers()
        self.pool.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self._begin_headers()  # of the next request on a kept connection
        super().data_received(data)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._end_headers()
            self.pool.work(self)
            # The request's task shares this scope and starts later.
            extra: Any = self.scope
            extra[CONNECTION] = self

    def on_response_complete(self) -> None:
        self.pool.wait(self)
        super().on_response_complete()

    def _begin_headers(self) -> None:
        if self._waits_for_headers is None:
            self._waits_for_headers = self.loop.call_later(self.header_seconds, self._give_up)

    def _end_headers(self) -> None:
        if self._waits_for_headers is not None:
            self._waits_for_headers.cancel()
            self._waits_for_headers = None

    def _give_up(self) -> None:
        self._waits_for_headers = None
        self.transport.abort()


def server_options(pool: Connections | None = None, **own: Any) -> dict[str, Any]:
    """Return the options of `uvicorn.Config` for a server with these limits; `own` are attributes
    of its connections."""
    limits = Connections() if pool is None else pool
    kind = type("ServedConnection", (Connection,), {"pool": limits, **own})
    return {"http": kind, "ws": "none", "timeout_keep_alive": IDLE_SECONDS}
