"""Processes of this machine: identity, liveness, signals, process trees and resource usage.

Pids are reused, so a pid alone does not identify a process. A process is identified by its host,
the boot id of the host, its pid and its start time in the kernel's count; it is the same process
only if all four match. A process that cannot be read is unknown, never gone, and a signal is sent
only after the identity was verified.
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

from corral.adapters.processes.process_marks import is_marked
from corral.kernel.boot import read_boot_id

INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # a constant of the kernel
PROC = "/proc"
PR_SET_CHILD_SUBREAPER = 36
UNKNOWN_BOOT = "unknown"
SUPERVISOR_MARK = b"CORRAL_SUPERVISOR=1"  # in the environment of every supervisor and its guards


class Liveness(StrEnum):
    """What is known about a process whose identity was recorded."""

    ALIVE = "alive"
    GONE = "gone"
    REUSED = "pid reused"
    REBOOTED = "rebooted"
    ELSEWHERE = "elsewhere"  # on another machine; only its lease shows whether it is alive
    UNKNOWN = "unknown"


class ProcessIdentity(NamedTuple):
    """Identifies a process across reboots and reused pids."""

    host: str
    boot_id: str
    pid: int
    start_token: str

    def as_owner(self, role: str, instance: int | None = None) -> str:
        """Return the name under which this process holds leases: `ROLE:HOST:PID:START:BOOT`.

        `instance` distinguishes several owners in one process. `parse_owner` reverses it.
        """
        fields = (role, self.host, str(self.pid), self.start_token, self.boot_id)
        owner = ":".join(_escape(field) for field in fields)
        return owner if instance is None else f"{owner}:{instance}"


def parse_owner(owner: str | None) -> ProcessIdentity | None:
    """Return the process in an owner of `as_owner`; None for any other owner."""
    _, *fields = (owner or "").split(":")
    if len(fields) not in (4, 5) or not fields[1].isdecimal():
        return None
    host_name, pid, start_token, boot = (_unescape(field) for field in fields[:4])
    return ProcessIdentity(host_name, boot, int(pid), start_token)


def is_dead(owner: str | None) -> bool:
    """Return whether an owner is a process of this machine that is known to be dead."""
    identity = parse_owner(owner)
    return identity is not None and check(identity) in (
        Liveness.GONE,
        Liveness.REUSED,
        Liveness.REBOOTED,
    )


def _escape(field: str) -> str:
    return field.replace("%", "%25").replace(":", "%3A")


def _unescape(field: str) -> str:
    return field.replace("%3A", ":").replace("%25", "%")


@cache
def host() -> str:
    """Return the name of this machine; in a container with its pid namespace, whose pids differ.

    `CORRAL_HOST` overrides it, so that two homes on one machine can act as two machines.
    """
    if override := os.environ.get("CORRAL_HOST"):
        return override
    name, namespace = os.uname().nodename, pid_namespace()
    if namespace and namespace != INITIAL_PID_NAMESPACE:
        return f"{name}/{namespace[5:-1]}"
    return name


@cache
def pid_namespace() -> str | None:
    """Return the pid namespace of this process; None where the system has no namespaces."""
    with suppress(OSError):
        return os.readlink(f"{PROC}/self/ns/pid")
    return None


@cache
def boot_id() -> str:
    """Return a text that changes with every boot of this machine."""
    if (known := read_boot_id(PROC)) is not None:
        return known
    import subprocess

    result = subprocess.run(
        ["sysctl", "-n", "kern.boottime"], capture_output=True, text=True, check=False
    )
    return result.stdout.strip() or UNKNOWN_BOOT


class ProcessStat(NamedTuple):
    """Fields of `/proc/PID/stat`."""

    state: str
    parent: int
    group: int
    session: int
    cpu_ticks: int
    start_token: str
    pages: int


def read_stat(pid: int) -> ProcessStat | None:
    """Read the state of a process; None if there is none, OSError if it cannot be read."""
    try:
        with open(f"{PROC}/{pid}/stat", "rb") as file:
            line = file.read()
    except (FileNotFoundError, ProcessLookupError):
        if os.path.isdir(f"{PROC}/self"):
            return None
        return _read_stat_by_ps(pid)
    # The name in parentheses may contain anything, also parentheses and spaces.
    fields = line[line.rindex(b")") + 2 :].split()
    return ProcessStat(
        state=fields[0].decode(),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        start_token=fields[19].decode(),
        pages=int(fields[21]),
    )


def _read_stat_by_ps(pid: int) -> ProcessStat | None:
    """Read the state without /proc; the start time has a resolution of one second."""
    import subprocess

    result = subprocess.run(
        ["ps", "-o", "state=,ppid=,pgid=,sess=,rss=,lstart=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"},
    )
    fields = result.stdout.split()
    if len(fields) < 6:
        return None
    numbers = [int(field, 0) if field.isdigit() else 0 for field in fields[1:5]]
    return ProcessStat(
        fields[0][0],
        numbers[0],
        numbers[1],
        numbers[2],
        0,
        " ".join(fields[5:]),
        numbers[3] // 4,
    )


def identify(pid: int) -> ProcessIdentity | None:
    """Return the identity of a process that is running now, or None."""
    stat = read_stat(pid)
    if stat is None or stat.state in "ZX":
        return None
    return ProcessIdentity(host(), boot_id(), pid, stat.start_token)


def identify_self() -> ProcessIdentity:
    """Return the identity of this process."""
    identity = identify(os.getpid())
    assert identity is not None
    return identity


def check(process: ProcessIdentity) -> Liveness:
    """Return whether a recorded process is still alive."""
    if process.host != host():
        return Liveness.ELSEWHERE
    if process.boot_id != boot_id():
        return Liveness.REBOOTED
    try:
        stat = read_stat(process.pid)
    except OSError:
        return Liveness.UNKNOWN
    if stat is None:
        return Liveness.GONE
    if stat.start_token != process.start_token:
        return Liveness.REUSED
    # A zombie has ended; its parent has not waited for it yet.
    return Liveness.GONE if stat.state in "ZX" else Liveness.ALIVE


def age_ms(process: ProcessIdentity) -> int | None:
    """Return how long ago a process of this boot started, whether it is alive or not; None if
    unknown."""
    if process.boot_id != boot_id() or not process.start_token.isdigit():
        return None
    ticks = int(process.start_token) / os.sysconf("SC_CLK_TCK")
    return int((time.clock_gettime(time.CLOCK_BOOTTIME) - ticks) * 1_000)


def send_signal(process: ProcessIdentity, number: int) -> bool:
    """Send a signal to a process, if it is still the same one; return whether it was sent."""
    if process.pid <= 1:
        return False
    with suppress(AttributeError, OSError):
        handle = os.pidfd_open(process.pid)
        try:
            # The pidfd was opened first, so the process that is checked is the one signalled.
            if check(process) is not Liveness.ALIVE:
                return False
            signal.pidfd_send_signal(handle, number)
            return True
        finally:
            os.close(handle)
    if hasattr(os, "pidfd_open") or check(process) is not Liveness.ALIVE:
        return False
    with suppress(OSError):
        os.kill(process.pid, number)
        return True
    return False


def can_watch_exits() -> bool:
    """Whether the system reports the exit of processes that are not our children (pidfd)."""
    return hasattr(os, "pidfd_open")


def watch_exit(process: ProcessIdentity) -> int | None:
    """Return a descriptor that becomes readable when the process exits. The caller closes it.

    None if the process has ended already, or without pidfd support.
    """
    with suppress(AttributeError, OSError):
        handle = os.pidfd_open(process.pid)
        # The pidfd was opened first, so the process that is checked is the one watched.
        if check(process) is Liveness.ALIVE:
            return handle
        os.close(handle)
    return None


def become_subreaper() -> None:
    """Adopt orphaned descendants of this process (Linux child subreaper)."""
    if not sys.platform.startswith("linux"):
        return
    with suppress(Exception):  # unsupported: orphans go to init
        import _ctypes  # importing ctypes takes twenty times as long, at every start of an agent

        main_program: Any = None
        prctl = _ctypes.dlsym(_ctypes.dlopen(main_program, 0), "prctl")
        _ctypes.call_function(prctl, (PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def read_command_line(pid: int) -> list[str]:
    """Return the command line of a process; empty if it cannot be read."""
    for _ in range(20):  # during exec, the command line is empty for a moment
        try:
            with open(f"{PROC}/{pid}/cmdline", "rb") as file:
                args = file.read().split(b"\0")[:-1]
        except OSError:
            return []
        if args:
            return [arg.decode("utf-8", "replace") for arg in args]
        time.sleep(0.001)
    return []


def read_cwd(pid: int) -> str | None:
    """Return the working directory of a process; None if it cannot be read."""
    try:
        return os.readlink(f"{PROC}/{pid}/cwd")
    except OSError:
        return None


# -- process trees -----------------------------------------------------------------------------


def descendants(pid: int) -> list[int]:
    """Return all descendants of a process, breadth first."""
    pids: list[int] = []
    queue = [pid]
    while queue:
        children = _list_children(queue.pop(0))
        pids += children
        queue += children
    return pids


def _list_children(pid: int) -> list[int]:
    children: list[int] = []
    try:
        for task in os.listdir(f"{PROC}/{pid}/task"):
            with open(f"{PROC}/{pid}/task/{task}/children", "rb") as file:
                children += [int(child) for child in file.read().split()]
    except FileNotFoundError:
        if os.path.isdir(f"{PROC}/{pid}"):  # a kernel without CONFIG_PROC_CHILDREN
            return [other for other, stat in _iter_processes() if stat.parent == pid]
    except OSError:
        pass
    return children


def _iter_processes() -> Iterator[tuple[int, ProcessStat]]:
    for name in os.listdir(PROC):
        if name.isdigit():
            with suppress(OSError, ValueError):
                stat = read_stat(int(name))
                if stat is not None:
                    yield int(name), stat


def find_run_processes(
    process: ProcessIdentity | None,
    mark: str,
    *,
    guard: ProcessIdentity | None = None,
    everywhere: bool = True,
    spare_others: bool = False,
) -> list[ProcessIdentity]:
    """Return all processes of a run: the process, its session, its descendants, those of its guard,
    and (`everywhere`) those with the run's mark (`NAME=value`) in their environment or in their
    resource limits (see `process_marks`).

    A process that leaves its parent, group and session still carries the mark. One that clears its
    environment becomes a child of the guard; if the guard was killed, it still has its resource
    limits. Supervisors and agents of other runs, which a process of this run may have started, are
    not included, nor are their descendants.

    `spare_others` is for a supervisor, which may have been replaced without noticing: the
    processes of another attempt carry the same mark and are not included while their guard lives.
    """
    if not os.path.isdir(f"{PROC}/self"):
        return _find_by_psutil(process or guard)
    # Parent and start time are read at once: the process found below is the one identified.
    stats = dict(_iter_processes())
    root = process.pid if process is not None and check(process) is Liveness.ALIVE else None
    leaders = {stats[root].session} if root in stats else set()  # the guard leads the session
    if guard is not None and check(guard) is Liveness.ALIVE:
        leaders.add(guard.pid)
    tree = _find_trees(stats, {*leaders, root} if root is not None else leaders, mark)
    marked = _find_marked(stats, mark) if everywhere else set()
    if spare_others:
        marked -= _find_other_attempts(stats, marked, leaders, mark)
    return [
        ProcessIdentity(host(), boot_id(), pid, stat.start_token)
        for pid, stat in stats.items()
        if pid not in leaders
        and pid != os.getpid()
        and pid > 1
        and stat.state not in "ZX"
        and (pid in tree or stat.session in leaders or pid in marked)
    ]


def _find_marked(stats: dict[int, ProcessStat], mark: str) -> set[int]:
    variable = mark.encode()
    return {pid for pid in stats if variable in _read_environment(pid) or is_marked(pid, mark)}


def _find_other_attempts(
    stats: dict[int, ProcessStat], marked: set[int], leaders: set[int], mark: str
) -> set[int]:
    """Return the processes of attempts that another supervisor started; their guard leads their
    session."""
    sessions = {stats[pid].session for pid in marked} - leaders
    guards = {pid for pid in sessions if SUPERVISOR_MARK in _read_environment(pid)}
    tree = _find_trees(stats, guards, mark)
    return {pid for pid in marked if pid in tree or stats[pid].session in guards}


def _find_trees(stats: dict[int, ProcessStat], roots: Iterable[int], mark: str) -> set[int]:
    """Return the roots and their descendants, without those of other runs."""
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.parent, []).append(pid)
    tree: set[int] = set()
    queue = [pid for pid in roots if pid > 1]
    while queue:
        pid = queue.pop()
        if pid not in tree:
            tree.add(pid)
            queue += [child for child in children.get(pid, ()) if not _is_of_other_run(child, mark)]
    return tree


def _is_of_other_run(pid: int, mark: str) -> bool:
    """Whether a process is a supervisor, or has the mark of another run."""
    name, _, value = mark.encode().partition(b"=")
    variables = _read_environment(pid)
    return SUPERVISOR_MARK in variables or any(
        variable.startswith(name + b"=") and variable != name + b"=" + value
        for variable in variables
    )


def _read_environment(pid: int) -> list[bytes]:
    try:
        with open(f"{PROC}/{pid}/environ", "rb") as file:
            return file.read().split(b"\0")
    except OSError:
        return []


def _find_by_psutil(process: ProcessIdentity | None) -> list[ProcessIdentity]:
    import psutil

    if process is None or check(process) is not Liveness.ALIVE:
        return []
    with suppress(psutil.Error):
        children = psutil.Process(process.pid).children(recursive=True)
        return [process, *filter(None, (identify(child.pid) for child in children))]
    return [process]


def terminate_run_processes(
    process: ProcessIdentity | None,
    mark: str,
    *,
    grace_period_ms: int,
    guard: ProcessIdentity | None = None,
    everywhere: bool = True,
    spare_others: bool = False,
) -> int:
    """Send SIGTERM to all processes of a run, then SIGKILL; return how many had to be killed.

    The processes are listed again after every round, because they may fork meanwhile.
    """
    find = partial(
        find_run_processes,
        process,
        mark,
        guard=guard,
        everywhere=everywhere,
        spare_others=spare_others,
    )
    deadline = time.monotonic() + grace_period_ms / 1_000
    signalled: set[ProcessIdentity] = set()
    while members := find():
        for member in members:
            if member not in signalled:
                send_signal(member, signal.SIGTERM)
                send_signal(member, signal.SIGCONT)  # a stopped process cannot handle SIGTERM
                signalled.add(member)
        if time.monotonic() >= deadline:
            break
        _wait_for_exit(members, min(deadline, time.monotonic() + 0.2))
    else:
        return 0
    killed = 0
    for _ in range(50):
        members = find()
        if not members:
            break
        killed += sum(send_signal(member, signal.SIGKILL) for member in members)
        _wait_for_exit(members, time.monotonic() + 0.1)
    return killed


def _wait_for_exit(members: list[ProcessIdentity], deadline: float) -> None:
    """Wait until one of the processes has ended, or until the deadline."""
    pause = 0.002
    while time.monotonic() < deadline:
        if any(check(member) is not Liveness.ALIVE for member in members):
            return
        time.sleep(pause)
        pause = min(pause * 2, 0.05)


class ProcessUsage(NamedTuple):
    """Resource usage of a process and its descendants."""

    cpu_ms: int
    memory_bytes: int
    processes: int


def measure_usage(pid: int) -> ProcessUsage | None:
    """Return the sum over a process and its descendants; None if it cannot be read."""
    tick = 1_000 // os.sysconf("SC_CLK_TCK")
    page = os.sysconf("SC_PAGE_SIZE")
    cpu = memory = count = 0
    for member in (pid, *descendants(pid)):
        with suppress(OSError, ValueError):
            stat = read_stat(member)
            if stat is not None:
                cpu += stat.cpu_ticks * tick
                memory += stat.pages * page
                count += 1
    return ProcessUsage(cpu, memory, count) if count else None


def measure_memfd_bytes(pid: int) -> int:
    """Return the memory of the memfd files that a process and its descendants have open.

    It belongs to no address space, so `measure_usage` does not count it. Linux only, else 0;
    processes that forbid inspection are left out.
    """
    sizes: dict[tuple[int, int], int] = {}
    for member in (pid, *descendants(pid)):
        with suppress(OSError):
            folder = f"/proc/{member}/fd"
            for name in os.listdir(folder):
                with suppress(OSError):
                    if os.readlink(f"{folder}/{name}").startswith("/memfd:"):
                        file = os.stat(f"{folder}/{name}")
                        sizes[file.st_dev, file.st_ino] = file.st_blocks * 512
    return sum(sizes.values())
