"""Child processes that were started without waiting for them, to be reaped later.

A program that ends soon need not reap: init reaps for it.
"""

import os
from contextlib import suppress

_pids: set[int] = set()


def track(pid: int) -> None:
    """Remember a child so that `reap` waits for it."""
    _pids.add(pid)


def untrack(pid: int) -> None:
    """Forget a child; the caller waits for it."""
    _pids.discard(pid)


def reap() -> None:
    """Reap the tracked children that have ended. Does not block."""
    for pid in tuple(_pids):
        with suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
        _pids.discard(pid)
