"""Real processes for tests: forked, given one function to run, and never left behind."""

import mmap
import os
import pickle
import select
import signal
import struct
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Generic, Self, TypeVar

T = TypeVar("T")

SECONDS = 120.0  # only a guard against hanging


class Gate:
    """Where forked processes stand until all of them may go at the same moment."""

    def __init__(self) -> None:
        self._wait, self._open = os.pipe()

    def pass_through(self) -> None:
        """For the children: returns once the parent has opened the gate."""
        os.close(self._open)
        os.read(self._wait, 1)

    def open(self) -> None:
        """For the parent, once all children are forked: those who wait read the end of the pipe."""
        os.close(self._open)
        os.close(self._wait)


class Signal:
    """A word from one process to another; made before the fork that parts them."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def send(self) -> None:
        os.write(self._write, b"x")

    def wait(self, seconds: float = SECONDS) -> None:
        assert select.select([self._read], [], [], seconds)[0], "the word did not come"
        os.read(self._read, 1)


class Counters:
    """One number for each of several forked processes, which all of them see."""

    def __init__(self, count: int) -> None:
        self._format = f"{count}Q"
        self._memory = mmap.mmap(-1, struct.calcsize(self._format))

    def set(self, place: int, value: int) -> None:
        struct.pack_into("Q", self._memory, 8 * place, value)

    def all(self) -> tuple[int, ...]:
        return struct.unpack_from(self._format, self._memory)


class Child(Generic[T]):
    """A forked process, which opens its own store.

    SQLite's connections must not be carried through a fork, so nobody may have one open then;
    `carrying` is for the tests of just that.
    """

    def __init__(
        self, work: Callable[[], T], gate: Gate | None = None, *, carrying: bool = False
    ) -> None:
        assert carrying or not _open_sqlite_files(), "close the store before the fork"
        self._read, write = os.pipe()
        with warnings.catch_warnings():
            # Newer Pythons warn of forks beside threads; the children here use nobody's locks.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            os.close(self._read)
            self._live(work, gate, write)
        os.close(write)
        self._status: int | None = None

    @staticmethod
    def _live(work: Callable[[], T], gate: Gate | None, write: int) -> None:
        try:
            if gate is not None:
                gate.pass_through()
            answer: tuple[str, Any] = ("result", work())
        except BaseException:
            answer = ("error", traceback.format_exc())
        try:
            with os.fdopen(write, "wb") as pipe:
                pickle.dump(answer, pipe)
        finally:
            os._exit(0)  # nothing of the test runner's own clean-up belongs here

    def result(self, seconds: float = SECONDS) -> T:
        """What the function gave back; a failure there is a failure here."""
        told = self._read_all(seconds)
        self._reap()
        assert told, f"process {self.pid} ended without a word: {self.ended_by()}"
        kind, value = pickle.loads(told)  # noqa: S301 (our own child wrote it)
        assert kind == "result", f"in process {self.pid}:\n{value}"
        result: T = value
        return result

    def ended_by(self, seconds: float = SECONDS) -> signal.Signals | None:
        """The signal that killed it; None when it came to its own end."""
        self._read_all(seconds)
        self._reap()
        assert self._status is not None
        return signal.Signals(os.WTERMSIG(self._status)) if os.WIFSIGNALED(self._status) else None

    def kill(self) -> None:
        if self._status is None:
            os.kill(self.pid, signal.SIGKILL)
            self._reap()

    def _read_all(self, seconds: float) -> bytes:
        deadline = time.monotonic() + seconds
        told = b""
        while self._read >= 0:
            left = deadline - time.monotonic()
            assert left > 0, f"process {self.pid} did not end within {seconds:.0f} s"
            if select.select([self._read], [], [], left)[0]:
                piece = os.read(self._read, 1 << 20)
                told += piece
                if not piece:
                    os.close(self._read)
                    self._read = -1
        return told

    def _reap(self) -> None:
        if self._status is None:
            self._status = os.waitpid(self.pid, 0)[1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        if self._read >= 0:
            os.close(self._read)
            self._read = -1


def _open_sqlite_files() -> list[str]:
    """The shared memory of each SQLite store that this process has open, if the system tells."""
    found = []
    with suppress(OSError):
        for descriptor in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [name for name in found if name.endswith("-shm")]


def run_concurrently(works: Sequence[Callable[[], T]], seconds: float = SECONDS) -> list[T]:
    """Run each function in a process of its own, all let go at the same moment."""
    gate = Gate()
    with ExitStack() as stack:
        children = [stack.enter_context(Child(work, gate)) for work in works]
        gate.open()
        return [child.result(seconds) for child in children]


NOBODY = 65534


def as_nobody(work: Callable[[], T]) -> Callable[[], T]:
    """The same function for a child that has no special rights: permissions bind not the root."""

    def bound() -> T:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        return work()

    return bound
