"""This machine: its name, and which of its boots this is."""

import os
import socket
import subprocess
from pathlib import Path

_LINUX_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def node_name() -> str:
    """`$CORRAL_NODE`, else the host's name."""
    return os.environ.get("CORRAL_NODE") or socket.gethostname()


def boot_id() -> str:
    """A text that changes when the machine boots and at no other time."""
    try:
        return _LINUX_BOOT_ID.read_text().strip()
    except OSError:
        # macOS: the second in which the kernel started.
        told = subprocess.run(
            ["sysctl", "-n", "kern.boottime"], capture_output=True, text=True, check=True, timeout=5
        )
        return told.stdout.partition("sec = ")[2].partition(",")[0] or told.stdout.strip()
