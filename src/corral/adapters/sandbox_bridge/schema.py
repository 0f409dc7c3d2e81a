"""The two files of a sandboxed session: tables, numbering and paths.

Only the host writes `inbound.db`, and only the sandbox writes `outbound.db`. Both use a rollback
journal: WAL needs shared memory, which the two sides do not have. The host uses even numbers and
the sandbox odd ones, so a number identifies a message of the session. This module imports only the
standard library, because the sandbox uses it, too.
"""

import os
from datetime import UTC, datetime
from typing import NamedTuple

BUSY_MS = 5_000
OUTBOX = "outbox"
"""The folder beside `outbound.db`. A message with files has a subfolder named by its id."""

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


class SessionFolder(NamedTuple):
    """The folder of a sandboxed session."""

    top: str

    @property
    def inside(self) -> str:
        """Read by the sandbox: `inbound.db` and the files of its messages."""
        return os.path.join(self.top, "in")

    @property
    def outside(self) -> str:
        """Written by the sandbox: `outbound.db` and the files of its messages."""
        return os.path.join(self.top, "out")

    @property
    def home(self) -> str:
        """The agent's home directory, which persists from turn to turn."""
        return os.path.join(self.top, "home")

    @property
    def mark(self) -> str:
        """A file that names the store of the session."""
        return os.path.join(self.top, "store")

    @property
    def turn(self) -> str:
        """A file that names the run of the current turn, until the host has ended it."""
        return os.path.join(self.top, "turn")

    @property
    def inbound(self) -> str:
        return os.path.join(self.inside, "inbound.db")

    @property
    def outbound(self) -> str:
        return os.path.join(self.outside, "outbound.db")


def next_even(largest: int) -> int:
    """Return the number of the host's next message: even, and above all numbers in use."""
    return largest + 2 - largest % 2


def next_odd(largest: int) -> int:
    """Return the number of the sandbox's next message: odd, and above all numbers in use."""
    return largest + 1 + largest % 2


def format_time(ms: int) -> str:
    """Format a time as in the files: ISO 8601 in UTC, with milliseconds."""
    return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(timespec="milliseconds")
