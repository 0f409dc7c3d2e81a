"""The host's side of `inbound.db`, which only the host writes.

The file is a view of the store. It can be rebuilt at any time, so a damaged file is moved aside and
created again. It is opened, written and closed for each change, so that the sandbox never reads a
stale page.
"""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import apsw
import msgspec

from corral.adapters.sandbox_bridge.rows import InboundView, ViewState
from corral.adapters.sandbox_bridge.schema import INBOUND, SessionFolder, format_time, next_even
from corral.kernel.errors import Refused

WAIT_MS = 1_000
"""Lock timeout. The sandbox can hold a lock for ever, so the host must not wait for long."""
KEPT_MESSAGES = 500
"""Ended messages that the agent can look back at."""
KEPT_OUTCOMES = 5_000
"""More than the sandbox keeps of its own messages."""


def write_view(folder: SessionFolder, view: InboundView, now: int) -> ViewState | None:
    """Write a view to the file in one transaction. Idempotent.

    Returns None, with nothing written, when the folder is gone or the sandbox holds a lock.
    """
    if not os.path.isdir(folder.inside):
        return None
    rebuilt = not os.path.exists(folder.inbound)
    try:
        return _write_view(folder, view, now, rebuilt)
    except apsw.BusyError:
        return None
    except (apsw.NotADBError, apsw.CorruptError, apsw.SQLError):
        # Only the host writes the file, so the disk or a person damaged it. Rebuild it.
        for name in ("inbound.db", "inbound.db-journal"):
            path = os.path.join(folder.inside, name)
            if os.path.lexists(path):
                os.replace(path, os.path.join(folder.inside, f"damaged-{name}"))
        return _write_view(folder, view, now, True)
    except apsw.Error as error:
        raise Refused(f"Cannot write {folder.inbound}: {error}.", path=folder.inbound) from None


@contextmanager
def _opened(folder: SessionFolder) -> Iterator[apsw.Connection]:
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_NOFOLLOW
    with closing(apsw.Connection(folder.inbound, flags=flags)) as connection:
        connection.set_busy_timeout(WAIT_MS)
        connection.execute("PRAGMA journal_mode = DELETE; PRAGMA mmap_size = 0")
        yield connection


def _write_view(folder: SessionFolder, view: InboundView, now: int, rebuilt: bool) -> ViewState:
    with _opened(folder) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(INBOUND)
        before = connection.total_changes()
        _apply(connection, view, now)
        if connection.total_changes() != before:
            _prune(connection)
        connection.execute("COMMIT")
        largest = connection.execute("SELECT coalesce(max(seq), 0) FROM messages_in").get
        ids = connection.execute("SELECT message_out_id FROM delivered").fetchall()
        return ViewState(int(largest), frozenset(str(id) for (id,) in ids), rebuilt)


def _apply(connection: apsw.Connection, view: InboundView, now: int) -> None:
    largest = connection.execute("SELECT coalesce(max(seq), 0) FROM messages_in").get
    number = max(int(largest), view.above)
    for row in view.rows:
        if connection.execute("SELECT 1 FROM messages_in WHERE id = ?", (row.id,)).get is None:
            number = next_even(number)
            connection.execute(
                "INSERT INTO messages_in (id, seq, kind, timestamp, tries, platform_id, "
                "channel_type, thread_id, content) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    row.id,
                    number,
                    row.kind,
                    format_time(row.timestamp),
                    row.tries,
                    row.platform_id,
                    row.channel_type,
                    row.thread_id,
                    row.content,
                ),
            )
    if view.only:
        open_ids = connection.execute("SELECT id FROM messages_in WHERE status = 'pending'")
        current = {row.id for row in view.rows} | set(view.ended)
        ended = {str(id): "failed" for (id,) in open_ids.fetchall() if id not in current}
    else:
        ended = {}
    for id, status in (ended | dict(view.ended)).items():
        connection.execute(
            "UPDATE messages_in SET status = ? WHERE id = ? AND status = 'pending'", (status, id)
        )
    for outcome in view.outcomes:
        connection.execute(
            "INSERT OR IGNORE INTO delivered VALUES (?, ?, ?, ?)",
            (
                outcome.message_out_id,
                outcome.platform_message_id,
                outcome.status,
                format_time(outcome.delivered_at),
            ),
        )
    if view.destinations is not None:
        rows = [msgspec.structs.astuple(destination) for destination in view.destinations]
        _rewrite(connection, "destinations", rows)
    if view.routing is not None:
        _rewrite(connection, "session_routing", [(1, *view.routing)])


def _rewrite(connection: apsw.Connection, table: str, wanted: list[tuple[Any, ...]]) -> None:
    """Replace the rows of a table. Writes nothing when they are the same."""
    current = connection.execute(f"SELECT * FROM {table}").fetchall()
    if sorted(current, key=repr) == sorted(wanted, key=repr):
        return
    connection.execute(f"DELETE FROM {table}")
    for row in wanted:
        placeholders = ", ".join("?" for _ in row)
        connection.execute(f"INSERT INTO {table} VALUES ({placeholders})", row)


def _prune(connection: apsw.Connection) -> None:
    connection.execute(
        "DELETE FROM messages_in WHERE status <> 'pending' AND seq <= (SELECT seq FROM messages_in "
        "ORDER BY seq DESC LIMIT 1 OFFSET ?)",
        (KEPT_MESSAGES,),
    )
    connection.execute(
        "DELETE FROM delivered WHERE rowid <= (SELECT max(rowid) FROM delivered) - ?",
        (KEPT_OUTCOMES,),
    )
