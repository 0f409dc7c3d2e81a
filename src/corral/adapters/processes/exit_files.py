"""Exit files: the exit status of an agent, written by its guard.

The guard holds a lock on the file from before the agent starts until the status is written. So a
reader can distinguish "not yet" (locked) from "never" (unlocked and missing).
"""

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

from corral.kernel.clock import SystemClock
from corral.kernel.exit_status import ExitStatus

MAX_BYTES = 256
NEVER_STARTED = "its supervisor died before the program was started"


class ExitFileWriter:
    """The guard's side. Created and locked before the agent is started."""

    def __init__(self, folder: Path, attempt: int, pid: int) -> None:
        self._path = _build_path(folder, attempt, pid)
        self._part = self._path.with_name(self._path.name + ".part")
        self.descriptor = os.open(self._part, os.O_WRONLY | os.O_CREAT, 0o600)
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)
        # Reserve the space now: the agent may fill the disk. If it is full already, the supervisor
        # still gets the status through its pipe to the guard.
        with suppress(OSError):
            os.pwrite(self.descriptor, b" " * MAX_BYTES, 0)

    def write(self, end: ExitStatus) -> None:
        """Write the exit status durably; does nothing if the disk fails."""
        with suppress(OSError):
            os.pwrite(self.descriptor, encode(end).ljust(MAX_BYTES), 0)
            os.fsync(self.descriptor)
            os.rename(self._part, self._path)


def encode(end: ExitStatus) -> bytes:
    return msgspec.json.encode(end._asdict())


def decode(data: bytes) -> ExitStatus:
    """Decode an exit status; an unknown end if the data is missing or invalid.

    The data is validated because the agent has the same user and can write to the file.
    """
    try:
        record = msgspec.json.decode(data, type=_ExitRecord)
    except (msgspec.DecodeError, RecursionError):
        return ExitStatus()
    reason = NEVER_STARTED if record.reason == NEVER_STARTED else None
    return ExitStatus(
        exit_code=record.exit_code,
        signal=record.signal,
        reason=reason,
        cpu_ms=record.cpu_ms,
        peak_bytes=record.peak_bytes,
    )


class _ExitRecord(msgspec.Struct):
    exit_code: Annotated[int, msgspec.Meta(ge=0, le=255)] | None
    signal: Annotated[int, msgspec.Meta(ge=1, le=128)] | None
    reason: str | None = None
    cpu_ms: Annotated[int, msgspec.Meta(ge=0, le=1 << 50)] | None = None
    peak_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 50)] | None = None


def read_exit(folder: Path, attempt: int, pid: int) -> ExitStatus:
    """Return the recorded exit status; an unknown end if there is none."""
    try:
        return decode(_build_path(folder, attempt, pid).read_bytes())
    except OSError:
        return ExitStatus()


def age_ms(folder: Path, attempt: int, pid: int) -> int:
    """Return the age of the exit file; 0 if there is none, as the agent may have just ended."""
    try:
        written = _build_path(folder, attempt, pid).stat().st_mtime
    except OSError:
        return 0
    return max(0, SystemClock().now() - int(written * 1_000))


def wait_for_exit(folder: Path, attempt: int, pid: int, seconds: float) -> ExitStatus:
    """Like `read_exit`, but wait while the guard still holds the lock."""
    deadline = time.monotonic() + seconds
    file = _build_path(folder, attempt, pid)
    part = file.with_name(file.name + ".part")
    while not (end := read_exit(folder, attempt, pid)).is_known:
        if not _is_locked(part) or time.monotonic() > deadline:
            return read_exit(folder, attempt, pid)
        time.sleep(0.01)
    return end


def _is_locked(path: Path) -> bool:
    with suppress(FileNotFoundError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


def _build_path(folder: Path, attempt: int, pid: int) -> Path:
    # Two supervisors may start the same attempt; the pid tells their processes apart.
    return folder / f"exit.{attempt}.{pid}"
