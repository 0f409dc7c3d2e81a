"""The two files of a boxed session: their tables, their numbers, and where they are.

`inbound.db` is written by the host alone, `outbound.db` by the sandbox alone; each reads the
other's. Both keep a rollback journal: a write-ahead log needs memory that the two sides would have
to share. Nothing is imported here but the standard library: the inside reads this, too.
"""

import os
from datetime import UTC, datetime
from typing import NamedTuple

BUSY_MS = 5_000
OUTBOX = "outbox"
"""The folder beside `outbound.db` in which each message with files has one of its id."""

INBOUND = """
    CREATE TABLE IF NOT EXISTS messages_in (
        id TEXT PRIMARY KEY,
        seq INTEGER UNIQUE,
        kind TEXT NOT NULL,
        timestamp TEXT NOT NULL,
        status TEXT DEFAULT 'pending',
        process_after TEXT,
        recurrence TEXT,
        tries INTEGER DEFAULT 0,
        platform_id TEXT,
        channel_type TEXT,
        thread_id TEXT,
        content TEXT NOT NULL
    );
    CREATE TABLE IF NOT EXISTS delivered (
        message_out_id TEXT PRIMARY KEY,
        platform_message_id TEXT,
        status TEXT NOT NULL DEFAULT 'delivered',
        delivered_at TEXT NOT NULL
    );
    CREATE TABLE IF NOT EXISTS destinations (
        name TEXT PRIMARY KEY,
        display_name TEXT,
        type TEXT NOT NULL,
        channel_type TEXT,
        platform_id TEXT,
        agent_group_id TEXT
    );
    CREATE TABLE IF NOT EXISTS session_routing (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        channel_type TEXT,
        platform_id TEXT,
        thread_id TEXT
    );
"""

OUTBOUND = """
    CREATE TABLE IF NOT EXISTS messages_out (
        id TEXT PRIMARY KEY,
        seq INTEGER UNIQUE,
        in_reply_to TEXT,
        timestamp TEXT NOT NULL,
        deliver_after TEXT,
        recurrence TEXT,
        kind TEXT NOT NULL,
        platform_id TEXT,
        channel_type TEXT,
        thread_id TEXT,
        content TEXT NOT NULL
    );
    CREATE TABLE IF NOT EXISTS processing_ack (
        message_id TEXT PRIMARY KEY,
        status TEXT NOT NULL,
        status_changed TEXT NOT NULL
    );
    CREATE TABLE IF NOT EXISTS session_state (
        key TEXT PRIMARY KEY,
        value TEXT NOT NULL,
        updated_at TEXT NOT NULL
    );
"""


class Folder(NamedTuple):
    """Where a boxed session lives."""

    top: str

    @property
    def inside(self) -> str:
        """What the sandbox reads: `inbound.db`, and files that came with messages."""
        return os.path.join(self.top, "in")

    @property
    def outside(self) -> str:
        """What the sandbox writes: `outbound.db`."""
        return os.path.join(self.top, "out")

    @property
    def home(self) -> str:
        """The home of whoever is inside: what it keeps from turn to turn."""
        return os.path.join(self.top, "home")

    @property
    def mark(self) -> str:
        """Says of which store the session is."""
        return os.path.join(self.top, "store")

    @property
    def turn(self) -> str:
        """Says which run's turn it is, until that is ended here."""
        return os.path.join(self.top, "turn")

    @property
    def inbound(self) -> str:
        return os.path.join(self.inside, "inbound.db")

    @property
    def outbound(self) -> str:
        return os.path.join(self.outside, "outbound.db")


def next_even(largest: int) -> int:
    """The number of the host's next message: even, and above all that it has seen."""
    return largest + 2 - largest % 2


def next_odd(largest: int) -> int:
    """The number of the sandbox's next message: odd, and above all that it has seen."""
    return largest + 1 + largest % 2


def moment(ms: int) -> str:
    """A moment as the files tell it: UTC, with milliseconds."""
    return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(timespec="milliseconds")
