"""PostgreSQL connections that are kept for the next store on the same database.

A new server process knows nothing of the schema: starting and warming it up costs more than most
tests. The cache resets all session state except prepared statements, because planning them again
is most of the cost. To psycopg and to the next store, the connection is new.
"""

import os
import select
from collections.abc import Callable
from typing import Any, NamedTuple

import psycopg
from psycopg import pq
from psycopg._preparing import PrepareManager

STORES = "corral"  # the application_name of a store; other connections are not kept
MOST = 4  # per database
# DISCARD ALL without DEALLOCATE ALL and DISCARD PLANS.
FORGET = """
    CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ALL; UNLISTEN *;
    SELECT pg_advisory_unlock_all(); DISCARD TEMP; DISCARD SEQUENCES"""

_done_with = pq.PGconn.connect_start(b"")
_done_with.finish()


class _Server(NamedTuple):
    """A server connection and the names of its prepared statements."""

    line: pq.abc.PGconn
    prepared: PrepareManager


class _Keepable(psycopg.Connection[Any]):
    keep: Callable[[_Server], bool]

    def close(self) -> None:
        if not self.closed and self.keep(_Server(self.pgconn, self._prepared)):
            self.pgconn = _done_with  # later uses of this handle find it closed
        super().close()


class ConnectionCache:
    """The closed connections, by the URL of their database."""

    def __init__(self, name: str) -> None:
        self._pid = os.getpid()
        self._forget = f"{FORGET}; SET application_name = '{name}'".encode()
        self._kept: dict[str, list[_Server]] = {}

    def begin(self, url: str) -> None:
        """Start to keep the connections of this database."""
        self._kept.setdefault(url, [])

    def end(self, url: str) -> None:
        for server in self._kept.pop(url, []):
            server.line.finish()

    def connect(self, conninfo: str = "", **options: Any) -> psycopg.Connection[Any]:
        """Replacement for `psycopg.connect`."""
        if conninfo not in self._kept or options.get("application_name") != STORES:
            return psycopg.Connection.connect(conninfo, **options)
        connection = self._again(conninfo, options) or _Keepable.connect(conninfo, **options)
        connection.keep = lambda server: self._keep(conninfo, server)
        return connection

    def _again(self, url: str, options: dict[str, Any]) -> _Keepable | None:
        if os.getpid() != self._pid:  # a forked child, which shares the sockets with its parent
            return None
        while self._kept[url]:
            server = self._kept[url].pop()
            if _silent(server.line) and _run(server.line, b"RESET application_name"):
                connection = _Keepable(server.line)
                connection._prepared = server.prepared
                connection.autocommit = options["autocommit"]
                connection.prepare_threshold = options["prepare_threshold"]
                return connection
            server.line.finish()
        return None

    def _keep(self, url: str, server: _Server) -> bool:
        cached = self._kept.get(url)
        if cached is None or len(cached) >= MOST or os.getpid() != self._pid:
            return False
        idle = server.line.transaction_status == pq.TransactionStatus.IDLE
        if not idle or not _run(server.line, self._forget):
            return False
        while server.line.notifies() is not None:
            pass
        cached.append(server)
        return True


def _silent(server: pq.abc.PGconn) -> bool:
    """Return whether no data is pending; a dead connection has some."""
    line = select.poll()
    line.register(server.socket, select.POLLIN)
    return not line.poll(0)


def _run(server: pq.abc.PGconn, text: bytes) -> bool:
    return server.exec_(text).status == pq.ExecStatus.COMMAND_OK
