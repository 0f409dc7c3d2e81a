"""The two files of a session, as the inside uses them: it reads the one and writes the other.

Only the standard library is needed: this runs in the sandbox.
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
    Folder,
    moment,
    next_odd,
)
from corral.kernel.clock import SystemClock

KEPT = 200  # messages whose outcome is known, to be named in a later one


class Files:
    """The two files, as the inside may use them."""

    def __init__(self, top: str) -> None:
        self.folder = Folder(top)

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """`inbound.db`, opened for one look: a page that was kept would be an old one."""
        uri = f"file:{_quoted(self.folder.inbound)}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_MS / 1_000)) as connection:
            connection.execute("PRAGMA mmap_size = 0")
            yield connection

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """`outbound.db`, for one transaction."""
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
        """What waits to be dealt with, oldest first: due, and not yet acknowledged."""
        with self.reading() as connection:
            connection.row_factory = sqlite3.Row
            rows = connection.execute(
                "SELECT id, seq, kind, platform_id, channel_type, thread_id, content "
                "FROM messages_in WHERE status = 'pending' "
                "AND (process_after IS NULL OR process_after <= ?) ORDER BY seq",
                (now(),),
            ).fetchall()
        with self.writing() as connection:
            known = {id for (id,) in connection.execute("SELECT message_id FROM processing_ack")}
        return [
            dict(row) | {"content": json.loads(row["content"])}
            for row in rows
            if row["id"] not in known
        ]

    def begin(self) -> None:
        """Let go what a predecessor had begun, and forget messages that have long arrived."""
        delivered = self._delivered()
        with self.writing() as connection:
            connection.execute("DELETE FROM processing_ack WHERE status = 'processing'")
            old = connection.execute(
                "SELECT id FROM messages_out ORDER BY seq DESC LIMIT -1 OFFSET ?", (KEPT,)
            ).fetchall()
            gone = [row for row in old if row[0] in delivered]
            connection.executemany("DELETE FROM messages_out WHERE id = ?", gone)
            for id in delivered.intersection(self._with_files()):
                shutil.rmtree(os.path.join(self.outbox, id), ignore_errors=True)
            connection.execute(
                "DELETE FROM processing_ack WHERE rowid <= (SELECT max(rowid) FROM processing_ack) "
                "- ?",
                (10 * KEPT,),
            )

    @property
    def outbox(self) -> str:
        return os.path.join(self.folder.outside, OUTBOX)

    def _with_files(self) -> list[str]:
        return os.listdir(self.outbox) if os.path.isdir(self.outbox) else []

    def lay_out(self, id: str, paths: Sequence[str]) -> list[str]:
        """Put copies of files where the host takes them from; gives their names there."""
        names = [f"{number}-{os.path.basename(path)}" for number, path in enumerate(paths, 1)]
        os.makedirs(os.path.join(self.outbox, id), mode=0o700)
        for path, name in zip(paths, names, strict=True):
            shutil.copyfile(path, os.path.join(self.outbox, id, name))
        return names

    def _delivered(self) -> set[str]:
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
        """Add a message for the host, under the next odd number; its id and number."""
        with self.reading() as other:
            (theirs,) = other.execute("SELECT coalesce(max(seq), 0) FROM messages_in").fetchone()
        (ours,) = connection.execute("SELECT coalesce(max(seq), 0) FROM messages_out").fetchone()
        id, number = id or new_id(), next_odd(max(theirs, ours))
        channel_type, platform_id, thread_id = address
        connection.execute(
            "INSERT INTO messages_out (id, seq, in_reply_to, timestamp, kind, platform_id, "
            "channel_type, thread_id, content) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                id,
                number,
                in_reply_to,
                now(),
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
    """Say on our own side how far messages of the host are."""
    connection.executemany(
        "INSERT INTO processing_ack VALUES (?, ?, ?) ON CONFLICT (message_id) "
        "DO UPDATE SET status = excluded.status, status_changed = excluded.status_changed",
        [(id, status, now()) for id in ids],
    )


def now() -> str:
    return moment(SystemClock().now())


def _quoted(path: str) -> str:
    from urllib.parse import quote

    return quote(path)
