"""Corral's work on SQLite, written by hand: the same tables, rows and guarantees.

It has every advantage of Corral: prepared statements, plans that do not depend on parameters,
temporary tables in memory, claims as one statement in autocommit. It lacks what Corral adds:
records, input checks, readable errors, a fair writer queue, group commit.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import msgspec

from bench.opponents import ACTOR, BODY, LEASE_MS, MAILBOX, OWNER, now_ms, open_store
from corral.db.sqlite_connection_set import WAL_CHECKPOINT_PAGES
from corral.db.sqlite_deferred_indexes import FILL_INTERVAL, fill_deferred_indexes

PUT = """
    INSERT INTO letters
        (mailbox, body, rank, state, due_at, queue_at, fence, attempts, created_at)
    VALUES (:mailbox, :body, 0, 'waiting', :now, :now, 0, 0, :now)
    RETURNING seq
"""

# The oldest due letter of the highest priority, however many are not due yet: one look-up for each
# priority in use. Corral guarantees the same.
CLAIM = """
    WITH RECURSIVE level (rank) AS (
        SELECT min(rank) FROM letters WHERE mailbox = :mailbox AND state = 'waiting'
        UNION ALL
        SELECT (SELECT min(later.rank) FROM letters AS later
                WHERE later.mailbox = :mailbox AND later.state = 'waiting'
                  AND later.rank > level.rank)
        FROM level
        WHERE rank IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM letters AS due
            WHERE due.mailbox = :mailbox AND due.state = 'waiting'
              AND due.rank = level.rank AND due.queue_at <= :now AND due.due_at <= :now)
    )
    UPDATE letters
    SET owner = :owner, fence = fence + 1, attempts = attempts + 1,
        due_at = :until, queue_at = :until
    WHERE seq = (
        SELECT seq FROM letters
        WHERE mailbox = :mailbox AND state = 'waiting' AND rank = (SELECT max(rank) FROM level)
          AND queue_at <= :now AND due_at <= :now
        ORDER BY queue_at, seq LIMIT 1)
    RETURNING seq, fence, body, mailbox, sender, project_id, key, rank, state, due_at, queue_at,
        expires_at, owner, attempts, last_error, created_at, ended_at
"""

# The same letter, found by scanning the queue past all that is not due yet.
PLAIN_CLAIM = """
    UPDATE letters
    SET owner = :owner, fence = fence + 1, attempts = attempts + 1,
        due_at = :until, queue_at = :until
    WHERE seq = (
        SELECT seq FROM letters
        WHERE mailbox = :mailbox AND state = 'waiting' AND queue_at <= :now AND due_at <= :now
        ORDER BY rank, queue_at, seq LIMIT 1)
    RETURNING seq, fence, body, mailbox, sender, project_id, key, rank, state, due_at, queue_at,
        expires_at, owner, attempts, last_error, created_at, ended_at
"""

ACK = """
    UPDATE letters SET state = 'done', ended_at = :now
    WHERE seq = :seq AND fence = :fence AND state IN ('waiting', 'unconfirmed')
    RETURNING seq
"""

INSERT_EVENT = """
    INSERT INTO events (at, actor, kind, verb, subject)
    VALUES (:now, :actor, 'letter', :verb, :subject)
"""


BUSY_MS = 10_000


def connect(path: Path) -> apsw.Connection:
    """Open a connection with Corral's own pragmas."""
    connection = apsw.Connection(str(path), statementcachesize=512)
    connection.set_busy_timeout(BUSY_MS)
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    for pragma in ("synchronous = NORMAL", "temp_store = MEMORY", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")
    connection.wal_autocheckpoint(WAL_CHECKPOINT_PAGES)
    return connection


class RawSqlite:
    def __init__(self, path: Path, *, claim: str = CLAIM) -> None:
        open_store(f"sqlite:///{path}").close()  # creates the tables
        self._connection = connect(path)
        self._run: Callable[..., Any] = self._connection.execute
        self._claim = claim
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder().decode

    def put(self) -> None:
        run, now = self._run, now_ms()
        run("BEGIN IMMEDIATE")
        letter = {"mailbox": MAILBOX, "body": self._encode(BODY).decode(), "now": now}
        ((seq,),) = run(PUT, letter).fetchall()
        self._insert_event({"now": now, "actor": ACTOR, "verb": "put", "subject": f"let_{seq}"})
        run("COMMIT")

    def claim(self) -> tuple[int, int, Any] | None:
        """Return the whole letter, as Corral's caller gets it, though only parts are used."""
        now = now_ms()
        lease = {"mailbox": MAILBOX, "owner": OWNER, "now": now, "until": now + LEASE_MS}
        rows = self._run(self._claim, lease).fetchall()
        if not rows:
            return None
        seq, fence, body = rows[0][:3]
        return seq, fence, self._decode(body)

    def ack(self, seq: int, fence: int) -> None:
        run, now = self._run, now_ms()
        run("BEGIN IMMEDIATE")
        assert run(ACK, {"now": now, "seq": seq, "fence": fence}).fetchall()
        self._insert_event({"now": now, "actor": ACTOR, "verb": "ack", "subject": f"let_{seq}"})
        run("COMMIT")

    def _insert_event(self, event: dict[str, Any]) -> None:
        self._run(INSERT_EVENT, event)
        if self._connection.last_insert_rowid() % FILL_INTERVAL == 0:
            fill_deferred_indexes(self._run)

    def take(self) -> None:
        claimed = self.claim()
        assert claimed is not None
        seq, fence, _ = claimed
        self.ack(seq, fence)
