"""Start supervisor processes.

A supervisor starts to import before its run is known, in parallel with the command that requests
the run; its order arrives through a pipe. A supervisor that gets no order exits.

Messages are encoded with `marshal`: both ends are the same interpreter, and it needs no import.
This module must stay cheap to import, because commands start the supervisor before anything else.
"""

import marshal
import os
import sys
from contextlib import suppress

from corral.adapters.processes import child_processes

TYPE_CHECKING = False  # not imported from typing, which is slow
if TYPE_CHECKING:
    from typing import Any

# Variables that identify the calling run. They are not passed on to the runs that it starts.
RUN_VARIABLES = (
    "CORRAL_RUN",
    "CORRAL_SESSION",
    "CORRAL_AGENT",
    "CORRAL_PROMPT",
    "CORRAL_SUPERVISOR",
)


prestarted: "StartingSupervisor | None" = None
"""A supervisor that was started before the command line was parsed."""


class SupervisorLost(Exception):
    """The supervisor exited without an answer, so it is unknown whether the run started."""


class StartingSupervisor:
    """A supervisor process that waits for its order."""

    def __init__(self) -> None:
        _fill_standard_descriptors()
        order_reader, self._order_writer = os.pipe()
        self._answer_reader, answer_writer = os.pipe()
        stdin = _duplicate(0)
        try:
            self.pid = os.posix_spawn(
                sys.executable,
                # -P: do not import modules from the current directory.
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "corral.supervisor",
                    str(order_reader),
                    str(answer_writer),
                    str(stdin),
                ],
                _build_environment(),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, order_reader, order_reader),
                    (os.POSIX_SPAWN_DUP2, answer_writer, answer_writer),
                    *([(os.POSIX_SPAWN_DUP2, stdin, stdin)] if stdin > 2 else []),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
                setsid=True,
            )
            child_processes.track(self.pid)
        except OSError:
            os.close(self._order_writer)
            os.close(self._answer_reader)
            raise
        finally:
            for descriptor in (order_reader, answer_writer, *((stdin,) if stdin > 2 else ())):
                os.close(descriptor)

    def start(self, **order: "Any") -> "dict[str, Any]":
        """Send the order (see `supervisor.main.StartOrder`) and return the answer.

        Raises SupervisorLost.
        """
        write_message(self._order_writer, order)  # if it is gone, there is no answer
        answer = read_message(self._answer_reader)
        if answer is None:
            raise SupervisorLost
        return answer

    def cancel(self) -> None:
        """End the process without an order."""
        os.close(self._order_writer)
        os.close(self._answer_reader)
        child_processes.untrack(self.pid)
        os.waitpid(self.pid, 0)


def write_message(descriptor: int, message: "dict[str, Any]") -> None:
    """Write a message and close the pipe. Does nothing if the other end is closed."""
    with suppress(BrokenPipeError), os.fdopen(descriptor, "wb") as pipe:
        marshal.dump(message, pipe)


def read_message(descriptor: int) -> "dict[str, Any] | None":
    """Read a message and close the pipe; None if the other end was closed without one."""
    with os.fdopen(descriptor, "rb") as pipe:
        try:
            message: dict[str, Any] = marshal.load(pipe)  # noqa: S302  the writer is our own process
        except EOFError:
            return None
    return message


def _fill_standard_descriptors() -> None:
    """Open /dev/null for closed descriptors 0, 1 and 2, so that no pipe of ours gets them."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


def _build_environment() -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name not in RUN_VARIABLES}
    return environment | {"CORRAL_SUPERVISOR": "1"}


def _duplicate(descriptor: int) -> int:
    try:
        return os.dup(descriptor)
    except OSError:
        return -1
