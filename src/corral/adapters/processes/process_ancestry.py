"""The ancestors of a process, read from the operating system and not from variables.

Every command and hook loads this module, so it has no heavy imports. `process.read_stat` is not
used here: that module takes longer to load than the whole walk (about 20 µs per ancestor).
"""

import os
from typing import NamedTuple

from corral.kernel.boot import read_boot_id

INVISIBLE_PID = 0
"""What the kernel reports as the pid of a process outside of this pid namespace."""

MAX_ANCESTORS = 256  # a longer chain is cut off
PROC = "/proc"


class Ancestor(NamedTuple):
    """A process, as `ProcessIdentity` names it on this boot."""

    pid: int
    start_token: str


_known: tuple[int, list[Ancestor]] | None = None


def list_ancestors() -> list[Ancestor]:
    """List this process, its parent, and so on up to the first process.

    The list is read once per process: a process that loses its parent later keeps its ancestors.
    """
    global _known
    me = os.getpid()
    if _known is None or _known[0] != me:  # a forked child has one more ancestor
        _known = me, list_ancestors_of(me)
    return _known[1]


def list_ancestors_of(pid: int) -> list[Ancestor]:
    """List a process and its current ancestors, nearest first."""
    return _list_by_proc(pid) if os.path.isdir(f"{PROC}/self") else _list_by_ps(pid)


def boot_id() -> str:
    """Return the id of this boot, as `process.boot_id` does."""
    known = read_boot_id(PROC)
    if known is None:
        from corral.adapters.processes import process

        return process.boot_id()
    return known


def _list_by_proc(pid: int) -> list[Ancestor]:
    chain: list[Ancestor] = []
    while pid > 0 and len(chain) < MAX_ANCESTORS:
        try:
            descriptor = os.open(f"{PROC}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
            try:
                line = os.read(descriptor, 4_096)
            finally:
                os.close(descriptor)
        except OSError:
            break  # the process has ended, or its parent is outside this pid namespace
        # The name in brackets may itself contain brackets and blanks.
        fields = line[line.rindex(b")") + 2 :].split(None, 20)
        chain.append(Ancestor(pid, fields[19].decode()))
        pid = int(fields[1])
    return chain


def _list_by_ps(pid: int) -> list[Ancestor]:
    """Read the ancestors with one call of `ps`, for systems without /proc."""
    import subprocess

    listing = subprocess.run(
        ["ps", "-axo", "pid=,ppid=,lstart="],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"},
    )
    rows = {}
    for line in listing.stdout.splitlines():
        fields = line.split()
        rows[int(fields[0])] = int(fields[1]), " ".join(fields[2:])
    chain: list[Ancestor] = []
    while pid in rows and len(chain) < MAX_ANCESTORS:
        parent, start_token = rows[pid]
        chain.append(Ancestor(pid, start_token))
        pid = parent
    return chain
