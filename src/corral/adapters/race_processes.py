"""Starting the process that drives a race when nobody waits for it and no daemon serves the store.

It is the command that waits for a race, in a session of its own; it ends when nothing of the race
happens by itself any more. Should it die, whoever looks after the race next goes on with it.
"""

import os
import sys

from corral.adapters import children, daemon_process


def start(address: str, race: str) -> int:
    """Start it; gives back its pid."""
    pid = os.posix_spawn(
        sys.executable,
        # -P: nothing is loaded from the folder in which it is started.
        [sys.executable, "-P", "-m", "corral", "race", "wait", race, "--json"],
        daemon_process.environment(address),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ],
        setsid=True,
    )
    children.add(pid)
    return pid
