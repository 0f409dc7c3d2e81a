"""The time of a SQLite store: the system's time, unless it contradicts the store's last writes."""

import os
import time
from contextlib import suppress
from typing import Final

from corral.db.shared_memory import LastWrite, SharedState
from corral.kernel.boot import read_boot_id
from corral.kernel.clock import MINUTE, SystemClock

MAX_TRUSTED_DIFFERENCE: Final = MINUTE
"""Maximum difference between the system's and the store's time that is accepted at once."""
CONFIRMED_AFTER: Final = MINUTE
"""A larger difference is accepted when no writer contradicts it for this long."""
MAX_READ_AGE = 0.01
"""How long reads reuse the store's time, in seconds."""


def read_steady_ms() -> int:
    """Return milliseconds since boot, including sleep; the same for all processes."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


class StoreClock(SystemClock):
    """The system's time, but never earlier than the last write.

    Small backward jumps are clamped: if the system's clock is set back by up to a minute, the
    store's time stays at the last write until the clock catches up. So messages keep their order,
    and a message that was due stays due.

    A larger difference is not trusted at once: a lease, a timer or a schedule written a day ahead
    would block for a day. The store's time then continues by the machine's monotonic clock. The
    system's time is accepted after no writer's clock agreed with the store's time for a minute, as
    after a correction of the system's clock.
    """

    def __init__(self, path: str) -> None:
        """Use the shared state in the file `path`.

        Until the first write creates the file, the system's time is used.
        """
        self._path: str | None = path
        self._shared: SharedState | None = None
        self._last_write = LastWrite(0, 0, 0, 0)
        self._stale_at = 0.0
        self._boot = 0

    def now(self) -> int:
        now = super().now()
        shared = self._shared
        if shared is None:
            shared = self._open()
        if shared is not None:
            steady = time.monotonic()
            if steady > self._stale_at:
                self._last_write = shared.read_last_write()
                self._stale_at = steady + MAX_READ_AGE
            return self._correct(now, self._last_write)[0]
        return now

    def write_now(self) -> int:
        """Return the time of a write, and record it as the store's time.

        Only called by the writer that holds the write lock.
        """
        now = SystemClock.now(self)
        shared = self._shared or self._open()
        if shared is not None:
            last_write = shared.read_last_write()
            if now != last_write.time or last_write.doubted_at:
                now, is_doubtful = self._correct(now, last_write)
                steady = read_steady_ms() if self._boot else 0
                since = (last_write.doubted_at or steady) if is_doubtful else 0
                last_write = LastWrite(now, steady, self._boot, since)
                shared.write_last_write(last_write)
            self._last_write = last_write
        return now

    def _correct(self, now: int, last: LastWrite) -> tuple[int, bool]:
        """Return the store's time, and whether the system's time differs too much from it."""
        is_same_boot = self._boot != 0 and last.boot == self._boot
        if is_same_boot:
            steady = read_steady_ms()
            expected = last.time + steady - last.steady
            differs = abs(now - expected) > MAX_TRUSTED_DIFFERENCE
            is_confirmed = bool(last.doubted_at) and steady - last.doubted_at > CONFIRMED_AFTER
            if differs and not is_confirmed:
                return max(expected, last.time), True
        if now < last.time <= now + MAX_TRUSTED_DIFFERENCE:
            return last.time, False
        return now, False

    def close(self) -> None:
        """Close the file of the shared state; from then on the system's time is used."""
        shared, self._path, self._shared = self._shared, None, None
        if shared is not None:
            shared.close()

    def _open(self) -> SharedState | None:
        if self._path is not None:
            with suppress(OSError):
                self._shared = SharedState(self._path)
                self._boot = _read_boot_number()
        return self._shared


def _read_boot_number() -> int:
    """Return a number for this boot and the process's time namespace.

    0 where the system has none (macOS): the system's clock is then always trusted.

    The first 56 random bits of the boot id, combined with the inode of the namespace. A hash would
    load OpenSSL into every command.
    """
    boot_id = read_boot_id()
    if not boot_id:
        return 0
    try:
        namespace = os.stat("/proc/self/ns/time").st_ino
    except OSError:
        return 0
    number = int(boot_id.replace("-", "")[:14], 16) ^ namespace
    return number or 1  # 0 means that there is no boot id
