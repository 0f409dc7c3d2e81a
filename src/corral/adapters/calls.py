"""Other programs, and commands of Corral itself, as processes that are gone when they are done."""

import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from corral.adapters import children
from corral.adapters.supervisor_process import OWN_VARIABLES


def call(address: str, *words: str) -> None:
    """Start `corral WORDS…` on a store, without input and output, and leave it to itself."""
    children.add(_start(address, words))


def _start(address: str, words: Sequence[str]) -> int:
    # The address may hold a password, and a command line can be read by everybody.
    environment = {name: value for name, value in os.environ.items() if name not in OWN_VARIABLES}
    return os.posix_spawn(
        sys.executable,
        # -P: nothing is loaded from the folder in which it is started.
        [sys.executable, "-P", "-m", "corral", *words],
        environment | {"CORRAL_STORE": address},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ],
        setsid=True,
    )


def call_and_wait(address: str, *words: str) -> bool:
    """The same, and wait until it is done; whether it went well."""
    with suppress(ChildProcessError):
        return os.waitpid(_start(address, words), 0)[1] == 0
    return False


def output_of(words: list[str], environment: dict[str, str], seconds: float) -> bytes | None:
    """What a program prints; None when it is not there, fails, or takes too long.

    Without the standard library's own way, which would stay in a keeper's memory.
    """
    reading, writing = os.pipe()
    try:
        pid = os.posix_spawnp(
            words[0],
            words,
            os.environ | environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, writing, 1),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
        )
    except OSError:
        os.close(reading)
        return None
    finally:
        os.close(writing)
    printed = _read_until(reading, time.monotonic() + seconds)
    if printed is None:
        os.kill(pid, signal.SIGKILL)
    return printed if os.waitpid(pid, 0)[1] == 0 else None


def _read_until(reading: int, deadline: float) -> bytes | None:
    """All that comes; None when it has not ended by then."""
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        found = b""
        while (left := deadline - time.monotonic()) > 0:
            if select.select([pipe], [], [], left)[0]:
                piece = pipe.read(65_536)
                if not piece:
                    return found
                found += piece
    return None
