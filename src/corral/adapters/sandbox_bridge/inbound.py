"""The host's side of `inbound.db`, which only the host writes.

The file is a picture of the store: it can be made again from that at any time, so a lost or damaged
one is put aside and made anew. It is opened, written and closed for each change, so that the other
side never reads an old page.
"""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import apsw
import msgspec

from corral.adapters.sandbox_bridge.rows import Picture, Shown
from corral.adapters.sandbox_bridge.schema import INBOUND, Folder, moment, next_even
from corral.kernel.errors import Refused

WAIT_MS = 1_000  # whoever is inside may hold the file as long as it likes; the host does not wait
KEPT = 500  # messages that are over, for the agent to look back at
KEPT_OUTCOMES = 5_000  # more than the inside keeps of its own messages


def show(folder: Folder, picture: Picture, now: int) -> Shown | None:
    """Let the file show a picture, whole or not at all; None when its folder is gone, or whoever
    is inside holds it, and nothing could be written. Showing the same again changes nothing."""
    if not os.path.isdir(folder.inside):
        return None
    rebuilt = not os.path.exists(folder.inbound)
    try:
        return _show(folder, picture, now, rebuilt)
    except apsw.BusyError:
        return None
    except (apsw.NotADBError, apsw.CorruptError, apsw.SQLError):
        # It is our own, and no other knows its pages: a disk or a person damaged it.
        for name in ("inbound.db", "inbound.db-journal"):
            path = os.path.join(folder.inside, name)
            if os.path.lexists(path):
                os.replace(path, os.path.join(folder.inside, f"damaged-{name}"))
        return _show(folder, picture, now, True)
    except apsw.Error as error:
        raise Refused(
            f"{folder.inbound} cannot be written: {error}.", path=folder.inbound
        ) from None


@contextmanager
def _opened(folder: Folder) -> Iterator[apsw.Connection]:
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_NOFOLLOW
    with closing(apsw.Connection(folder.inbound, flags=flags)) as connection:
        connection.set_busy_timeout(WAIT_MS)
        connection.execute("PRAGMA journal_mode = DELETE; PRAGMA mmap_size = 0")
        yield connection


def _show(folder: Folder, picture: Picture, now: int, rebuilt: bool) -> Shown:
    with _opened(folder) as connection:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(INBOUND)
        before = connection.total_changes()
        _write(connection, picture, now)
        if connection.total_changes() != before:
            _forget(connection)
        connection.execute("COMMIT")
        largest = connection.execute("SELECT coalesce(max(seq), 0) FROM messages_in").get
        known = connection.execute("SELECT message_out_id FROM delivered").fetchall()
        return Shown(int(largest), frozenset(str(id) for (id,) in known), rebuilt)


def _write(connection: apsw.Connection, picture: Picture, now: int) -> None:
    largest = connection.execute("SELECT coalesce(max(seq), 0) FROM messages_in").get
    number = max(int(largest), picture.above)
    for row in picture.rows:
        if connection.execute("SELECT 1 FROM messages_in WHERE id = ?", (row.id,)).get is None:
            number = next_even(number)
            connection.execute(
                "INSERT INTO messages_in (id, seq, kind, timestamp, tries, platform_id, "
                "channel_type, thread_id, content) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    row.id,
                    number,
                    row.kind,
                    moment(row.timestamp),
                    row.tries,
                    row.platform_id,
                    row.channel_type,
                    row.thread_id,
                    row.content,
                ),
            )
    if picture.only:
        open_ids = connection.execute("SELECT id FROM messages_in WHERE status = 'pending'")
        current = {row.id for row in picture.rows} | set(picture.ended)
        over = {str(id): "failed" for (id,) in open_ids.fetchall() if id not in current}
    else:
        over = {}
    for id, status in (over | dict(picture.ended)).items():
        connection.execute(
            "UPDATE messages_in SET status = ? WHERE id = ? AND status = 'pending'", (status, id)
        )
    for outcome in picture.outcomes:
        connection.execute(
            "INSERT OR IGNORE INTO delivered VALUES (?, ?, ?, ?)",
            (
                outcome.message_out_id,
                outcome.platform_message_id,
                outcome.status,
                moment(outcome.delivered_at),
            ),
        )
    if picture.destinations is not None:
        rows = [msgspec.structs.astuple(each) for each in picture.destinations]
        _rewrite(connection, "destinations", rows)
    if picture.routing is not None:
        _rewrite(connection, "session_routing", [(1, *picture.routing)])


def _rewrite(connection: apsw.Connection, table: str, wanted: list[tuple[Any, ...]]) -> None:
    """Let a table hold these rows and no others; not touched when it does already."""
    shown = connection.execute(f"SELECT * FROM {table}").fetchall()
    if sorted(shown, key=repr) == sorted(wanted, key=repr):
        return
    connection.execute(f"DELETE FROM {table}")
    for row in wanted:
        marks = ", ".join("?" for _ in row)
        connection.execute(f"INSERT INTO {table} VALUES ({marks})", row)


def _forget(connection: apsw.Connection) -> None:
    connection.execute(
        "DELETE FROM messages_in WHERE status <> 'pending' AND seq <= (SELECT seq FROM messages_in "
        "ORDER BY seq DESC LIMIT 1 OFFSET ?)",
        (KEPT,),
    )
    connection.execute(
        "DELETE FROM delivered WHERE rowid <= (SELECT max(rowid) FROM delivered) - ?",
        (KEPT_OUTCOMES,),
    )
