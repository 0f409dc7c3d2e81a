"""How an agent's process ended, as its guard wrote it down.

The guard holds a lock on a file of its own from before the agent begins until it has told how the
agent ended. So whoever comes later can tell "not yet" from "never", and need not guess.
"""

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

from corral.kernel.clock import SystemClock
from corral.kernel.exit_status import End

ROOM = 256
NEVER_BEGAN = "its keeper died before it began"


class ExitNote:
    """The guard's side: made and locked before the agent is started."""

    def __init__(self, folder: Path, attempt: int, pid: int) -> None:
        self._file = _file(folder, attempt, pid)
        self._part = self._file.with_name(self._file.name + ".part")
        self.descriptor = os.open(self._part, os.O_WRONLY | os.O_CREAT, 0o600)
        fcntl.flock(self.descriptor, fcntl.LOCK_EX)
        # Its room is taken now: the agent may fill the disk. Where it is full already, the keeper
        # still learns the end from the guard itself.
        with suppress(OSError):
            os.pwrite(self.descriptor, b" " * ROOM, 0)

    def write(self, end: End) -> None:
        with suppress(OSError):
            os.pwrite(self.descriptor, encode(end).ljust(ROOM), 0)
            os.fsync(self.descriptor)
            os.rename(self._part, self._file)


def encode(end: End) -> bytes:
    return msgspec.json.encode(end._asdict())


def decode(data: bytes) -> End:
    """What a guard said; an unknown end when it said nothing, or nothing that a guard would say:
    the file is the agent's user's, and an agent may write there too."""
    try:
        note = msgspec.json.decode(data, type=_Note)
    except (msgspec.DecodeError, RecursionError):
        return End()
    reason = NEVER_BEGAN if note.reason == NEVER_BEGAN else None
    return End(
        exit_code=note.exit_code,
        signal=note.signal,
        reason=reason,
        cpu_ms=note.cpu_ms,
        peak_bytes=note.peak_bytes,
    )


class _Note(msgspec.Struct):
    exit_code: Annotated[int, msgspec.Meta(ge=0, le=255)] | None
    signal: Annotated[int, msgspec.Meta(ge=1, le=128)] | None
    reason: str | None = None
    cpu_ms: Annotated[int, msgspec.Meta(ge=0, le=1 << 50)] | None = None
    peak_bytes: Annotated[int, msgspec.Meta(ge=0, le=1 << 50)] | None = None


def read(folder: Path, attempt: int, pid: int) -> End:
    """What the guard wrote down; an unknown end when it did not."""
    try:
        return decode(_file(folder, attempt, pid).read_bytes())
    except OSError:
        return End()


def age_ms(folder: Path, attempt: int, pid: int) -> int:
    """How long ago the guard wrote it down; 0 when it did not, for it may have ended just now."""
    try:
        written = _file(folder, attempt, pid).stat().st_mtime
    except OSError:
        return 0
    return max(0, SystemClock().now() - int(written * 1_000))


def wait_for(folder: Path, attempt: int, pid: int, seconds: float) -> End:
    """The same, after having let a guard finish that is still there."""
    deadline = time.monotonic() + seconds
    file = _file(folder, attempt, pid)
    part = file.with_name(file.name + ".part")
    while not (end := read(folder, attempt, pid)).known:
        if not _is_locked(part) or time.monotonic() > deadline:
            return read(folder, attempt, pid)
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


def _file(folder: Path, attempt: int, pid: int) -> Path:
    # Two keepers may try the same attempt; the one that loses has another process.
    return folder / f"exit.{attempt}.{pid}"
