"""The sandbox's side of the two files: it reads `inbound.db` and writes `outbound.db`.

This runs in the sandbox, so it imports only the standard library.
"""

import json
import os
import shutil
import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from corral.adapters.sandbox_bridge.schema import (
    BUSY_MS,
    OUTBOUND,
    OUTBOX,
    SessionFolder,
    format_time,
    next_odd,
)
from corral.kernel.clock import SystemClock

KEPT_MESSAGES = 200
"""Own messages with a known outcome that are kept, so that later ones can refer to them."""


class SessionFiles:
    """The two files of a session."""

    def __init__(self, top: str) -> None:
        self.folder = SessionFolder(top)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Open `inbound.db` read-only, for one read: a cached page could be stale."""
        uri = f"file:{_quote_path(self.folder.inbound)}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_MS / 1_000)) as connection:
            connection.execute("PRAGMA mmap_size = 0")
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Open `outbound.db` for one transaction; creates its tables."""
        path = self.folder.outbound
        with closing(sqlite3.connect(path, timeout=BUSY_MS / 1_000)) as connection:
            connection.isolation_level = None
            connection.execute("PRAGMA journal_mode = DELETE")
            connection.execute("BEGIN IMMEDIATE")
            for statement in OUTBOUND.split(";"):
                connection.execute(statement)
            yield connection
            connection.execute("COMMIT")

    def pending(self) -> list[dict[str, Any]]:
        """Return the due messages that are not acknowledged, oldest first."""
        with self.reading() as connection:
            connection.row_factory = sqlite3.Row
            rows = connection.execute(
                "SELECT id, seq, kind, platform_id, channel_type, thread_id, content "
                "FROM messages_in WHERE status = 'pending' "
                "AND (process_after IS NULL OR process_after <= ?) ORDER BY seq",
                (timestamp(),),
            ).fetchall()
        with self.writing() as connection:
            acked = {id for (id,) in connection.execute("SELECT message_id FROM processing_ack")}
        return [
            dict(row) | {"content": json.loads(row["content"])}
            for row in rows
            if row["id"] not in acked
        ]

    def begin(self) -> None:
        """Release the messages of a crashed predecessor, and prune delivered messages."""
        delivered = self._list_delivered()
        with self.writing() as connection:
            connection.execute("DELETE FROM processing_ack WHERE status = 'processing'")
            old = connection.execute(
                "SELECT id FROM messages_out ORDER BY seq DESC LIMIT -1 OFFSET ?", (KEPT_MESSAGES,)
            ).fetchall()
            expired = [row for row in old if row[0] in delivered]
            connection.executemany("DELETE FROM messages_out WHERE id = ?", expired)
            for id in delivered.intersection(self._list_outboxes()):
                shutil.rmtree(os.path.join(self.outbox, id), ignore_errors=True)
            connection.execute(
                "DELETE FROM processing_ack WHERE rowid <= (SELECT max(rowid) FROM processing_ack) "
                "- ?",
                (10 * KEPT_MESSAGES,),
            )

    @property
    def outbox(self) -> str:
        return os.path.join(self.folder.outside, OUTBOX)

    def _list_outboxes(self) -> list[str]:
        return os.listdir(self.outbox) if os.path.isdir(self.outbox) else []

    def copy_to_outbox(self, id: str, paths: Sequence[str]) -> list[str]:
        """Copy files to the outbox of a message; return their names there."""
        names = [f"{number}-{os.path.basename(path)}" for number, path in enumerate(paths, 1)]
        os.makedirs(os.path.join(self.outbox, id), mode=0o700)
        for path, name in zip(paths, names, strict=True):
            shutil.copyfile(path, os.path.join(self.outbox, id, name))
        return names

    def _list_delivered(self) -> set[str]:
        with self.reading() as connection:
            return {id for (id,) in connection.execute("SELECT message_out_id FROM delivered")}

    def put(
        self,
        connection: sqlite3.Connection,
        kind: str,
        content: dict[str, Any],
        *,
        address: tuple[str | None, str | None, str | None] = (None, None, None),
        in_reply_to: str | None = None,
        id: str | None = None,
    ) -> tuple[str, int]:
        """Add a message for the host under the next odd number; return its id and number."""
        with self.reading() as other:
            query = "SELECT coalesce(max(seq), 0) FROM messages_in"
            (inbound,) = other.execute(query).fetchone()
        (outbound,) = connection.execute(
            "SELECT coalesce(max(seq), 0) FROM messages_out"
        ).fetchone()
        id, number = id or new_id(), next_odd(max(inbound, outbound))
        channel_type, platform_id, thread_id = address
        connection.execute(
            "INSERT INTO messages_out (id, seq, in_reply_to, timestamp, kind, platform_id, "
            "channel_type, thread_id, content) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                id,
                number,
                in_reply_to,
                timestamp(),
                kind,
                platform_id,
                channel_type,
                thread_id,
                json.dumps(content),
            ),
        )
        return id, number


def new_id() -> str:
    return f"out-{uuid.uuid4().hex}"


def acknowledge(connection: sqlite3.Connection, ids: Sequence[str], status: str) -> None:
    """Record the status of messages from the host."""
    connection.executemany(
        "INSERT INTO processing_ack VALUES (?, ?, ?) ON CONFLICT (message_id) "
        "DO UPDATE SET status = excluded.status, status_changed = excluded.status_changed",
        [(id, status, timestamp()) for id in ids],
    )


def timestamp() -> str:
    return format_time(SystemClock().now())


def _quote_path(path: str) -> str:
    from urllib.parse import quote

    return quote(path)
