"""A fair write lock between the processes that use one SQLite file.

SQLite's own busy handler sleeps and retries, so the process that has waited longest is served last;
under load some writers wait for many seconds. Corral's writers therefore queue on two kernel locks
(flock) beside the file. The kernel releases both when a process dies.

- The turn lock: its holder may write.
- The queue lock: its holder is the next writer. It polls the turn lock; all others block in flock()
  on the queue lock, and the kernel serves them in order of arrival.

A writer that finishes and comes back at once finds the queue lock taken and waits behind the
others. While no process holds the queue lock, which the shared state shows (`db/shared_memory.py`),
a writer tries the turn lock directly.

A stopped process (Ctrl-Z) keeps its locks, so every wait is limited to MAX_WAIT.
"""

import errno
import threading
import time
from fcntl import flock

from corral.db.lock_file import (
    QUEUE_LOCK_SUFFIX,
    TRY_LOCK,
    TURN_LOCK_SUFFIX,
    UNLOCK,
    LockFile,
)
from corral.db.shared_memory import SharedState
from corral.db.sqlite_errors import disk_full_error
from corral.kernel.errors import StoreUnavailable
from corral.kernel.process_state import is_stopped

MAX_WAIT = 30.0

# Pauses of the next writer between two attempts at the turn lock; most turns are short.
_MIN_PAUSE, _MAX_PAUSE = 0.000_01, 0.005


class WriteLock:
    """The write lock of the store at `store_path` in this process.

    The lock files beside the store are created on first use, readable only by their user.
    """

    def __init__(self, store_path: str) -> None:
        self._store_path = store_path
        self._files: tuple[QueueLock, LockFile] | None = None
        self._waiter: _QueueWaiter | None = None

    def acquire(self, waiting_since: float | None = None, timeout: float | None = None) -> None:
        """Wait for the turn to write; raises StoreUnavailable after MAX_WAIT or `timeout` seconds.

        `waiting_since` is when the caller began to wait, if that was earlier (monotonic clock).
        """
        queue, turn = self._files or self._open()
        if not queue.state.is_queue_locked():
            try:
                flock(turn.descriptor, TRY_LOCK)
                return
            except BlockingIOError:
                pass
        self._wait_in_queue(queue, turn, _compute_deadline(waiting_since, timeout))

    def _wait_in_queue(self, queue: "QueueLock", turn: LockFile, deadline: float) -> None:
        if not queue.try_lock():
            self._waiter = self._waiter or _QueueWaiter(queue)
            if not self._waiter.wait(deadline - time.monotonic()):
                raise self._timeout_error(turn, queue)
        try:
            if not _poll_turn(turn, deadline):
                raise self._timeout_error(turn)
        finally:
            queue.unlock()

    def release(self) -> None:
        if self._files is not None:
            flock(self._files[1].descriptor, UNLOCK)

    def _open(self) -> "tuple[QueueLock, LockFile]":
        try:
            queue = QueueLock(self._store_path + QUEUE_LOCK_SUFFIX)
            try:
                self._files = queue, LockFile(self._store_path + TURN_LOCK_SUFFIX)
            except BaseException:
                queue.close()
                raise
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise disk_full_error(self._store_path) from None
            lock_path = error.filename or self._store_path + TURN_LOCK_SUFFIX
            raise StoreUnavailable(
                f"Cannot create the lock file {lock_path} beside the store: {error.strerror}. "
                "Correct the permissions of the directory, remove the object with that name, or "
                "give another path with --store.",
                reason="unwritable",
                path=self._store_path + TURN_LOCK_SUFFIX,
            ) from None
        return self._files

    def close(self) -> None:
        queue, turn = self._files or (None, None)
        if turn is not None:
            turn.close()
        if self._waiter is not None:
            self._waiter.stop()
        elif queue is not None:
            queue.close()
        self._files = self._waiter = None

    def _timeout_error(self, *waited_for: LockFile) -> StoreUnavailable:
        holders = (file.holder() for file in waited_for)
        holder = next((process for process in holders if process is not None), None)
        if holder is None:
            cause = "another process does not finish a write. Find it and end it"
        elif is_stopped(holder):
            cause = (
                f"process {holder} is stopped in the middle of a write. Continue it with "
                f"`kill -CONT {holder}`, or end it"
            )
        else:
            cause = f"process {holder} does not finish a write. Wait for it, or end it"
        return StoreUnavailable(
            f"Cannot write to the store {self._store_path}: {cause}.",
            reason="locked",
            path=self._store_path,
            holder=holder,
        )


class QueueLock(LockFile):
    """The queue lock; the shared state shows whether a process holds it.

    The flag is a hint. After its holder died, the flag stays set until the next holder unlocks; and
    between lock and flag, one more writer may skip the queue.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        try:
            self.state = SharedState(path)
        except BaseException:
            super().close()
            raise

    def lock(self) -> None:
        super().lock()
        self.state.set_queue_locked(True)

    def try_lock(self) -> bool:
        if not super().try_lock():
            return False
        self.state.set_queue_locked(True)
        return True

    def unlock(self) -> None:
        self.state.set_queue_locked(False)
        super().unlock()

    def close(self) -> None:
        super().close()
        self.state.close()


def _compute_deadline(waiting_since: float | None, timeout: float | None) -> float:
    limit = MAX_WAIT if timeout is None else min(timeout, MAX_WAIT)
    return (time.monotonic() if waiting_since is None else waiting_since) + limit


def _poll_turn(turn: LockFile, deadline: float) -> bool:
    """Take the turn lock before the deadline; only the holder of the queue lock polls it."""
    pause = _MIN_PAUSE
    while not turn.try_lock():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(pause * 1.3, _MAX_PAUSE)
    return True


class _QueueWaiter(threading.Thread):
    """Blocks in flock() on a helper thread so that the caller can time out.

    flock() has no timeout. A caller that gives up leaves the thread in the kernel's queue, and the
    next caller takes over its position.
    """

    def __init__(self, queue: QueueLock) -> None:
        super().__init__(name="corral-write-lock", daemon=True)
        self._queue = queue
        self._state = threading.Lock()
        self._is_waiting = self._is_wanted = self._is_stopping = False
        self._requested, self._acquired = threading.Lock(), threading.Lock()
        self._requested.acquire()
        self._acquired.acquire()
        self.start()

    def wait(self, timeout: float) -> bool:
        """Return whether this process got the queue lock within `timeout` seconds."""
        with self._state:
            self._is_wanted = True
            if not self._is_waiting:
                self._is_waiting = True
                self._requested.release()
        try:
            if self._acquired.acquire(timeout=max(timeout, 0)):
                return True
        except BaseException:  # Ctrl-C while waiting
            if self._give_up():
                self._queue.unlock()
            raise
        return self._give_up()

    def _give_up(self) -> bool:
        """Stop waiting; return True if the lock was acquired at this very moment."""
        with self._state:
            self._is_wanted = False
            return self._acquired.acquire(blocking=False)

    def run(self) -> None:
        while True:
            self._requested.acquire()
            if not self._is_stopping:
                self._queue.lock()
            with self._state:
                self._is_waiting = False
                if self._is_stopping:
                    self._queue.close()
                    return
                if self._is_wanted:
                    self._is_wanted = False
                    self._acquired.release()
                else:
                    self._queue.unlock()

    def stop(self) -> None:
        """End the thread once flock() returns, and close the file of the queue lock."""
        with self._state:
            self._is_stopping = True
            if not self._is_waiting:
                self._requested.release()
