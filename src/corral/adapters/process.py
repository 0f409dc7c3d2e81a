"""Processes of this machine: who is who, who belongs to whom, and ending them.

A pid alone names nobody: it is given out again. A process is named by its pid, the moment it began
in the machine's own count, and the machine's boot; only when all of these are as they were written
down is it the same one. What cannot be read is unknown, never gone, and nothing is signalled whose
identity is not proven at that very moment.
"""

import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from enum import StrEnum
from functools import cache, partial
from typing import Any, NamedTuple

from corral.adapters.run_marks import is_marked
from corral.kernel.boot import read_boot_id

FIRST_NAMESPACE = "pid:[4026531836]"  # the kernel's fixed number of the machine's own pid space
PROC = "/proc"
PR_SET_CHILD_SUBREAPER = 36
UNKNOWN_BOOT = "unknown"
KEEPER_MARK = b"CORRAL_KEEPER=1"  # in the environment of every keeper, and of its guards


class Standing(StrEnum):
    """What is known of a process that was written down."""

    ALIVE = "alive"
    GONE = "gone"
    REUSED = "pid reused"
    REBOOTED = "rebooted"
    ELSEWHERE = "elsewhere"  # another machine's; only its lease can tell
    UNKNOWN = "unknown"


class Identity(NamedTuple):
    host: str
    boot_id: str
    pid: int
    start_token: str


@cache
def host() -> str:
    """This machine's name; inside a container also its pid space, whose pids are others.

    `CORRAL_HOST` gives it another one, so that two homes on one machine are two machines.
    """
    if given := os.environ.get("CORRAL_HOST"):
        return given
    name, space = os.uname().nodename, pid_space()
    return f"{name}/{space[5:-1]}" if space and space != FIRST_NAMESPACE else name


@cache
def pid_space() -> str | None:
    """Where this process's pids count; None where the system has but one such space."""
    with suppress(OSError):
        return os.readlink(f"{PROC}/self/ns/pid")
    return None


@cache
def boot_id() -> str:
    """A text that changes with every boot of this machine."""
    if (known := read_boot_id(PROC)) is not None:
        return known
    import subprocess

    told = subprocess.run(
        ["sysctl", "-n", "kern.boottime"], capture_output=True, text=True, check=False
    )
    return told.stdout.strip() or UNKNOWN_BOOT


class Stat(NamedTuple):
    """One line of what the kernel says of a process."""

    state: str
    parent: int
    group: int
    session: int
    cpu_ticks: int
    start_token: str
    pages: int


def stat(pid: int) -> Stat | None:
    """What is known of a process; None when there is none, OSError when it cannot be told."""
    try:
        with open(f"{PROC}/{pid}/stat", "rb") as file:
            line = file.read()
    except (FileNotFoundError, ProcessLookupError):
        if os.path.isdir(f"{PROC}/self"):
            return None
        return _stat_by_ps(pid)
    # The name in brackets may hold anything, brackets and blanks too.
    fields = line[line.rindex(b")") + 2 :].split()
    return Stat(
        state=fields[0].decode(),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        start_token=fields[19].decode(),
        pages=int(fields[21]),
    )


def _stat_by_ps(pid: int) -> Stat | None:
    """The same where there is no /proc; the start is told to the second."""
    import subprocess

    told = subprocess.run(
        ["ps", "-o", "state=,ppid=,pgid=,sess=,rss=,lstart=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"},
    )
    fields = told.stdout.split()
    if len(fields) < 6:
        return None
    numbers = [int(field, 0) if field.isdigit() else 0 for field in fields[1:5]]
    return Stat(
        fields[0][0],
        numbers[0],
        numbers[1],
        numbers[2],
        0,
        " ".join(fields[5:]),
        numbers[3] // 4,
    )


def identify(pid: int) -> Identity | None:
    """The identity of a process that runs now."""
    found = stat(pid)
    if found is None or found.state in "ZX":
        return None
    return Identity(host(), boot_id(), pid, found.start_token)


def look(process: Identity) -> Standing:
    """How a process that was written down is today."""
    if process.host != host():
        return Standing.ELSEWHERE
    if process.boot_id != boot_id():
        return Standing.REBOOTED
    try:
        found = stat(process.pid)
    except OSError:
        return Standing.UNKNOWN
    if found is None:
        return Standing.GONE
    if found.start_token != process.start_token:
        return Standing.REUSED
    # A zombie has ended; only its parent has not asked yet.
    return Standing.GONE if found.state in "ZX" else Standing.ALIVE


def age_ms(process: Identity) -> int | None:
    """How long ago a process of this boot began, whether it is still there or not; None where the
    system's count cannot be read."""
    if process.boot_id != boot_id() or not process.start_token.isdigit():
        return None
    ticks = int(process.start_token) / os.sysconf("SC_CLK_TCK")
    return int((time.clock_gettime(time.CLOCK_BOOTTIME) - ticks) * 1_000)


def send(process: Identity, number: int) -> bool:
    """Signal a process, if it is still the same one; False when it is not."""
    if process.pid <= 1:
        return False
    with suppress(AttributeError, OSError):
        handle = os.pidfd_open(process.pid)
        try:
            # The handle was taken first: what is looked at now is what is signalled.
            if look(process) is not Standing.ALIVE:
                return False
            signal.pidfd_send_signal(handle, number)
            return True
        finally:
            os.close(handle)
    if hasattr(os, "pidfd_open") or look(process) is not Standing.ALIVE:
        return False
    with suppress(OSError):
        os.kill(process.pid, number)
        return True
    return False


def tells_of_ends() -> bool:
    """Whether the system tells of the end of a process that is nobody's child here."""
    return hasattr(os, "pidfd_open")


def watch(process: Identity) -> int | None:
    """A descriptor that becomes readable when a process ends; None when it has ended already, or
    the system does not tell. The caller closes it."""
    with suppress(AttributeError, OSError):
        handle = os.pidfd_open(process.pid)
        # The handle was taken first: what is looked at now is what is watched.
        if look(process) is Standing.ALIVE:
            return handle
        os.close(handle)
    return None


def gather_orphans() -> None:
    """Have whoever below this process loses its parent come to be its child, where that exists."""
    if not sys.platform.startswith("linux"):
        return
    with suppress(Exception):  # a system that was built without: they go to the first process
        import _ctypes  # ctypes itself would take twenty times as long, and every start waits

        this_program: Any = None
        prctl = _ctypes.dlsym(_ctypes.dlopen(this_program, 0), "prctl")
        _ctypes.call_function(prctl, (PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def command_of(pid: int) -> list[str]:
    """A process's command line; empty when it cannot be told."""
    for _ in range(20):  # for a moment after it was executed, a program has none
        try:
            with open(f"{PROC}/{pid}/cmdline", "rb") as file:
                words = file.read().split(b"\0")[:-1]
        except OSError:
            return []
        if words:
            return [word.decode("utf-8", "replace") for word in words]
        time.sleep(0.001)
    return []


def cwd_of(pid: int) -> str | None:
    """Where a process is; None when it cannot be told."""
    try:
        return os.readlink(f"{PROC}/{pid}/cwd")
    except OSError:
        return None


# -- families ----------------------------------------------------------------------------------


def descendants(pid: int) -> list[int]:
    """The children of a process, their children, and so on; the nearest first."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        children = _children(waiting.pop(0))
        found += children
        waiting += children
    return found


def _children(pid: int) -> list[int]:
    children: list[int] = []
    try:
        for task in os.listdir(f"{PROC}/{pid}/task"):
            with open(f"{PROC}/{pid}/task/{task}/children", "rb") as file:
                children += [int(child) for child in file.read().split()]
    except FileNotFoundError:
        if os.path.isdir(f"{PROC}/{pid}"):  # a kernel that does not list children
            return [other for other, found in _everybody() if found.parent == pid]
    except OSError:
        pass
    return children


def _everybody() -> Iterator[tuple[int, Stat]]:
    for name in os.listdir(PROC):
        if name.isdigit():
            with suppress(OSError, ValueError):
                found = stat(int(name))
                if found is not None:
                    yield int(name), found


def family(
    process: Identity | None,
    mark: str,
    *,
    guard: Identity | None = None,
    everywhere: bool = True,
    spare_others: bool = False,
) -> list[Identity]:
    """All processes of a run: the process, its session, its descendants and those of its guard, and
    (`everywhere`) those with the run's mark (`NAME=value`) in their environment or in their
    resource limits (see `run_marks`).

    A process that leaves its parent, group and session still carries the mark. One that clears its
    environment becomes a child of the guard, and where the guard was killed it still has its
    resource limits. Supervisors and agents of other runs, which a process of this one may have
    started, are not included, nor is what is below them.

    `spare_others` is for a supervisor, which may have been replaced without noticing: the
    processes of another attempt carry the same mark and are not included while their guard lives.
    """
    if not os.path.isdir(f"{PROC}/self"):
        return _family_by_psutil(process or guard)
    # Parent and start are read in one moment: whoever says that it is below is named by just that.
    there = dict(_everybody())
    root = process.pid if process is not None and look(process) is Standing.ALIVE else None
    leaders = {there[root].session} if root in there else set()  # the session's leader is the guard
    if guard is not None and look(guard) is Standing.ALIVE:
        leaders.add(guard.pid)
    below = _below(there, {*leaders, root} if root is not None else leaders, mark)
    marked = _with_mark(there, mark) if everywhere else set()
    if spare_others:
        marked -= _of_other_attempts(there, marked, leaders, mark)
    return [
        Identity(host(), boot_id(), pid, found.start_token)
        for pid, found in there.items()
        if pid not in leaders
        and pid != os.getpid()
        and pid > 1
        and found.state not in "ZX"
        and (pid in below or found.session in leaders or pid in marked)
    ]


def _with_mark(there: dict[int, Stat], mark: str) -> set[int]:
    wanted = mark.encode()
    return {pid for pid in there if wanted in _environment_of(pid) or is_marked(pid, mark)}


def _of_other_attempts(
    there: dict[int, Stat], marked: set[int], leaders: set[int], mark: str
) -> set[int]:
    """The processes of attempts that another supervisor started: its guard leads their session."""
    sessions = {there[pid].session for pid in marked} - leaders
    guards = {pid for pid in sessions if KEEPER_MARK in _environment_of(pid)}
    below = _below(there, guards, mark)
    return {pid for pid in marked if pid in below or there[pid].session in guards}


def _below(there: dict[int, Stat], roots: Iterable[int], mark: str) -> set[int]:
    """The roots and their descendants, without those of other runs."""
    children: dict[int, list[int]] = {}
    for pid, found in there.items():
        children.setdefault(found.parent, []).append(pid)
    below: set[int] = set()
    waiting = [pid for pid in roots if pid > 1]
    while waiting:
        pid = waiting.pop()
        if pid not in below:
            below.add(pid)
            waiting += [child for child in children.get(pid, ()) if not _of_another(child, mark)]
    return below


def _of_another(pid: int, mark: str) -> bool:
    """Whether a process is a keeper, or belongs to another run than the mark says."""
    name, _, value = mark.encode().partition(b"=")
    words = _environment_of(pid)
    return KEEPER_MARK in words or any(
        word.startswith(name + b"=") and word != name + b"=" + value for word in words
    )


def _environment_of(pid: int) -> list[bytes]:
    try:
        with open(f"{PROC}/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def _family_by_psutil(process: Identity | None) -> list[Identity]:
    import psutil

    if process is None or look(process) is not Standing.ALIVE:
        return []
    with suppress(psutil.Error):
        children = psutil.Process(process.pid).children(recursive=True)
        return [process, *filter(None, (identify(child.pid) for child in children))]
    return [process]


def end_family(
    process: Identity | None,
    mark: str,
    *,
    grace_ms: int,
    guard: Identity | None = None,
    everywhere: bool = True,
    spare_others: bool = False,
) -> int:
    """Send SIGTERM to all processes of a run, then SIGKILL; returns how many had to be killed.

    It looks again after every round, because a family may grow while it is being ended.
    """
    find = partial(
        family, process, mark, guard=guard, everywhere=everywhere, spare_others=spare_others
    )
    deadline = time.monotonic() + grace_ms / 1_000
    asked: set[Identity] = set()
    while members := find():
        for member in members:
            if member not in asked:
                send(member, signal.SIGTERM)
                send(member, signal.SIGCONT)  # whoever is stopped hears nothing
                asked.add(member)
        if time.monotonic() >= deadline:
            break
        _wait_for(members, min(deadline, time.monotonic() + 0.2))
    else:
        return 0
    killed = 0
    for _ in range(50):
        members = find()
        if not members:
            break
        killed += sum(send(member, signal.SIGKILL) for member in members)
        _wait_for(members, time.monotonic() + 0.1)
    return killed


def _wait_for(members: list[Identity], until: float) -> None:
    """Return once one of them is gone, or at a moment."""
    pause = 0.002
    while time.monotonic() < until:
        if any(look(member) is not Standing.ALIVE for member in members):
            return
        time.sleep(pause)
        pause = min(pause * 2, 0.05)


class Usage(NamedTuple):
    """What a process and all below it use."""

    cpu_ms: int
    memory_bytes: int
    processes: int


def usage(pid: int) -> Usage | None:
    """The sum over a process and its descendants; None when it cannot be told."""
    tick = 1_000 // os.sysconf("SC_CLK_TCK")
    page = os.sysconf("SC_PAGE_SIZE")
    cpu = memory = count = 0
    for member in (pid, *descendants(pid)):
        with suppress(OSError, ValueError):
            found = stat(member)
            if found is not None:
                cpu += found.cpu_ticks * tick
                memory += found.pages * page
                count += 1
    return Usage(cpu, memory, count) if count else None


def memory_file_bytes(pid: int) -> int:
    """The memory of the files without a name (memfd) that a process and its descendants have open.
    It belongs to no address space, so `usage` does not count it. Linux only, else 0; processes that
    forbid inspection are left out."""
    found: dict[tuple[int, int], int] = {}
    for member in (pid, *descendants(pid)):
        with suppress(OSError):
            folder = f"/proc/{member}/fd"
            for name in os.listdir(folder):
                with suppress(OSError):
                    if os.readlink(f"{folder}/{name}").startswith("/memfd:"):
                        file = os.stat(f"{folder}/{name}")
                        found[file.st_dev, file.st_ino] = file.st_blocks * 512
    return sum(found.values())
