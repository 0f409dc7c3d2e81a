"""Forked processes for tests. Each runs one function and ends with its test."""

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
    """A barrier: forked processes wait until all of them may start at the same time."""

    def __init__(self) -> None:
        self._wait, self._open = os.pipe()

    def pass_through(self) -> None:
        """In a child: block until the parent opens the gate."""
        os.close(self._open)
        os.read(self._wait, 1)

    def open(self) -> None:
        """In the parent, after all forks: closing the pipe wakes all children."""
        os.close(self._open)
        os.close(self._wait)


class Signal:
    """A one-time signal between processes; create it before the fork."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def send(self) -> None:
        os.write(self._write, b"x")

    def wait(self, seconds: float = SECONDS) -> None:
        assert select.select([self._read], [], [], seconds)[0], "the signal did not arrive"
        os.read(self._read, 1)


class Counters:
    """One shared number for each of several forked processes."""

    def __init__(self, count: int) -> None:
        self._format = f"{count}Q"
        self._memory = mmap.mmap(-1, struct.calcsize(self._format))

    def set(self, index: int, value: int) -> None:
        struct.pack_into("Q", self._memory, 8 * index, value)

    def all(self) -> tuple[int, ...]:
        return struct.unpack_from(self._format, self._memory)


class Child(Generic[T]):
    """A forked process that opens its own store.

    SQLite connections must not be used across a fork, so no store may be open at that time;
    `carrying` is for tests of exactly that.
    """

    def __init__(
        self, work: Callable[[], T], gate: Gate | None = None, *, carrying: bool = False
    ) -> None:
        assert carrying or not _open_sqlite_files(), "close the store before the fork"
        self._read, write = os.pipe()
        with warnings.catch_warnings():
            # Newer Pythons warn of forks with threads; these children use no lock of another
            # thread.
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
            os._exit(0)  # skip the test runner's clean-up

    def result(self, seconds: float = SECONDS) -> T:
        """Return the function's result; re-raise its failure here."""
        entry = self._read_all(seconds)
        self._reap()
        assert entry, f"process {self.pid} ended without a result: {self.ended_by()}"
        kind, value = pickle.loads(entry)  # noqa: S301 (our own child wrote it)
        assert kind == "result", f"in process {self.pid}:\n{value}"
        result: T = value
        return result

    def ended_by(self, seconds: float = SECONDS) -> signal.Signals | None:
        """Return the signal that killed the process; None if it exited."""
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
        text = b""
        while self._read >= 0:
            remaining = deadline - time.monotonic()
            assert remaining > 0, f"process {self.pid} did not end within {seconds:.0f} s"
            if select.select([self._read], [], [], remaining)[0]:
                piece = os.read(self._read, 1 << 20)
                text += piece
                if not piece:
                    os.close(self._read)
                    self._read = -1
        return text

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
    """Return the shared-memory files of the SQLite stores open in this process, if known."""
    results = []
    with suppress(OSError):
        for descriptor in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                results.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return [name for name in results if name.endswith("-shm")]


def run_concurrently(works: Sequence[Callable[[], T]], seconds: float = SECONDS) -> list[T]:
    """Run each function in its own process, all started at the same time."""
    gate = Gate()
    with ExitStack() as stack:
        children = [stack.enter_context(Child(work, gate)) for work in works]
        gate.open()
        return [child.result(seconds) for child in children]


NOBODY = 65534


def as_nobody(work: Callable[[], T]) -> Callable[[], T]:
    """Wrap a function to run without root rights, so that file permissions apply."""

    def bound() -> T:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        return work()

    return bound
