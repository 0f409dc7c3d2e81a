"""Whose process is at the other end of a connection from this machine; Linux only."""

import os
import socket
from contextlib import suppress

from corral.adapters.ancestry import Ancestor, ancestors_of

PROC = "/proc"


def ancestors_of_peer(client: tuple[str, int], port: int) -> list[list[Ancestor]] | None:
    """The ancestors of each process that has the other end, itself first; `port` is this end's.

    None when the other end is on another machine, or cannot be seen. An empty list: it is here,
    and no process that can be seen has it any more.
    """
    inode = _inode_of(client, port)
    if inode is None:
        return None
    wanted = f"socket:[{inode}]"
    return [ancestors_of(pid) for pid in _holders(wanted)]


def _inode_of(client: tuple[str, int], port: int) -> str | None:
    """The socket of this machine whose own address is the client's."""
    address, number = client
    try:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        packed = socket.inet_pton(family, address)
    except OSError:
        return None
    if packed.startswith(bytes(10) + b"\xff\xff"):  # IPv4 in the form of IPv6
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
    """An address as the kernel lists it: words of 32 bits, each in the machine's own order."""
    words = [packed[at : at + 4][::-1] for at in range(0, len(packed), 4)]
    return f"{b''.join(words).hex().upper()}:{number:04X}"


def _holders(wanted: str) -> list[int]:
    """The processes that have a socket open; those of other users are seen by root alone."""
    found = []
    me = os.getpid()
    for name in os.listdir(PROC):
        if not name.isdigit() or int(name) == me:
            continue
        with suppress(OSError):
            folder = f"{PROC}/{name}/fd"
            for descriptor in os.listdir(folder):
                with suppress(OSError):
                    if os.readlink(f"{folder}/{descriptor}") == wanted:
                        found.append(int(name))
                        break
    return found
