"""Concurrent worker processes, for measurements that one process cannot make."""

import multiprocessing
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from multiprocessing.connection import Connection
from typing import Any

START_DELAY = 0.05  # seconds until the common start
TIMEOUT = 60.0

Task = Callable[[float], Any]
"""Works until a time of the monotonic clock, and returns its result."""


class WorkerPool:
    """Worker processes, each with its own set-up, that run a task at the same time.

    `make_worker(number, *args)` is called in the new process. It is a context manager that returns
    the task.
    """

    def __init__(
        self, size: int, make_worker: Callable[..., AbstractContextManager[Task]], *args: Any
    ) -> None:
        # New interpreters, because an open store does not survive a fork.
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for number in range(size):
            parent_end, child_end = context.Pipe()
            process = context.Process(
                target=_serve, args=(child_end, make_worker, (number, *args)), daemon=True
            )
            process.start()
            child_end.close()
            self._pipes.append(parent_end)
            self._processes.append(process)
        self.results()

    def run_for(self, seconds: float) -> list[Any]:
        """Run the task in all processes for `seconds`, and return their results."""
        self.start(seconds, START_DELAY)
        return self.results(seconds)

    def start(self, seconds: float, delay: float = 0) -> None:
        """Start the task in all processes at the same time, for `seconds`."""
        start = time.monotonic() + delay
        for pipe in self._pipes:
            pipe.send((start, start + seconds))

    def results(self, seconds: float = 0) -> list[Any]:
        """Wait for all processes and return their results."""
        deadline = time.monotonic() + seconds + TIMEOUT
        results = []
        for pipe in self._pipes:
            if not pipe.poll(max(deadline - time.monotonic(), 0)):
                raise RuntimeError("a worker process did not answer")
            results.append(pipe.recv())
        return results

    def close(self) -> None:
        for pipe in self._pipes:
            with suppress(OSError):  # the process may have died; `results` raised an error
                pipe.send(None)
        for process in self._processes:
            process.join(TIMEOUT)

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _serve(
    pipe: Connection,
    make_worker: Callable[..., AbstractContextManager[Task]],
    args: tuple[Any, ...],
) -> None:
    with make_worker(*args) as task:
        pipe.send("ready")
        while (period := pipe.recv()) is not None:
            start, end = period
            time.sleep(max(start - time.monotonic(), 0))
            pipe.send(task(end))
