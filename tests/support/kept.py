"""Connections of stores that are kept for the next store that is opened on the same database.

A server's process that has just begun knows nothing of the schema: to begin one and to teach it
costs more than most tests. What is kept is forgotten by `DISCARD ALL`; to psycopg, and to whoever
opens a store, it is a new connection.
"""

import os
import select
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import pq

STORES = "corral"  # what a store calls its connections; nobody else's are kept
MOST = 4  # of one database

_done_with = pq.PGconn.connect_start(b"")
_done_with.finish()


class _Keepable(psycopg.Connection[Any]):
    keep: Callable[[pq.abc.PGconn], bool]

    def close(self) -> None:
        if not self.closed and self.keep(self.pgconn):
            self.pgconn = _done_with  # whoever goes on to use it finds it closed
        super().close()


class Kept:
    """The connections that were closed, by the URL of their database."""

    def __init__(self, name: str) -> None:
        self._pid = os.getpid()
        self._forget = [b"DISCARD ALL", f"SET application_name = '{name}'".encode()]
        self._kept: dict[str, list[pq.abc.PGconn]] = {}

    def begin(self, url: str) -> None:
        """From now on those of this database are kept."""
        self._kept.setdefault(url, [])

    def end(self, url: str) -> None:
        for server in self._kept.pop(url, []):
            server.finish()

    def connect(self, conninfo: str = "", **options: Any) -> psycopg.Connection[Any]:
        """In the place of `psycopg.connect`."""
        if conninfo not in self._kept or options.get("application_name") != STORES:
            return psycopg.Connection.connect(conninfo, **options)
        connection = self._again(conninfo, options) or _Keepable.connect(conninfo, **options)
        connection.keep = lambda server: self._keep(conninfo, server)
        return connection

    def _again(self, url: str, options: dict[str, Any]) -> _Keepable | None:
        if os.getpid() != self._pid:  # a forked child, which shares them with its parent
            return None
        while self._kept[url]:
            server = self._kept[url].pop()
            if _silent(server) and _run(server, b"RESET application_name"):
                connection = _Keepable(server)
                connection.autocommit = options["autocommit"]
                connection.prepare_threshold = options["prepare_threshold"]
                return connection
            server.finish()
        return None

    def _keep(self, url: str, server: pq.abc.PGconn) -> bool:
        kept = self._kept.get(url)
        if kept is None or len(kept) >= MOST or os.getpid() != self._pid:
            return False
        idle = server.transaction_status == pq.TransactionStatus.IDLE
        if not idle or not all(_run(server, text) for text in self._forget):
            return False
        while server.notifies() is not None:
            pass
        kept.append(server)
        return True


def _silent(server: pq.abc.PGconn) -> bool:
    """Whether it says nothing; one that died says so."""
    line = select.poll()
    line.register(server.socket, select.POLLIN)
    return not line.poll(0)


def _run(server: pq.abc.PGconn, text: bytes) -> bool:
    return server.exec_(text).status == pq.ExecStatus.COMMAND_OK
