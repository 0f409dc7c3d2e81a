"""Temporary folders outside the home: copies of backups and of other programs' databases.

A folder is removed by the process that created it. A killed process leaves its folder behind; the
next process that creates one, and pruning, remove it. A lock distinguishes folders in use.
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
def scratch_folder(purpose: str) -> Iterator[Path]:
    """Create a private folder named after its purpose, and remove it afterwards."""
    remove_stale_folders()
    folder, lock = _create_locked(purpose)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _create_locked(purpose: str) -> tuple[Path, int]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f"corral-scratch-{purpose}-"))
        with suppress(FileNotFoundError):  # another process removed it before it was locked
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                with suppress(OSError):  # a file system without flock(), where no folder is removed
                    fcntl.flock(lock, fcntl.LOCK_EX)
                os.stat(folder)
            except BaseException:
                os.close(lock)
                raise
            return folder, lock


def remove_stale_folders() -> None:
    """Remove the folders of this user that no process uses any more."""
    with suppress(OSError):
        for entry in os.scandir(tempfile.gettempdir()):
            if _NAME.fullmatch(entry.name):
                with suppress(OSError):
                    _remove_if_unused(entry.path)


def _remove_if_unused(folder: str) -> None:
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(lock).st_uid == os.geteuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)
