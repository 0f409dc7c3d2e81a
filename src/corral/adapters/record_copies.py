"""A copy of the records that an agent CLI writes inside of a sandbox.

The program in the sandbox may be hostile, and owns the folder in which its CLI records the
conversation. The supervisor reads only this copy, which the program cannot reach: symlinks, pipes,
devices and hard links are never copied, the size is bounded, and a database cannot change under
the reader.
"""

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from corral.adapters.untrusted_files import find_files

MAX_BYTES = 256 << 20
MAX_FILES = 1_000
MAX_ENTRIES = 20_000
_APPENDED = (".jsonl",)


class _Copied(NamedTuple):
    inode: int
    size: int
    changed_at: int
    copied: int


class RecordCopy:
    """The records below a home folder that match some patterns, brought up to date by `refresh`."""

    def __init__(self, home: str, patterns: Sequence[str], folder: Path) -> None:
        """Empty or create `folder`. Files keep their path relative to `home`."""
        self._home, self._patterns, self._folder = home, patterns, folder
        self._files: dict[str, _Copied] = {}
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True)

    def refresh(self) -> None:
        """Copy what is new. Of a file of lines only what was appended is copied, as a reader that
        follows it would read it. OSError when the copy cannot be written."""
        sizes = sum(file.copied for file in self._files.values())
        found = set()
        for path, descriptor, status in find_files(
            self._home, self._patterns, max_entries=MAX_ENTRIES
        ):
            found.add(path)
            known = self._files.get(path)
            if known is None and len(self._files) >= MAX_FILES:
                continue
            now = _Copied(status.st_ino, status.st_size, status.st_mtime_ns, 0)
            if known is not None and known[:3] == now[:3]:
                continue
            begin = 0
            if known is not None and known.inode == now.inode and path.endswith(_APPENDED):
                begin = min(known.copied, now.size)
            sizes -= known.copied if known is not None else 0
            most = max(0, MAX_BYTES - sizes)
            copied = self._copy(path, descriptor, begin, min(status.st_size, most))
            os.utime(self._folder / path, ns=(status.st_mtime_ns, status.st_mtime_ns))
            sizes += copied
            self._files[path] = now._replace(copied=copied)
        for path in [*self._files]:
            if path not in found and not path.endswith(_APPENDED):
                # SQLite would apply the frames of an old log to a newer database.
                (self._folder / path).unlink(missing_ok=True)
                del self._files[path]

    def _copy(self, path: str, source: int, begin: int, end: int) -> int:
        """Write the bytes from `begin` to `end` behind those that are there; returns the size."""
        target = self._folder / path
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.endswith(_APPENDED):
            with suppress(FileNotFoundError):  # SQLite's own, about the file as it was
                os.unlink(f"{target.with_suffix('.db')}-shm")
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.seek(begin)
            os.lseek(source, begin, os.SEEK_SET)
            while begin < end and (piece := os.read(source, min(end - begin, 1 << 20))):
                file.write(piece)
                begin += len(piece)
            file.truncate(begin)
        return begin

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
