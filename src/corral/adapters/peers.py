"""The processes at the other end of a local TCP connection; Linux only."""

import os
import socket
from contextlib import suppress

from corral.adapters.ancestry import Ancestor, ancestors_of

PROC = "/proc"


def ancestors_of_peer(client: tuple[str, int], port: int) -> list[list[Ancestor]] | None:
    """List the ancestors of each process that holds the client's socket, itself first. `port` is
    the server's port.

    None: the client is on another machine, or its socket is not visible. Empty list: the socket is
    local, but no visible process holds it any more.
    """
    inode = _inode_of(client, port)
    if inode is None:
        return None
    wanted = f"socket:[{inode}]"
    return [ancestors_of(pid) for pid in _holders(wanted)]


def _inode_of(client: tuple[str, int], port: int) -> str | None:
    """Return the inode of the local socket that has the client's address."""
    address, number = client
    try:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        packed = socket.inet_pton(family, address)
    except OSError:
        return None
    if packed.startswith(bytes(10) + b"\xff\xff"):  # IPv4 mapped into IPv6
        family, packed = socket.AF_INET, packed[12:]
    own = {_as_listed(packed, number)}
    if family == socket.AF_INET:
        own.add(_as_listed(bytes(10) + b"\xff\xff" + packed, number))
    remote = f":{port:04X}"
    for name in ("tcp", "tcp6"):
        with suppress(OSError), open(f"{PROC}/self/net/{name}") as file:
            next(file, None)
            for line in file:
                fields = line.split()
                if fields[1] in own and fields[2].endswith(remote):
                    return fields[9]
    return None


def _as_listed(packed: bytes, number: int) -> str:
    """Format an address as /proc/net/tcp does: 32-bit words, each in host byte order."""
    words = [packed[at : at + 4][::-1] for at in range(0, len(packed), 4)]
    return f"{b''.join(words).hex().upper()}:{number:04X}"


def _holders(wanted: str) -> list[int]:
    """List the processes that have a socket open. Only root sees those of other users."""
    pids = []
    me = os.getpid()
    for name in os.listdir(PROC):
        if not name.isdigit() or int(name) == me:
            continue
        with suppress(OSError):
            folder = f"{PROC}/{name}/fd"
            for descriptor in os.listdir(folder):
                with suppress(OSError):
                    if os.readlink(f"{folder}/{descriptor}") == wanted:
                        pids.append(int(name))
                        break
    return pids
