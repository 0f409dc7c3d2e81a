"""Starting the small process that keeps one run.

A keeper begins to load before its run is known, so that a command that asks for a run and the
keeper of that run get ready side by side; what it is to keep comes through a pipe. A keeper that is
told nothing ends by itself.

Both ends are the same interpreter, so what passes is written in its own way, which needs nothing
loaded: whoever starts a keeper may know nothing else of Corral.
"""

import marshal
import os
import sys
from contextlib import suppress

from corral.adapters import children

TYPE_CHECKING = False  # a command starts its keeper before it loads even that much
if TYPE_CHECKING:
    from typing import Any

# What belongs to the run that asks, and not to those it starts.
OWN_VARIABLES = ("CORRAL_RUN", "CORRAL_SESSION", "CORRAL_AGENT", "CORRAL_PROMPT", "CORRAL_KEEPER")


early: "StartingKeeper | None" = None
"""One that was started before this program knew what it is asked."""


class KeeperLost(Exception):
    """A keeper ended without having said how its run began."""


class StartingKeeper:
    """A keeper that waits for its run."""

    def __init__(self) -> None:
        _fill_standard_descriptors()
        order, self._to = os.pipe()
        self._from, answer = os.pipe()
        stdin = _duplicate(0)
        try:
            self.pid = os.posix_spawn(
                sys.executable,
                # -P: nothing is loaded from the folder in which it is started.
                [
                    sys.executable,
                    "-P",
                    "-m",
                    "corral.supervisor",
                    str(order),
                    str(answer),
                    str(stdin),
                ],
                _environment(),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, order, order),
                    (os.POSIX_SPAWN_DUP2, answer, answer),
                    *([(os.POSIX_SPAWN_DUP2, stdin, stdin)] if stdin > 2 else []),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
                setsid=True,
            )
            children.add(self.pid)
        except OSError:
            os.close(self._to)
            os.close(self._from)
            raise
        finally:
            for descriptor in (order, answer, *((stdin,) if stdin > 2 else ())):
                os.close(descriptor)

    def keep(self, **order: "Any") -> "dict[str, Any]":
        """Tell it what to keep; gives back how the run began. Raises KeeperLost."""
        tell(self._to, order)  # where it is gone, its silence says so
        answer = hear(self._from)
        if answer is None:
            raise KeeperLost
        return answer

    def dismiss(self) -> None:
        """It is not needed after all."""
        os.close(self._to)
        os.close(self._from)
        children.forget(self.pid)
        os.waitpid(self.pid, 0)


def tell(descriptor: int, what: "dict[str, Any]") -> None:
    """Say it to whoever has the other end, if anybody still has."""
    with suppress(BrokenPipeError), os.fdopen(descriptor, "wb") as pipe:
        marshal.dump(what, pipe)


def hear(descriptor: int) -> "dict[str, Any] | None":
    """What is said at the other end; None when that is closed without a word."""
    with os.fdopen(descriptor, "rb") as pipe:
        try:
            said: dict[str, Any] = marshal.load(pipe)  # noqa: S302  a process of ours has that end
        except EOFError:
            return None
    return said


def _fill_standard_descriptors() -> None:
    """A shell may have closed 0, 1 or 2; nothing of ours must come to stand there."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in OWN_VARIABLES}
    return kept | {"CORRAL_KEEPER": "1"}


def _duplicate(descriptor: int) -> int:
    try:
        return os.dup(descriptor)
    except OSError:
        return -1
