"""The background process that drives a race without a daemon.

It runs `corral race wait` in a session of its own, and exits when the race needs a person. If it
dies, the next process that drives the race continues.
"""

import os
import sys

from corral.adapters import child_processes, daemon_process


def start_driver(address: str, race: str) -> int:
    """Start the driver of a race and return its pid."""
    pid = os.posix_spawn(
        sys.executable,
        # -P: do not import modules from the current directory.
        [sys.executable, "-P", "-m", "corral", "race", "wait", race, "--json"],
        daemon_process.environment(address),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ],
        setsid=True,
    )
    child_processes.track(pid)
    return pid
