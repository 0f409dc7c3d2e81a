"""Concurrent worker processes, for measurements that one process cannot make."""

import multiprocessing
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from multiprocessing.connection import Connection
from typing import Any

HEAD_START = 0.05  # between the order and the common start
PATIENCE = 60.0

Task = Callable[[float], Any]
"""Works until a time of the monotonic clock, and returns its result."""


class Crew:
    """A few processes, each with its own set-up, that work together on request.

    `hire(number, *args)` runs in the new process and is a context manager that returns the task.
    """

    def __init__(
        self, size: int, hire: Callable[..., AbstractContextManager[Task]], *args: Any
    ) -> None:
        # New interpreters, because an open store does not survive a fork.
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for number in range(size):
            parent_end, child_end = context.Pipe()
            process = context.Process(
                target=_serve, args=(child_end, hire, (number, *args)), daemon=True
            )
            process.start()
            child_end.close()
            self._pipes.append(parent_end)
            self._processes.append(process)
        self.answers()

    def shift(self, seconds: float) -> list[Any]:
        """Let all processes work for so long, and collect their results."""
        self.order(seconds, HEAD_START)
        return self.answers(seconds)

    def order(self, seconds: float, head_start: float = 0) -> None:
        """Start all processes together for so long."""
        start = time.monotonic() + head_start
        for pipe in self._pipes:
            pipe.send((start, start + seconds))

    def answers(self, seconds: float = 0) -> list[Any]:
        """Return the result of each process once it is done."""
        deadline = time.monotonic() + seconds + PATIENCE
        answers = []
        for pipe in self._pipes:
            if not pipe.poll(max(deadline - time.monotonic(), 0)):
                raise RuntimeError("a worker process did not answer")
            answers.append(pipe.recv())
        return answers

    def close(self) -> None:
        for pipe in self._pipes:
            with suppress(OSError):  # the process may have died; `answers` raised an error
                pipe.send(None)
        for process in self._processes:
            process.join(PATIENCE)

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _serve(
    pipe: Connection, hire: Callable[..., AbstractContextManager[Task]], args: tuple[Any, ...]
) -> None:
    with hire(*args) as task:
        pipe.send("ready")
        while (order := pipe.recv()) is not None:
            start, end = order
            time.sleep(max(start - time.monotonic(), 0))
            pipe.send(task(end))
