"""Copies of the transcripts that an agent CLI writes inside a sandbox.

The program in the sandbox may be hostile, and owns the folder in which its CLI records the
session. The supervisor reads only this copy, which the program cannot reach: symlinks, pipes,
devices and hard links are never copied, the size is bounded, and a database cannot change under
the reader.
"""

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from corral.adapters.sandbox.untrusted_files import find_files

MAX_BYTES = 256 << 20
MAX_FILES = 1_000
MAX_ENTRIES = 20_000
_APPENDED = (".jsonl",)


class _Copied(NamedTuple):
    inode: int
    size: int
    changed_at: int
    copied: int


class TranscriptCopy:
    """A copy of the transcripts below a home folder that match some patterns; see `refresh`."""

    def __init__(self, home: str, patterns: Sequence[str], folder: Path) -> None:
        """Empty or create `folder`. Files keep their path relative to `home`."""
        self._home, self._patterns, self._folder = home, patterns, folder
        self._files: dict[str, _Copied] = {}
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700, parents=True)

    def refresh(self) -> None:
        """Copy new content; of an appended file only the new bytes.

        Raises OSError when the copy cannot be written.
        """
        sizes = sum(file.copied for file in self._files.values())
        seen = set()
        for path, descriptor, status in find_files(
            self._home, self._patterns, max_entries=MAX_ENTRIES
        ):
            seen.add(path)
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
            available = max(0, MAX_BYTES - sizes)
            copied = self._copy(path, descriptor, begin, min(status.st_size, available))
            os.utime(self._folder / path, ns=(status.st_mtime_ns, status.st_mtime_ns))
            sizes += copied
            self._files[path] = now._replace(copied=copied)
        for path in [*self._files]:
            if path not in seen and not path.endswith(_APPENDED):
                # SQLite would apply the frames of an old log to a newer database.
                (self._folder / path).unlink(missing_ok=True)
                del self._files[path]

    def _copy(self, path: str, source: int, begin: int, end: int) -> int:
        """Copy the bytes from `begin` to `end`; return the new size of the copy."""
        target = self._folder / path
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.endswith(_APPENDED):
            with suppress(FileNotFoundError):  # SQLite's shared memory describes the old file
                os.unlink(f"{target.with_suffix('.db')}-shm")
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.seek(begin)
            os.lseek(source, begin, os.SEEK_SET)
            while begin < end and (data := os.read(source, min(end - begin, 1 << 20))):
                file.write(data)
                begin += len(data)
            file.truncate(begin)
        return begin

    def close(self) -> None:
        """Delete the copy."""
        shutil.rmtree(self._folder, ignore_errors=True)
