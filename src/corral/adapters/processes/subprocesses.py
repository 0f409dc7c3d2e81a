"""Run other programs, and `corral` commands in the background.

Uses `posix_spawn` directly: importing `subprocess` costs start-up time and memory.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from corral.adapters.processes import child_processes
from corral.adapters.supervisor_process import RUN_VARIABLES


def spawn_corral(address: str, *args: str) -> int:
    """Start `corral ARGS…` on a store in the background, without input and output; returns its pid.

    The process has a session of its own, so it outlives its caller.
    """
    pid = _spawn(address, args)
    child_processes.track(pid)
    return pid


def run_corral(address: str, *args: str) -> bool:
    """Run `corral ARGS…` on a store without input and output; return whether it succeeded."""
    with suppress(ChildProcessError):
        return os.waitpid(_spawn(address, args), 0)[1] == 0
    return False


def _spawn(address: str, args: Sequence[str]) -> int:
    # In the environment: the address may contain a password, and every user can read arguments.
    environment = {name: value for name, value in os.environ.items() if name not in RUN_VARIABLES}
    return os.posix_spawn(
        sys.executable,
        # -P: do not import modules from the current directory.
        [sys.executable, "-P", "-m", "corral", *args],
        environment | {"CORRAL_STORE": address},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ],
        setsid=True,
    )


def capture_output(args: list[str], environment: dict[str, str], seconds: float) -> bytes | None:
    """Return the output of a program; None if it is missing, fails or takes too long."""
    reader, writer = os.pipe()
    try:
        pid = os.posix_spawnp(
            args[0],
            args,
            os.environ | environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, writer, 1),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
        )
    except OSError:
        os.close(reader)
        return None
    finally:
        os.close(writer)
    output = _read_until(reader, time.monotonic() + seconds)
    if output is None:
        os.kill(pid, signal.SIGKILL)
    return output if os.waitpid(pid, 0)[1] == 0 else None


def _read_until(reader: int, deadline: float) -> bytes | None:
    """Read until end-of-file; None if the deadline passes before."""
    with os.fdopen(reader, "rb", buffering=0) as pipe:
        output = b""
        while (left := deadline - time.monotonic()) > 0:
            if select.select([pipe], [], [], left)[0]:
                piece = pipe.read(65_536)
                if not piece:
                    return output
                output += piece
    return None
