"""Folders for a while, outside of the home: copies of back-ups and of other programs' databases.

Each goes with whoever made it. Of a process that was killed it stays; whoever makes the next one
sweeps it up, as does the forgetting of what is old: a lock tells it from one that is in use.
"""

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_NAME = re.compile(r"corral-scratch-[a-z]+-\w{8}")


@contextmanager
def scratch_folder(what: str) -> Iterator[Path]:
    """A private folder of our own, named for what it is made for; it is gone afterwards."""
    sweep()
    folder, held = _made(what)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _made(what: str) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"corral-scratch-{what}-"))
        with suppress(FileNotFoundError):  # somebody swept it up before it was locked
            held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                with suppress(OSError):  # a file system without such locks, where none is swept up
                    fcntl.flock(held, fcntl.LOCK_EX)
                os.stat(folder)
            except BaseException:
                os.close(held)
                raise
            return folder, held


def sweep() -> None:
    """Remove the folders of this user that nobody has any more."""
    with suppress(OSError):
        for entry in os.scandir(tempfile.gettempdir()):
            if _NAME.fullmatch(entry.name):
                with suppress(OSError):
                    _remove_if_left(entry.path)


def _remove_if_left(folder: str) -> None:
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(held).st_uid == os.geteuid():
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(held)
