"""Allocation of local TCP ports to programs that take the port as a parameter.

A port belongs to its owner until it is released. The allocations are stored in a folder under a
file lock and hold for all processes that use the folder. Ports on which another program listens
are skipped.
"""

import errno
import fcntl
import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from corral.kernel.errors import Invalid, Refused

FIRST_PORT = 20_000
LAST_PORT = 29_999  # below the ephemeral ports of the system
PORTS_FILE = "ports.json"
_IN_USE = (errno.EADDRINUSE, errno.EACCES)


def allocate_ports(
    folder: Path, owner: str, count: int = 1, *, first: int = FIRST_PORT, last: int = LAST_PORT
) -> list[int]:
    """Allocate free loopback ports to an owner; idempotent: the owner gets the same ports again.

    Raises Refused when there are not enough free ports.
    """
    if not (0 < first <= last < 65_536 and count > 0):
        raise Invalid(
            "Invalid port range or count: ports are 1 to 65535, and at least one is needed."
        )
    with _lock_list(folder) as owned:
        mine = owned.get(owner, [])[:count]
        others = {port for ports in owned.values() for port in ports}
        for port in range(first, last + 1):
            if len(mine) == count:
                break
            if port not in others and _is_free(port):
                mine.append(port)
        if len(mine) < count:
            raise Refused(
                f"Fewer than {count} ports are free from {first} to {last}. Release some, or use "
                "another range.",
                free=len(mine),
                reason="no_free_ports",
            )
        if mine != owned.get(owner):
            _write(folder, {**owned, owner: mine})
        return mine


def release_ports(folder: Path, owner: str) -> None:
    """Release the ports of an owner. Idempotent."""
    release_matching(folder, lambda name: name == owner)


def release_matching(folder: Path, is_over: Callable[[str], bool]) -> None:
    """Release the ports of all owners for which `is_over` is true."""
    with suppress(FileNotFoundError), _lock_list(folder) as owned:
        remaining = {name: ports for name, ports in owned.items() if not is_over(name)}
        if len(remaining) < len(owned):
            _write(folder, remaining)


def list_allocated(folder: Path) -> dict[str, list[int]]:
    """Return the ports of each owner."""
    with suppress(FileNotFoundError), _lock_list(folder) as owned:
        return owned
    return {}


@contextmanager
def _lock_list(folder: Path) -> Iterator[dict[str, list[int]]]:
    """Lock and read the list of allocations; a damaged list counts as empty."""
    lock = os.open(folder / f"{PORTS_FILE}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield _read(folder)
    finally:
        os.close(lock)


def _read(folder: Path) -> dict[str, list[int]]:
    with suppress(OSError, ValueError):
        data = json.loads((folder / PORTS_FILE).read_bytes())
        if isinstance(data, dict):
            return {
                str(owner): [port for port in ports if isinstance(port, int)]
                for owner, ports in data.items()
                if isinstance(ports, list)
            }
    return {}


def _write(folder: Path, owned: dict[str, list[int]]) -> None:
    temporary = folder / f"{PORTS_FILE}.new"
    temporary.write_text(json.dumps(owned))
    os.replace(temporary, folder / PORTS_FILE)


def _is_free(port: int) -> bool:
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with suppress(OSError), socket.socket(family) as probe:
            # Like a server: a socket in TIME_WAIT does not block the port.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError as error:
                if error.errno in _IN_USE:
                    return False
    return True
