"""The write-ahead log of a SQLite store, and the readers that keep it from being emptied.

SQLite empties the log only when no reader uses an older part of it. A process that is stopped
inside a read transaction holds its part for ever, and every commit makes the log longer.
"""

import os
from pathlib import Path

import apsw

from corral.db.database import Finding
from corral.db.sqlite_errors import log_full
from corral.db.turnstile import is_stopped

NOTABLE = 256 * 1024 * 1024
"""From this size on, `corral doctor` reports the log."""
MOST = 1024 * 1024 * 1024
"""A log of this size that a stopped process holds accepts no more writes."""
MOST_FOR_LIVE_READERS = 8 * MOST
"""The same for processes that run: a back-up reads one snapshot for as long as it takes."""
EVERY = 64
"""The size is looked at every so many turns of a writer, and at its first."""

# SQLite's locks for readers are these bytes of the shared memory. The first one is of readers that
# began when the log was empty: they read the database file alone, so nothing may be copied into it.
_READERS = range(123, 128)


def require_room(connection: apsw.Connection, path: str, busy_ms: int) -> None:
    """Empty the log if it is too long; raise StoreUnavailable if a reader prevents that.

    For the writer that has the turn.
    """
    size = size_of(path)
    if size <= MOST:
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
    if size > MOST_FOR_LIVE_READERS or (holder is not None and is_stopped(holder)):
        raise log_full(path, size, _cause(holder), holder)


def examine(path: str) -> list[Finding]:
    """What `corral doctor` says of the log; nothing while it is short."""
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
    """A process that reads a part of the log, a stopped one first; None where it is not known.

    Read from /proc/locks: opening the shared memory to ask for its locks would drop our own.
    """
    try:
        file = os.stat(f"{path}-shm")
        locks = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    place = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    found = []
    for words in map(str.split, locks):
        if len(words) > 7 and words[1] == "POSIX" and words[5] == place and words[4].isdigit():
            held = range(int(words[6]), int(words[7]) + 1 if words[7].isdigit() else 128)
            if any(byte in held for byte in _READERS):
                found.append(int(words[4]))
    found.sort(key=lambda process: (not is_stopped(process), process == os.getpid()))
    return found[0] if found else None


def _cause(holder: int | None) -> str:
    if holder is None:
        return "a reader keeps it from being emptied; end long reads and back-ups"
    if is_stopped(holder):
        return (
            f"process {holder} was stopped in the middle of a read; continue it with "
            f"`kill -CONT {holder}`, or end it"
        )
    return f"process {holder} has been reading for long; wait for it, or end it"
