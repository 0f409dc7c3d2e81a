"""A fair line of processes that want to write one SQLite file.

SQLite's own busy wait sleeps and tries again, and who sleeps longest is served last: under load
some writers wait for many seconds. So writers queue before two kernel locks beside the file, which
the kernel frees when a process dies. Whoever has the turn may write. Whoever has the door is the
next; the others stand before the door, and the kernel lets them through in the order in which they
came. One who comes straight back from a turn finds the door closed and stands at the end. While
no process holds the door, which the board shows (`db/shared_memory.py`), a writer skips it.

A process that is stopped (Ctrl-Z) keeps what it has, so nobody waits longer than PATIENCE.
"""

import errno
import threading
import time
from fcntl import flock
from pathlib import Path

from corral.db.lockfile import FREE, TRY, LockFile
from corral.db.shared_memory import Board
from corral.db.sqlite_errors import no_room
from corral.kernel.errors import StoreUnavailable

PATIENCE = 30.0

# How long the next in line sleeps before it tries the turn again: a turn is short, mostly.
_SHORTEST_NAP, _LONGEST_NAP = 0.000_01, 0.005


class Turnstile:
    """`path` and `path` + "-door" are made, private, when somebody first enters."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._files: tuple[Door, LockFile] | None = None
        self._usher: _Usher | None = None

    def enter(self, since: float | None = None, patience: float | None = None) -> None:
        """Come in alone; StoreUnavailable when the turn does not come within PATIENCE, or within
        `patience` seconds where that is shorter.

        `since` is when the caller began to wait, if that was earlier, by the steady clock.
        """
        door, turn = self._files or self._open()
        if not door.board.is_door_taken():
            try:
                flock(turn.descriptor, TRY)
                return
            except BlockingIOError:
                pass
        self._stand_in_line(door, turn, _deadline(since, patience))

    def _stand_in_line(self, door: "Door", turn: LockFile, deadline: float) -> None:
        if not door.try_lock():
            self._usher = self._usher or _Usher(door)
            if not self._usher.bring(deadline - time.monotonic()):
                raise self._refusal(turn, door)
        try:
            if not _came(turn, deadline):
                raise self._refusal(turn)
        finally:
            door.unlock()

    def leave(self) -> None:
        if self._files is not None:
            flock(self._files[1].descriptor, FREE)

    def _open(self) -> "tuple[Door, LockFile]":
        try:
            door = Door(self._path + "-door")
            try:
                self._files = door, LockFile(self._path)
            except BaseException:
                door.close()
                raise
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise no_room(self._path.removesuffix("-line")) from None
            raise StoreUnavailable(
                f"Corral cannot make its lock {error.filename or self._path} beside the store "
                f"({error.strerror}); correct the folder's permissions, take away what stands in "
                "its place, or give another path with --store.",
                reason="unwritable",
                path=self._path,
            ) from None
        return self._files

    def close(self) -> None:
        door, turn = self._files or (None, None)
        if turn is not None:
            turn.close()
        if self._usher is not None:
            self._usher.send_home()
        elif door is not None:
            door.close()
        self._files = self._usher = None

    def _refusal(self, *waited_for: LockFile) -> StoreUnavailable:
        holders = (file.holder() for file in waited_for)
        holder = next((process for process in holders if process is not None), None)
        if holder is None:
            said = "another process does not finish a write; find it and end it"
        elif is_stopped(holder):
            said = (
                f"process {holder} was stopped in the middle of a write; let it go on with "
                f"`kill -CONT {holder}`, or end it"
            )
        else:
            said = f"process {holder} does not finish a write; wait for it, or end it"
        store = self._path.removesuffix("-line")
        return StoreUnavailable(
            f"The store {store} cannot be written: {said}.",
            reason="locked",
            path=store,
            holder=holder,
        )


class Door(LockFile):
    """A lock that shows whether somebody has it. One who died with it still seems to, until the
    next one came through; and in the moment before it shows, one more may pass by."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        try:
            self.board = Board(path)
        except BaseException:
            super().close()
            raise

    def lock(self) -> None:
        super().lock()
        self.board.show_door(True)

    def try_lock(self) -> bool:
        if not super().try_lock():
            return False
        self.board.show_door(True)
        return True

    def unlock(self) -> None:
        self.board.show_door(False)
        super().unlock()

    def close(self) -> None:
        super().close()
        self.board.close()


def _deadline(since: float | None, patience: float | None) -> float:
    longest = PATIENCE if patience is None else min(patience, PATIENCE)
    return (time.monotonic() if since is None else since) + longest


def _came(turn: LockFile, deadline: float) -> bool:
    """Whether the turn came in time; only the next in line tries for it."""
    nap = _SHORTEST_NAP
    while not turn.try_lock():
        if time.monotonic() > deadline:
            return False
        time.sleep(nap)
        nap = min(nap * 1.3, _LONGEST_NAP)
    return True


class _Usher(threading.Thread):
    """Stands before the door for whoever writes, so that he can stop waiting: inside the kernel's
    line, nobody hears a clock."""

    def __init__(self, door: Door) -> None:
        super().__init__(name="corral-usher", daemon=True)
        self._door = door
        self._state = threading.Lock()
        self._stands = self._wanted = self._goes_home = False
        self._asked, self._through = threading.Lock(), threading.Lock()
        self._asked.acquire()
        self._through.acquire()
        self.start()

    def bring(self, patience: float) -> bool:
        """Whether the door was ours within so many seconds. One who gave up keeps the place in line
        for whoever asks next."""
        with self._state:
            self._wanted = True
            if not self._stands:
                self._stands = True
                self._asked.release()
        try:
            if self._through.acquire(timeout=max(patience, 0)):
                return True
        except BaseException:  # Ctrl-C while waiting
            if self._give_up():
                self._door.unlock()
            raise
        return self._give_up()

    def _give_up(self) -> bool:
        """Want the door no more; True when it became ours at this very moment."""
        with self._state:
            self._wanted = False
            return self._through.acquire(blocking=False)

    def run(self) -> None:
        while True:
            self._asked.acquire()
            if not self._goes_home:
                self._door.lock()
            with self._state:
                self._stands = False
                if self._goes_home:
                    self._door.close()
                    return
                if self._wanted:
                    self._wanted = False
                    self._through.release()
                else:
                    self._door.unlock()

    def send_home(self) -> None:
        """End the thread once it is out of the line, and close the door's file."""
        with self._state:
            self._goes_home = True
            if not self._stands:
                self._asked.release()


def is_stopped(process: int) -> bool:
    try:
        about = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return about.rpartition(")")[2].split()[:1] == ["T"]
