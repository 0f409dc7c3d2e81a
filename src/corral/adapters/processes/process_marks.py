"""Marks on the processes of a run, stored in the resource limit RLIMIT_LOCKS.

A mark survives a new session, an empty environment and dead parents. Linux has not enforced that
limit since 2.4, every child inherits it, every user may read it in `/proc/PID/limits`, and only
root may raise it again. A process that knows the mark can remove it by lowering the limit; only
a sandbox prevents that.

The value is a level in the upper bits and a hash of the mark in the lower ones. A nested run can
only lower the inherited limit, so each nested level is one less.
"""

import os
import re
import sys

# Not hashlib: it would load OpenSSL into every supervisor.
from _blake2 import blake2b
from contextlib import suppress

RLIMIT_LOCKS = 10
HASH_BITS = 48
_HASH_MASK = (1 << HASH_BITS) - 1
TOP_LEVEL = 0x3FFF
NO_RUN_MARK = "corral"  # the mark of Corral's own processes, which belong to no run
_LINE = re.compile(rb"^Max file locks\s+\S+\s+(\d+)", re.M)


def is_supported() -> bool:
    """Whether processes can be marked here."""
    return sys.platform.startswith("linux") and os.path.exists("/proc/self/limits")


def run_mark(run_id: str) -> str:
    """Return the mark of a run. Its processes also have it as an environment variable."""
    return f"CORRAL_RUN={run_id}"


def mark_process(mark: str) -> None:
    """Mark this process and its future children as belonging to `mark`.

    Does nothing where marks are not supported.
    """
    if not is_supported():
        return
    import resource

    with suppress(OSError, ValueError):
        _, hard = resource.getrlimit(RLIMIT_LOCKS)
        unlimited = hard == resource.RLIM_INFINITY or hard >> HASH_BITS > TOP_LEVEL
        level = TOP_LEVEL if unlimited else (hard >> HASH_BITS) - 1
        if level > 0:
            value = level << HASH_BITS | _hash(mark)
            resource.setrlimit(RLIMIT_LOCKS, (value, value))


def leave_run() -> None:
    """Detach this process from the run that started it: it may outlive that run."""
    mark_process(NO_RUN_MARK)


def is_marked(pid: int, mark: str) -> bool:
    """Whether a process carries this mark; False when its limits cannot be read."""
    limit = _read_limit(pid)
    return limit is not None and limit & _HASH_MASK == _hash(mark)


def has_run_mark(pid: int) -> bool:
    """Whether a process carries the mark of any run; False when its limits cannot be read."""
    limit = _read_limit(pid)
    if limit is None or not 0 < limit >> HASH_BITS <= TOP_LEVEL:
        return False
    return limit & _HASH_MASK != _hash(NO_RUN_MARK)


def _read_limit(pid: int) -> int | None:
    """Return the resource limit of a process; None if it is unlimited or cannot be read."""
    with suppress(OSError), open(f"/proc/{pid}/limits", "rb") as file:
        limit = _LINE.search(file.read(8_192))
        return int(limit[1]) if limit is not None else None
    return None


def _hash(mark: str) -> int:
    return int.from_bytes(blake2b(mark.encode(), digest_size=HASH_BITS // 8).digest())
