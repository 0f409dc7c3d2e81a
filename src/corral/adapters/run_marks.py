"""A mark on the processes of a run that survives a new session, an empty environment and dead
parents: the resource limit RLIMIT_LOCKS.

Linux has not enforced that limit since 2.4, every child inherits it, every user may read it in
`/proc/PID/limits`, and only root may raise it again. A process can still lower it on purpose, so a
program that looks for this mark can lose it; only a sandbox keeps such a program.

The value is a level in the upper bits and a hash of the mark in the lower ones. A run that is
started inside of another one has to lower the limit that it inherits, so each level is one less.
"""

import os
import re
import sys

# Not by way of hashlib, which brings a whole library of cryptography into every keeper.
from _blake2 import blake2b
from contextlib import suppress

RLIMIT_LOCKS = 10
HASH_BITS = 48
TOP_LEVEL = 0x3FFF
OUTSIDE = "corral"  # the mark of Corral's own processes, which are of no run
_LINE = re.compile(rb"^Max file locks\s+\S+\s+(\d+)", re.M)


def is_supported() -> bool:
    """Whether processes can be marked here."""
    return sys.platform.startswith("linux") and os.path.exists("/proc/self/limits")


def mark_process(mark: str) -> None:
    """Mark this process, and all that it starts from now on, as belonging to `mark`. Where that is
    not possible it stays as it is."""
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
    """Have this process belong to no run: it was started by one, and is to outlive it."""
    mark_process(OUTSIDE)


def is_marked(pid: int, mark: str) -> bool:
    """Whether a process carries this mark; False also when it cannot be read."""
    with suppress(OSError), open(f"/proc/{pid}/limits", "rb") as file:
        found = _LINE.search(file.read(8_192))
        return found is not None and int(found[1]) & ((1 << HASH_BITS) - 1) == _hash(mark)
    return False


def _hash(mark: str) -> int:
    return int.from_bytes(blake2b(mark.encode(), digest_size=HASH_BITS // 8).digest())
