"""A private copy of another program's SQLite file, as it was at one moment.

Nothing is ever made, changed or locked for long beside the source: to open a file in WAL mode, even
only to read it, SQLite makes `-shm` and `-wal` there, and a reader of one in rollback mode stops
its writer. So a source is copied first, and all reading is of the copy.

A file with a rollback journal is copied under SQLite's own shared lock. One in WAL mode is copied
with its log byte by byte: commits that are added to the log meanwhile do no harm (a torn one at its
end has no valid checksum and is no commit), and a checkpoint, which does, is seen by the file's
time and by the log's header; then it is copied again.
"""

import os
import shutil
import time
from pathlib import Path
from typing import NamedTuple

import apsw

from corral.kernel.errors import Invalid, NotFound, Refused
from corral.kernel.open_files import require_unused


class Unreadable(Invalid):
    """The source is damaged, empty or not a SQLite database."""


MAGIC = b"SQLite format 3\0"
_HEADER = 100
_LOG_HEADER = 32
TRIES = 60
PAUSE = 0.025
# The clock of a file system ticks this seldom: a younger time may hide a second write.
_TICK_NS = 20_000_000
BUSY_MS = 5_000
_SPARE = 64 * 1024 * 1024


def copy_of(path: Path, folder: Path) -> Path:
    """A consistent copy of a database in an empty folder of our own."""
    header = _header(path)
    for end in ("-wal", "-journal"):
        _refuse_endless(_beside(path, end))
    _require_space(path, folder)
    target = folder / "copy.db"
    if header[18:20] == b"\x02\x02" or _beside(path, "-wal").exists():
        _copy_files(path, target, "-wal")
    else:
        _copy_whole(path, target)
    return target


def _require_space(path: Path, folder: Path) -> None:
    """Refuse a source whose copy would fill the disk. A sparse file counts with its full size."""
    size = sum(
        each.stat().st_size
        for each in (path, _beside(path, "-wal"), _beside(path, "-journal"))
        if each.exists()
    )
    free = shutil.disk_usage(folder).free
    if size + _SPARE > free:
        raise Refused(
            f"Cannot copy {path} to {folder}: it needs {size:,} bytes, and {free:,} are free. Free "
            "disk space, or set TMPDIR to a folder on a larger disk.",
            path=str(path),
            reason="no_space",
        )


def _header(path: Path) -> bytes:
    """The first bytes of a file that is a SQLite database; one clear sentence where it is none."""
    try:
        if path.is_dir():
            raise Invalid(
                f"{path} is a folder; give the database in it.",
                path=str(path),
                reason="is_a_folder",
            )
        _refuse_endless(path)
        for end in ("", "-wal", "-journal"):
            require_unused(_beside(path, end))
        with path.open("rb") as file:
            header = file.read(_HEADER)
    except FileNotFoundError:
        raise NotFound(f"There is no file {path}; check the path.", path=str(path)) from None
    except OSError as error:
        raise _unreadable(path, error) from None
    if not header:
        raise Unreadable(
            f"{path} is empty. Give the tool's database file.", path=str(path), reason="empty"
        )
    if len(header) < _HEADER or not header.startswith(MAGIC):
        raise _not_a_database(path)
    return header


def _not_a_database(path: Path) -> Unreadable:
    return Unreadable(
        f"{path} is not a SQLite database. Give the tool's database file.",
        path=str(path),
        reason="not_sqlite",
    )


def _refuse_endless(path: Path) -> None:
    """Refuse pipes, sockets and devices: reading them may block or never end."""
    if path.exists() and not path.is_file():
        raise _not_a_database(path)


def _unreadable(path: Path, error: OSError) -> Refused:
    why = error.strerror or str(error)
    return Refused(
        f"{path} cannot be read ({why}); make it readable for you.",
        path=str(path),
        reason="unreadable",
    )


def _beside(path: Path, end: str) -> Path:
    return path.with_name(path.name + end)


def _copy_whole(path: Path, target: Path) -> None:
    """A copy under SQLite's own lock, which its writer waits for only so long."""
    try:
        source = apsw.Connection(_uri(path), flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)
        try:
            source.set_busy_timeout(BUSY_MS)
            into = apsw.Connection(str(target))
            try:
                with into.backup("main", source, "main") as task:
                    task.step(-1)
            finally:
                into.close()
        finally:
            source.close()
    except apsw.BusyError:
        raise _locked(path) from None
    except (apsw.ReadOnlyError, apsw.CantOpenError):
        # Its writer died in the middle of a transaction: the copy is rolled back, not the source.
        target.unlink(missing_ok=True)
        _copy_files(path, target, "-journal")
    except apsw.Error as error:
        raise damaged(path, error) from None


def _locked(path: Path) -> Refused:
    return Refused(
        f"{path} is locked by another program; end it, or give a copy of the file.",
        path=str(path),
        reason="locked",
    )


def damaged(path: Path, error: Exception) -> Unreadable:
    return Unreadable(
        f"{path} is damaged ({error}). Give an intact copy.", path=str(path), reason="damaged"
    )


def _uri(path: Path) -> str:
    return f"{path.absolute().as_uri()}?mode=ro"


class _Look(NamedTuple):
    """What changes when a file is written over, and not when its log only grows."""

    size: int
    time: int
    header: bytes
    log_header: bytes


def _look(path: Path, log: Path) -> _Look:
    found = path.stat()
    with path.open("rb") as file:
        header = file.read(_HEADER)
    try:
        with log.open("rb") as file:
            log_header = file.read(_LOG_HEADER)
    except FileNotFoundError:
        log_header = b""
    return _Look(found.st_size, found.st_mtime_ns, header, log_header)


def _copy_files(path: Path, target: Path, end: str) -> None:
    """The file and what belongs to it, copied again until nothing was written over meanwhile."""
    log = _beside(path, end)
    for _ in range(TRIES):
        try:
            if _copied(path, target, log, _beside(target, end)):
                return
        except OSError as error:
            raise _unreadable(path, error) from None
        time.sleep(PAUSE)
    raise Refused(
        f"{path} is written all the time; end the program that does, or give a copy of the file.",
        path=str(path),
        reason="busy",
    )


def _copied(path: Path, target: Path, log: Path, target_log: Path) -> bool:
    before = _look(path, log)
    if abs(_now_by(target) - before.time) <= _TICK_NS:
        return False  # what is written next might bear the same time
    shutil.copyfile(path, target)
    try:
        shutil.copyfile(log, target_log)
    except FileNotFoundError:
        target_log.unlink(missing_ok=True)
    return _look(path, log) == before


def _now_by(file: Path) -> int:
    """The present by the clock that the times of files are made of."""
    file.touch()
    os.utime(file)
    return file.stat().st_mtime_ns
