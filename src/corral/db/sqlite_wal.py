"""The write-ahead log of a SQLite store, and the readers that block its checkpoint.

SQLite resets the log only when no reader uses an older part of it. A process that is stopped inside
a read transaction holds its part forever, and every commit makes the log longer.
"""

import os
from pathlib import Path

import apsw

from corral.db.database import Finding
from corral.db.sqlite_errors import log_full
from corral.db.write_lock import is_stopped

NOTABLE = 256 * 1024 * 1024
"""From this size on, `corral doctor` reports the log."""
MAX_BYTES = 1024 * 1024 * 1024
"""Above this size, writes are refused if a stopped process holds the log."""
MAX_BYTES_FOR_LIVE_READERS = 8 * MAX_BYTES
"""The same limit for running processes: a backup reads one snapshot for as long as it takes."""
EVERY = 64
"""The size is checked at a writer's first turn and then every so many turns."""

# SQLite's locks for readers are these bytes of the shared memory. The first one is of readers that
# began when the log was empty: they read the database file alone, so nothing may be copied into it.
_READERS = range(123, 128)


def require_room(connection: apsw.Connection, path: str, busy_ms: int) -> None:
    """Reset the log if it is too long; raises StoreUnavailable if a reader prevents that.

    Only called by the writer that has the turn.
    """
    size = size_of(path)
    if size <= MAX_BYTES:
        return
    connection.set_busy_timeout(0)
    try:
        ((busy, _, _),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except apsw.BusyError:
        busy = 1
    finally:
        connection.set_busy_timeout(busy_ms)
    if not busy:
        return
    holder = holder_of(path)
    if size > MAX_BYTES_FOR_LIVE_READERS or (holder is not None and is_stopped(holder)):
        raise log_full(path, size, _cause(holder), holder)


def examine(path: str) -> list[Finding]:
    """Return the finding of `corral doctor` about the log; empty while the log is short."""
    size = size_of(path)
    if size < NOTABLE:
        return []
    message = f"The write-ahead log has {size // (1024 * 1024):,} MiB: {_cause(holder_of(path))}."
    return [Finding("log", "warning", message)]


def size_of(path: str) -> int:
    try:
        return os.stat(f"{path}-wal").st_size
    except OSError:
        return 0


def holder_of(path: str) -> int | None:
    """Return a process that holds a part of the log, preferably a stopped one; None if unknown.

    Uses /proc/locks: opening the shared memory to query its locks would drop our own.
    """
    try:
        file = os.stat(f"{path}-shm")
        locks = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    place = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    holders = []
    for words in map(str.split, locks):
        if len(words) > 7 and words[1] == "POSIX" and words[5] == place and words[4].isdigit():
            held = range(int(words[6]), int(words[7]) + 1 if words[7].isdigit() else 128)
            if any(byte in held for byte in _READERS):
                holders.append(int(words[4]))
    holders.sort(key=lambda process: (not is_stopped(process), process == os.getpid()))
    return holders[0] if holders else None


def _cause(holder: int | None) -> str:
    if holder is None:
        return "a reader blocks its checkpoint; end long reads and backups"
    if is_stopped(holder):
        return (
            f"process {holder} is stopped in the middle of a read; continue it with "
            f"`kill -CONT {holder}`, or end it"
        )
    return f"process {holder} holds a long read; wait for it, or end it"
