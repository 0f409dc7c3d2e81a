"""Ports of this machine for programs that are told which one to use.

A port is taken for an owner until it is given back, for all processes that use the same folder: it
is written down there under a lock. One that somebody else listens on is passed over.
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

FIRST = 20_000
LAST = 29_999  # below the ports that the system itself gives out
LIST = "ports.json"
_TAKEN = (errno.EADDRINUSE, errno.EACCES)


def take(
    folder: Path, owner: str, count: int = 1, *, first: int = FIRST, last: int = LAST
) -> list[int]:
    """Free loopback ports for an owner; the same ones when it asks again. Refused when there are
    not as many left."""
    if not (0 < first <= last < 65_536 and count > 0):
        raise Invalid("Ports are numbers from 1 to 65535, and at least one is asked for.")
    with _held(folder) as owned:
        mine = owned.get(owner, [])[:count]
        others = {port for ports in owned.values() for port in ports}
        for port in range(first, last + 1):
            if len(mine) == count:
                break
            if port not in others and _is_free(port):
                mine.append(port)
        if len(mine) < count:
            raise Refused(
                f"There are not {count} free ports from {first} to {last}; give some back, or name "
                "another range.",
                free=len(mine),
                reason="no_free_ports",
            )
        if mine != owned.get(owner):
            _write(folder, {**owned, owner: mine})
        return mine


def give_back(folder: Path, owner: str) -> None:
    """They are free again; no harm for an owner that has none."""
    give_back_of(folder, lambda who: who == owner)


def give_back_of(folder: Path, is_over: Callable[[str], bool]) -> None:
    """The same for all owners of which something is true."""
    with suppress(FileNotFoundError), _held(folder) as owned:
        left = {who: ports for who, ports in owned.items() if not is_over(who)}
        if len(left) < len(owned):
            _write(folder, left)


def taken(folder: Path) -> dict[str, list[int]]:
    """Who has which."""
    with suppress(FileNotFoundError), _held(folder) as owned:
        return owned
    return {}


@contextmanager
def _held(folder: Path) -> Iterator[dict[str, list[int]]]:
    """The list, while no other process may change it; a damaged one is an empty one."""
    lock = os.open(folder / f"{LIST}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield _read(folder)
    finally:
        os.close(lock)


def _read(folder: Path) -> dict[str, list[int]]:
    with suppress(OSError, ValueError):
        found = json.loads((folder / LIST).read_bytes())
        if isinstance(found, dict):
            return {
                str(owner): [port for port in ports if isinstance(port, int)]
                for owner, ports in found.items()
                if isinstance(ports, list)
            }
    return {}


def _write(folder: Path, owned: dict[str, list[int]]) -> None:
    part = folder / f"{LIST}.new"
    part.write_text(json.dumps(owned))
    os.replace(part, folder / LIST)


def _is_free(port: int) -> bool:
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with suppress(OSError), socket.socket(family) as probe:
            # As a server does it: what only waits for late packets is no obstacle.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError as error:
                if error.errno in _TAKEN:
                    return False
    return True
