"""Processes that were started here and are not waited for: somebody has to see them off."""

import os
from contextlib import suppress

_started: set[int] = set()


def add(pid: int) -> None:
    """Remember a child that nobody waits for."""
    _started.add(pid)


def forget(pid: int) -> None:
    """Somebody waits for it after all."""
    _started.discard(pid)


def reap() -> None:
    """See off those that have ended; a program that ends soon need not."""
    for pid in tuple(_started):
        with suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                continue
        _started.discard(pid)
