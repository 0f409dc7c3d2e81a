"""The processes above this one: what the operating system, and no variable, says about who runs it.

Loaded by every command and hook, so it imports nothing that takes time and reads one small file per
process: about 20 µs each.
"""

import os
from typing import NamedTuple

MOST = 256  # processes above one another; a longer chain is cut off
PROC = "/proc"


class Ancestor(NamedTuple):
    """A process, as `Identity` names it on this boot."""

    pid: int
    start_token: str


_known: tuple[int, list[Ancestor]] | None = None


def ancestors() -> list[Ancestor]:
    """This process, its parent, and so on up to the first process.

    They are read once: a process that loses its parent later still belongs to where it came from.
    """
    global _known
    me = os.getpid()
    if _known is None or _known[0] != me:  # a forked child has one more
        _known = me, ancestors_of(me)
    return _known[1]


def ancestors_of(pid: int) -> list[Ancestor]:
    """The same of another process, as it is now."""
    return _by_proc(pid) if os.path.isdir(f"{PROC}/self") else _by_ps(pid)


def boot_id() -> str:
    """This boot of the machine, as `process.boot_id`."""
    try:
        with open(f"{PROC}/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        from corral.adapters import process

        return process.boot_id()


def _by_proc(pid: int) -> list[Ancestor]:
    found: list[Ancestor] = []
    while pid > 0 and len(found) < MOST:
        try:
            descriptor = os.open(f"{PROC}/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
            try:
                line = os.read(descriptor, 4_096)
            finally:
                os.close(descriptor)
        except OSError:
            break  # it has ended, or its parent is outside of this pid namespace
        # The name in brackets may hold anything, brackets and blanks too.
        fields = line[line.rindex(b")") + 2 :].split(None, 20)
        found.append(Ancestor(pid, fields[19].decode()))
        pid = int(fields[1])
    return found


def _by_ps(pid: int) -> list[Ancestor]:
    """The same where there is no /proc, by one call of `ps`."""
    import subprocess

    told = subprocess.run(
        ["ps", "-axo", "pid=,ppid=,lstart="],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"},
    )
    rows = {}
    for line in told.stdout.splitlines():
        fields = line.split()
        rows[int(fields[0])] = int(fields[1]), " ".join(fields[2:])
    found: list[Ancestor] = []
    while pid in rows and len(found) < MOST:
        above, began = rows[pid]
        found.append(Ancestor(pid, began))
        pid = above
    return found
