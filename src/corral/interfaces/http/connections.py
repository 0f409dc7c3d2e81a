"""Connections to the server: how many there may be, and for how long one may say nothing.

A connection costs a descriptor before anybody knows whose it is, and the loops of the daemon need
descriptors too. So there is a limit for all connections, which leaves the loops their share, one
for those that have not shown a token yet, and one per peer among these. Where a new one is too
many, the oldest without a token is closed: a caller that sends its request at once is not locked
out by others that open connections and send nothing. Headers must be whole within HEADER_SECONDS.
"""

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    from corral.kernel.identity import RunIdentity

HEADER_SECONDS = 10.0
IDLE_SECONDS = 30
RESERVED_FILES = 256  # descriptors that connections never take, at least
MOST_UNPROVEN = 256
MOST_UNPROVEN_OF_PEER = 128
MOST_OF_AGENT = 64
CONNECTION = "corral.connection"
"""Where a request's scope has its connection."""


def most_connections() -> int:
    """As many as leave half of this process's descriptors, and RESERVED_FILES, to everything else:
    the store's files, supervisors that start, channels."""
    import resource

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        files = 65_536
    return max(32, min(files // 2, files - RESERVED_FILES))


class Connections:
    """The connections that are open."""

    def __init__(self, most: int | None = None) -> None:
        self.most = most or most_connections()
        self._all: set[Connection] = set()
        # Those without a token, oldest first.
        self._unproven: dict[Connection, str] = {}
        self._of_peer: Counter[str] = Counter()
        self._of_token: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._all)

    def add(self, connection: "Connection") -> None:
        """Count a new connection; a connection without a token is closed where it is one too many,
        the new one itself where all others have shown one."""
        peer = connection.client[0] if connection.client else ""
        if self._of_peer[peer] >= MOST_UNPROVEN_OF_PEER:
            self._close_oldest(peer)
        elif len(self._unproven) >= MOST_UNPROVEN or len(self._all) >= self.most:
            self._close_oldest()
        if len(self._all) >= self.most:
            connection.transport.abort()
            return
        self._all.add(connection)
        self._unproven[connection] = peer
        self._of_peer[peer] += 1

    def prove(self, connection: "Connection", token: str, *, is_agent: bool) -> bool:
        """Note whose connection it is; False when that caller has as many as it may have."""
        if connection.token == token:
            return True
        most = MOST_OF_AGENT if is_agent else self.most * 3 // 4
        if self._of_token[token] >= most or connection not in self._all:
            return False
        self._forget_token(connection)
        self._forget_unproven(connection)
        connection.token = token
        self._of_token[token] += 1
        return True

    def remove(self, connection: "Connection") -> None:
        self._all.discard(connection)
        self._forget_unproven(connection)
        self._forget_token(connection)

    def _close_oldest(self, peer: str | None = None) -> None:
        for each, of in self._unproven.items():
            if peer is None or of == peer:
                self.remove(each)
                each.transport.abort()
                return

    def _forget_unproven(self, connection: "Connection") -> None:
        peer = self._unproven.pop(connection, None)
        if peer is not None:
            self._of_peer[peer] -= 1
            if not self._of_peer[peer]:
                del self._of_peer[peer]

    def _forget_token(self, connection: "Connection") -> None:
        token, connection.token = connection.token, None
        if token is not None:
            self._of_token[token] -= 1
            if not self._of_token[token]:
                del self._of_token[token]


class Connection(H11Protocol):
    """One connection; a subclass that `server_options` makes knows which server's it is."""

    pool: Connections
    header_seconds = HEADER_SECONDS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.token: str | None = None
        self.identity: RunIdentity | None = None
        """The run that the calling process belongs to."""
        self.is_identified = False
        self._waits_for_headers: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_headers()
        self.pool.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_headers()
        self.pool.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self._begin_headers()  # of the next request on a connection that was kept
        super().data_received(data)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before:
            self._end_headers()
            # The request's task has the same scope, and begins after this.
            extra: Any = self.scope
            extra[CONNECTION] = self

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
    """What `uvicorn.Config` is to be given for a server with these limits; `own` are attributes of
    its connections."""
    kind = type("ServedConnection", (Connection,), {"pool": pool or Connections(), **own})
    return {"http": kind, "ws": "none", "timeout_keep_alive": IDLE_SECONDS}
