"""The write-ahead log of a SQLite store, and the readers that block its checkpoint.

SQLite resets the log only when no reader uses an older part of it. A process that is stopped inside
a read transaction holds its part forever, and every commit makes the log longer.
"""

import os
from pathlib import Path

import apsw

from corral.db.sqlite_errors import wal_full_error
from corral.db.types import Finding
from corral.kernel.process_state import is_stopped

WARN_BYTES = 256 * 1024 * 1024
"""From this size on, `corral doctor` reports the log."""
MAX_BYTES = 1024 * 1024 * 1024
"""Above this size, writes are refused if a stopped process holds the log."""
MAX_BYTES_FOR_LIVE_READERS = 8 * MAX_BYTES
"""The same limit for running processes: a backup reads one snapshot for as long as it takes."""
CHECK_INTERVAL = 64
"""The size is checked at a process's first write and then every CHECK_INTERVAL writes."""

# The byte range of SQLite's reader locks in the -shm file. The first one belongs to readers that
# started while the log was empty: they read only the database file, so a checkpoint must not write
# it.
_READER_LOCKS = range(123, 128)


def require_room(connection: apsw.Connection, path: str, busy_ms: int) -> None:
    """Reset the log if it is too long; raises StoreUnavailable if a reader prevents that.

    Only called by the writer that holds the write lock.
    """
    size = measure_wal(path)
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
    holder = find_blocking_reader(path)
    if size > MAX_BYTES_FOR_LIVE_READERS or (holder is not None and is_stopped(holder)):
        raise wal_full_error(path, size, _describe_cause(holder), holder)


def check_wal(path: str) -> list[Finding]:
    """Return the finding of `corral doctor` about the log; empty while the log is short."""
    size = measure_wal(path)
    if size < WARN_BYTES:
        return []
    cause = _describe_cause(find_blocking_reader(path))
    message = f"The write-ahead log has {size // (1024 * 1024):,} MiB: {cause}."
    return [Finding("log", "warning", message)]


def measure_wal(path: str) -> int:
    """Return the size of the log in bytes; 0 if there is none."""
    try:
        return os.stat(f"{path}-wal").st_size
    except OSError:
        return 0


def find_blocking_reader(path: str) -> int | None:
    """Return a process that holds a part of the log, preferably a stopped one; None if unknown.

    Uses /proc/locks: opening the shared memory to query its locks would drop our own.
    """
    try:
        file = os.stat(f"{path}-shm")
        locks = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return None
    file_id = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    holders = []
    for fields in map(str.split, locks):
        if (
            len(fields) > 7
            and fields[1] == "POSIX"
            and fields[5] == file_id
            and fields[4].isdigit()
        ):
            held = range(int(fields[6]), int(fields[7]) + 1 if fields[7].isdigit() else 128)
            if any(byte in held for byte in _READER_LOCKS):
                holders.append(int(fields[4]))
    holders.sort(key=lambda process: (not is_stopped(process), process == os.getpid()))
    return holders[0] if holders else None


def _describe_cause(holder: int | None) -> str:
    if holder is None:
        return "a reader blocks its checkpoint. End long reads and backups"
    if is_stopped(holder):
        return (
            f"process {holder} is stopped in the middle of a read. Continue it with "
            f"`kill -CONT {holder}`, or end it"
        )
    return f"process {holder} holds a long read. Wait for it, or end it"
