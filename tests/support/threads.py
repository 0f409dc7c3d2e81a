"""Concurrent threads, and a test that fails instead of hanging when they do not end."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")

SECONDS = 120.0  # only a guard against hanging


class Racer(Generic[T]):
    """A thread that runs one function and keeps its result."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self.value: T | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.value = self._work()
        except BaseException as error:
            self.error = error

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def join(self, seconds: float = SECONDS) -> "Racer[T]":
        self._thread.join(max(seconds, 0))
        assert not self._thread.is_alive(), f"a thread did not end within {seconds:.0f} s"
        return self

    def result(self, seconds: float = SECONDS) -> T:
        self.join(seconds)
        if self.error is not None:
            raise self.error
        value: T = self.value
        return value


def race(works: Sequence[Callable[[], T]], seconds: float = SECONDS) -> list[Racer[T]]:
    """Run all functions concurrently, each in a thread; return the finished threads."""
    together = threading.Barrier(len(works))

    def start(work: Callable[[], T]) -> Callable[[], T]:
        def started() -> T:
            together.wait(seconds)
            return work()

        return started

    racers = [Racer(start(work)) for work in works]
    deadline = time.monotonic() + seconds
    for racer in racers:
        racer.join(deadline - time.monotonic())
    return racers
