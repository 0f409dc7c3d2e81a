"""The processes at the other end of a local TCP connection; Linux only."""

import os
import pwd
import socket
from contextlib import suppress
from typing import NamedTuple

from corral.adapters.processes.process_ancestry import Ancestor, list_ancestors_of

PROC = "/proc"


class _Socket(NamedTuple):
    """A line of the kernel's table of TCP sockets."""

    inode: str
    """"0": no process has it open any more."""
    user: int


def list_peer_ancestors(client: tuple[str, int], port: int) -> list[list[Ancestor]] | None:
    """List the ancestors of each process that holds the client's socket, itself first.

    `port` is the server's port. None when the other end is on another machine, or belongs to
    another account of this machine whose processes cannot be seen. An empty list: it is on this
    machine but its process is hidden, because it closed the socket, exited, or is not dumpable.
    Such a caller must not be taken for a person: each of these is easy to do on purpose.
    """
    if not os.path.exists(f"{PROC}/self/net/tcp"):
        return None
    entry = _find_socket(client, port)
    if entry is None:  # the caller reset the connection, or is on another machine
        return [] if _is_address_of_this_machine(client[0]) else None
    holders = _list_holders(f"socket:[{entry.inode}]")
    if not holders and entry.inode != "0" and _is_another_account(entry.user):
        return None
    return [list_ancestors_of(pid) for pid in holders]


def _is_address_of_this_machine(address: str) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except (OSError, UnicodeError):
        return False
    return True


def _is_another_account(user: int) -> bool:
    """Whether a user id belongs to another account.

    Ids without an account come from user namespaces, which any process of this user can enter.
    """
    if user == os.getuid():
        return False
    try:
        pwd.getpwuid(user)
    except KeyError:
        return False
    return True


def _find_socket(client: tuple[str, int], port: int) -> _Socket | None:
    """Find the socket of this machine whose local address is the client's."""
    address, number = client
    try:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        packed = socket.inet_pton(family, address)
    except OSError:
        return None
    if packed.startswith(bytes(10) + b"\xff\xff"):  # IPv4 mapped into IPv6
        family, packed = socket.AF_INET, packed[12:]
    own = {_format_address(packed, number)}
    if family == socket.AF_INET:
        own.add(_format_address(bytes(10) + b"\xff\xff" + packed, number))
    remote = f":{port:04X}"
    for name in ("tcp", "tcp6"):
        with suppress(OSError), open(f"{PROC}/self/net/{name}") as file:
            next(file, None)
            for line in file:
                fields = line.split()
                if fields[1] in own and fields[2].endswith(remote):
                    return _Socket(fields[9], int(fields[7]))
    return None


def _format_address(packed: bytes, number: int) -> str:
    """Format an address as /proc/net/tcp does: 32-bit words, each in host byte order."""
    words = [packed[at : at + 4][::-1] for at in range(0, len(packed), 4)]
    return f"{b''.join(words).hex().upper()}:{number:04X}"


def _list_holders(wanted: str) -> list[int]:
    """List the processes that have a socket open; only root sees those of other users."""
    pids: list[int] = []
    for name in os.listdir(PROC):
        if not name.isdigit():
            continue
        with suppress(OSError):
            folder = f"{PROC}/{name}/fd"
            for descriptor in os.listdir(folder):
                with suppress(OSError):
                    if os.readlink(f"{folder}/{descriptor}") == wanted:
                        pids.append(int(name))
                        break
    return pids
