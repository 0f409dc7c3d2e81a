"""The flock requests of processes, as /proc/locks lists them."""

import os
from pathlib import Path


def _requests(path: str | Path) -> list[tuple[int, bool]]:
    """Return the flock requests on a file: the process, and whether it holds the lock or waits."""
    # Without the device: some file systems report another one here than stat() does. The inode
    # alone is ambiguous, so every caller also passes the process.
    inode = f":{os.stat(path).st_ino}"
    results = []
    for fields in map(str.split, Path("/proc/locks").read_text().splitlines()):
        waits = fields[1] == "->"
        kind, _, _, process, location = fields[2:7] if waits else fields[1:6]
        if kind == "FLOCK" and location.endswith(inode):
            results.append((int(process), not waits))
    return results


def holds_lock(path: str | Path, process: int) -> bool:
    """Return whether a process holds the lock of a file."""
    return (process, True) in _requests(path)


def waits_for_lock(path: str | Path, process: int) -> bool:
    """Return whether a process is blocked in flock() on a file."""
    return (process, False) in _requests(path)


def requests_lock(path: str | Path, process: int) -> bool:
    """Return whether a process holds the lock of a file or waits for it."""
    return any(process == other for other, _ in _requests(path))
