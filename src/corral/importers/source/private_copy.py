"""A consistent private copy of another program's SQLite file.

The source is never changed or locked for long. Opening a file in WAL mode creates `-shm` and `-wal`
files even for a reader, and a reader of a file in rollback mode blocks its writer. So the source is
copied first, and only the copy is opened.

A file in rollback mode is copied under SQLite's shared lock. A file in WAL mode is copied byte by
byte with its log. Commits that are appended to the log meanwhile do no harm: an incomplete one has
no valid checksum. A checkpoint overwrites pages; it is detected by the file's modification time and
the log's header, and then the copy is repeated.
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
MAX_ATTEMPTS = 60
PAUSE_SECONDS = 0.025
# The resolution of file times: a second write within it does not change the modification time.
_TICK_NS = 20_000_000
BUSY_MS = 5_000
_SPARE_BYTES = 64 * 1024 * 1024


def copy_database(path: Path, folder: Path) -> Path:
    """Copy a database into an empty private folder; returns the path of the copy.

    Raises NotFound, Unreadable, or Refused when the file is locked or keeps changing.
    """
    header = _read_header(path)
    for suffix in ("-wal", "-journal"):
        _require_regular_file(_add_suffix(path, suffix))
    _require_space(path, folder)
    target = folder / "copy.db"
    if header[18:20] == b"\x02\x02" or _add_suffix(path, "-wal").exists():
        _copy_files(path, target, "-wal")
    else:
        _copy_with_lock(path, target)
    return target


def _require_space(path: Path, folder: Path) -> None:
    """Refuse a source whose copy would fill the disk. A sparse file counts with its full size."""
    size = sum(
        file.stat().st_size
        for file in (path, _add_suffix(path, "-wal"), _add_suffix(path, "-journal"))
        if file.exists()
    )
    free = shutil.disk_usage(folder).free
    if size + _SPARE_BYTES > free:
        raise Refused(
            f"Cannot copy {path} to {folder}: it needs {size:,} bytes, and {free:,} are free. Free "
            "disk space, or set TMPDIR to a directory on a larger disk.",
            path=str(path),
            reason="no_space",
        )


def _read_header(path: Path) -> bytes:
    """Return the header of a SQLite file; raises for any other file."""
    try:
        if path.is_dir():
            raise Invalid(
                f"{path} is a directory. Give the database file in it.",
                path=str(path),
                reason="is_a_folder",
            )
        _require_regular_file(path)
        for suffix in ("", "-wal", "-journal"):
            require_unused(_add_suffix(path, suffix))
        with path.open("rb") as file:
            header = file.read(_HEADER)
    except FileNotFoundError:
        raise NotFound(f"No file named {path}. Check the path.", path=str(path)) from None
    except OSError as error:
        raise _build_unreadable(path, error) from None
    if not header:
        raise Unreadable(
            f"{path} is empty. Give the tool's database file.", path=str(path), reason="empty"
        )
    if len(header) < _HEADER or not header.startswith(MAGIC):
        raise _build_not_sqlite(path)
    return header


def _build_not_sqlite(path: Path) -> Unreadable:
    return Unreadable(
        f"{path} is not a SQLite database. Give the tool's database file.",
        path=str(path),
        reason="not_sqlite",
    )


def _require_regular_file(path: Path) -> None:
    """Refuse pipes, sockets and devices: reading them may block or never end."""
    if path.exists() and not path.is_file():
        raise _build_not_sqlite(path)


def _build_unreadable(path: Path, error: OSError) -> Refused:
    reason = error.strerror or str(error)
    return Refused(
        f"Cannot read {path}: {reason}. Check its permissions.", path=str(path), reason="unreadable"
    )


def _add_suffix(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _copy_with_lock(path: Path, target: Path) -> None:
    """Copy under SQLite's shared lock, which blocks the writer only for the time of the copy."""
    try:
        source = apsw.Connection(
            _build_uri(path), flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        )
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
        raise _build_locked(path) from None
    except (apsw.ReadOnlyError, apsw.CantOpenError):
        # Its writer died during a transaction: roll back the copy, not the source.
        target.unlink(missing_ok=True)
        _copy_files(path, target, "-journal")
    except apsw.Error as error:
        raise build_damaged(path, error) from None


def _build_locked(path: Path) -> Refused:
    return Refused(
        f"{path} is locked by another program. Stop that program, or give a copy of the file.",
        path=str(path),
        reason="locked",
    )


def build_damaged(path: Path, error: Exception) -> Unreadable:
    return Unreadable(
        f"{path} is damaged ({error}). Give an intact copy.", path=str(path), reason="damaged"
    )


def _build_uri(path: Path) -> str:
    return f"{path.absolute().as_uri()}?mode=ro"


class _Fingerprint(NamedTuple):
    """Values that change when pages are overwritten, but not when the log grows."""

    size: int
    time: int
    header: bytes
    log_header: bytes


def _read_fingerprint(path: Path, log: Path) -> _Fingerprint:
    status = path.stat()
    with path.open("rb") as file:
        header = file.read(_HEADER)
    try:
        with log.open("rb") as file:
            log_header = file.read(_LOG_HEADER)
    except FileNotFoundError:
        log_header = b""
    return _Fingerprint(status.st_size, status.st_mtime_ns, header, log_header)


def _copy_files(path: Path, target: Path, suffix: str) -> None:
    """Copy the file and its log; repeat until no page was overwritten meanwhile."""
    log = _add_suffix(path, suffix)
    for _ in range(MAX_ATTEMPTS):
        try:
            if _try_copy(path, target, log, _add_suffix(target, suffix)):
                return
        except OSError as error:
            raise _build_unreadable(path, error) from None
        time.sleep(PAUSE_SECONDS)
    raise Refused(
        f"{path} keeps changing. Stop the program that writes it, or give a copy of the file.",
        path=str(path),
        reason="busy",
    )


def _try_copy(path: Path, target: Path, log: Path, target_log: Path) -> bool:
    before = _read_fingerprint(path, log)
    if abs(_read_file_clock(target) - before.time) <= _TICK_NS:
        return False  # the next write might not change the modification time
    shutil.copyfile(path, target)
    try:
        shutil.copyfile(log, target_log)
    except FileNotFoundError:
        target_log.unlink(missing_ok=True)
    return _read_fingerprint(path, log) == before


def _read_file_clock(file: Path) -> int:
    """Return the current time by the clock of the file system."""
    file.touch()
    os.utime(file)
    return file.stat().st_mtime_ns
