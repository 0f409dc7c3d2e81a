"""Running a program so that it can change only what it is meant to.

Bubblewrap where that is there and works, else Landlock (Linux, no package needed), else nothing;
which one it is, why not a better one, and what it does not keep is always said.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from corral.adapters import landlock
from corral.adapters.private_git import SHARED, PrivateGit
from corral.kernel.errors import Refused
from corral.scratch_folders import scratch_folder

SECONDS = 20
LANDLOCK_LACKS = (
    "It can connect to programs that listen at a Unix socket in a folder.",
    "It can change the mode and the times of files of the same user, and ask whether a path "
    "exists.",
    "It can read and write other terminals of the same user.",
)
# What a probe does inside: change what it may, fail to change what it may not, count the networks.
_PROBE = (
    'echo x > "$1/in" && ! echo x 2>/dev/null > "$2/out" && '
    '"$3" -I -c "import socket; print(len(socket.if_nameindex()))"'
)
ONLY_LOOPBACK = "1"
SHARED_MEMORY_BYTES = 1 << 30  # of files in /dev/shm, which are memory
# Kernel files owned by root: root can write them even without capabilities, and bubblewrap does not
# protect `/proc/sys` when the folder itself is read-only.
KERNEL_FILES = ("sys", "sysrq-trigger", "irq", "bus", "fs", "driver", "mtrr", "pressure")
KERNEL_SECRETS = ("kcore", "keys", "key-users", "acpi", "scsi", "timer_list", "sched_debug")


class Kind(StrEnum):
    BUBBLEWRAP = "bubblewrap"
    LANDLOCK = "landlock"
    NONE = "none"


SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt"),
    *("/etc/alternatives", "/etc/gitconfig", "/etc/ld.so.cache", "/etc/localtime", "/etc/passwd"),
    *("/etc/group", "/etc/nsswitch.conf", "/etc/ssl", "/etc/ca-certificates", "/etc/pki"),
    *("/System", "/Library/Frameworks", "/nix/store"),
)
NETWORK = ("/etc/resolv.conf", "/etc/hosts", "/etc/services", "/etc/host.conf", "/etc/gai.conf")


TASKS_PER_PROCESS = 4  # the kernel counts threads as processes


class ResourceLimits(msgspec.Struct, frozen=True):
    """Resource limits of a program and its children; None: no limit."""

    processes: int | None = None
    file_bytes: int | None = None
    """Maximum size of one file."""


class Bounds(msgspec.Struct, frozen=True):
    """The rights of a sandboxed program. It sees the programs and libraries of the system and the
    paths named here; not the user's home, the store, sockets or other processes."""

    writable: tuple[str, ...] = ()
    """Folders and files that it may change."""
    readable: tuple[str, ...] = ()
    """Read-only paths, also inside hidden or writable folders (Landlock cannot revoke the right to
    write inside a writable folder)."""
    hidden: tuple[str, ...] = ()
    """Folders and files inside readable and writable ones that appear empty, or cannot be
    opened."""
    worktree: str | None = None
    """The folder in which the program works; writable."""
    git: PrivateGit | None = None
    """The private repository of that worktree. None: the program cannot use git there."""
    network: bool = True
    terminal: bool = False
    """It is used at a terminal, and keeps that."""
    own_processes: bool = True
    """It sees no process but its own (Landlock: it sees them, and cannot signal them)."""
    limits: ResourceLimits = ResourceLimits()


class Wrapped(msgspec.Struct, frozen=True):
    """A command as it is to be started."""

    words: list[str]
    environment: dict[str, str]
    """To be added to its environment."""
    kind: Kind
    lacks: list[str]
    """What the bounds ask for and this kind does not keep, in sentences for a person."""


class Probe(msgspec.Struct, frozen=True):
    kind: Kind
    """The best that works here."""
    why_not: dict[Kind, str]
    """Why the better ones do not."""


def probe(*, network: bool = True) -> Probe:
    """Try what this machine has, once for a process: each is really started. `network=False` asks
    for one that can keep a program off the network."""
    why_not: dict[Kind, str] = {}
    for kind in (Kind.BUBBLEWRAP, Kind.LANDLOCK):
        trouble, _ = _tried(kind, network)
        if trouble is None:
            return Probe(kind, why_not)
        why_not[kind] = trouble
    return Probe(Kind.NONE, why_not)


def keeps_off_network(kind: Kind) -> bool:
    """Whether a kind works here and keeps a program off all networks, not off TCP alone."""
    trouble, off = _tried(kind, False)
    return trouble is None and off


@cache
def _tried(kind: Kind, network: bool) -> tuple[str | None, bool]:
    """Why a kind does not work here, if it does not; and whether it keeps all networks away."""
    if not sys.platform.startswith("linux"):
        return f"{kind} is a part of Linux", False
    if kind is Kind.BUBBLEWRAP and shutil.which("bwrap") is None:
        return "there is no `bwrap` on the PATH; install bubblewrap", False
    with scratch_folder("sandbox") as folder:
        inside, outside, temporary = (os.path.join(folder, name) for name in ("in", "out", "tmp"))
        os.mkdir(inside)
        os.mkdir(outside)
        bounds = Bounds(writable=(inside,), readable=(outside,), network=network)
        words = ["/bin/sh", "-c", _PROBE, "probe", inside, outside, sys.executable]
        wrapped = _MAKERS[kind](words, bounds, temporary)
        try:
            done = subprocess.run(
                wrapped.words,
                env=os.environ | wrapped.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error), False
        if done.returncode or not os.path.exists(os.path.join(inside, "in")):
            said = done.stderr.strip().rpartition("\n")[2]
            return said or f"it did not keep a program in bounds ({done.returncode})", False
        return None, done.stdout.strip() == ONLY_LOOPBACK


def wrap(
    words: Sequence[str], bounds: Bounds, *, scratch: str, kind: Kind | None = None
) -> Wrapped:
    """A command inside of bounds, by the best kind that works here or by the one that is named.

    `scratch` is a folder of its own for what it writes to a temporary place; it is made, for its
    user alone. Refused for a kind that does not work here, and for a path that is not there.
    """
    for path in (*bounds.writable, *bounds.readable):
        if not os.path.exists(path):
            raise Refused(
                f"{path} is not there; a sandbox cannot have it.", path=path, reason="missing_path"
            )
    if kind is None:
        kind = probe(network=bounds.network).kind
    elif kind is not Kind.NONE:
        trouble, _ = _tried(kind, bounds.network)
        if trouble is not None:
            raise Refused(
                f"{kind} does not work here: {trouble}.",
                kind=str(kind),
                reason="sandbox_unavailable",
            )
    made = _MAKERS[kind](words, bounds, scratch)
    if kind is Kind.NONE or bounds.network or _tried(kind, False)[1]:
        return made
    said = "It is kept off TCP, not off other kinds of network."
    return msgspec.structs.replace(made, lacks=[*made.lacks, said])


class _Mount(NamedTuple):
    """A mount point in the sandbox, and the bubblewrap options that fill it."""

    place: str
    words: tuple[str, ...]
    is_empty: bool = False
    """An empty tmpfs, remounted read-only so that the program cannot fill memory through it."""


def _bubblewrap(words: Sequence[str], bounds: Bounds, scratch: str) -> Wrapped:
    os.makedirs(scratch, mode=0o700, exist_ok=True)
    # Without capabilities, root cannot mount hidden folders or create devices.
    made = ["bwrap", "--die-with-parent", "--unshare-ipc", "--unshare-uts", "--cap-drop", "ALL"]
    made += ["--dev", "/dev", "--size", str(SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm"]  # noqa: S108
    made += ["--remount-ro", "/dev"]
    if bounds.own_processes:
        made += ["--unshare-pid", "--proc", "/proc", *_closed_kernel_files()]
    if not bounds.network:
        made += ["--unshare-net"]
    if not bounds.terminal:
        made += ["--new-session"]
    made += ["--bind", os.path.realpath(scratch), "/tmp"]  # noqa: S108  that is the point of it
    readable = _readable(bounds)
    mounts = [
        *(
            _Mount(path, ("--tmpfs",), True)
            if os.path.isdir(path)
            else _Mount(path, ("--ro-bind", "/dev/null"))
            for path in map(os.path.realpath, bounds.hidden)
            if os.path.exists(path)
        ),
        *(_Mount(path, ("--bind", path)) for path in map(os.path.realpath, _writable(bounds))),
        *_git_mounts(bounds),
        *(_Mount(path, ("--ro-bind", path)) for path in map(os.path.realpath, readable)),
    ]
    # Outer mounts first, so that they do not cover inner ones.
    for mount in sorted(mounts, key=lambda mount: mount.place.count("/")):
        made += [*mount.words, mount.place]
    for mount in mounts:
        made += ["--remount-ro", mount.place] if mount.is_empty else []
    made += [*_other_names((*_writable(bounds), *readable)), "--remount-ro", "/"]
    launcher = _launcher(bounds, files=False)
    return Wrapped([*made, "--", *launcher, *words], {"TMPDIR": "/tmp"}, Kind.BUBBLEWRAP, [])  # noqa: S108


def _closed_kernel_files() -> Iterator[str]:
    for path in (f"/proc/{name}" for name in KERNEL_FILES):
        if os.path.exists(path):
            yield from ("--ro-bind", path, path)
    for path in (f"/proc/{name}" for name in KERNEL_SECRETS):
        if os.path.isdir(path):
            yield from ("--tmpfs", path, "--remount-ro", path)
        elif os.path.exists(path):
            yield from ("--ro-bind", "/dev/null", path)


def _git_mounts(bounds: Bounds) -> Iterator[_Mount]:
    """Mount the private repository over the user's."""
    if bounds.git is None:
        return
    private = bounds.git
    yield _Mount(private.checkout.common, ("--bind", private.repository))
    for number, folder in enumerate(private.objects):
        yield _Mount(f"{SHARED}/{number}", ("--ro-bind", folder))
    for folder in private.modules:
        yield _Mount(folder, ("--ro-bind", folder))


def _writable(bounds: Bounds) -> tuple[str, ...]:
    return (*bounds.writable, *((bounds.worktree,) if bounds.worktree is not None else ()))


def _readable(bounds: Bounds) -> list[str]:
    """List the readable paths: those of `bounds`, the system, and Python for the launcher."""
    python = (sys.prefix, sys.base_prefix, str(Path(landlock.__file__).parents[2]))
    named = (*SYSTEM, *(NETWORK if bounds.network else ()), *python, *bounds.readable)
    return [path for path in dict.fromkeys(named) if os.path.exists(path)]


def _launcher(bounds: Bounds, *, files: bool, **order: object) -> list[str]:
    given = {
        "files": files,
        "write": [],
        "hidden": [],
        "readable": [],
        "network": bounds.network,
        "signals": not bounds.own_processes,
        "processes": bounds.limits.processes,
        "file_bytes": bounds.limits.file_bytes,
    }
    # Started by its file path, so that the environment cannot replace it.
    return [sys.executable, "-I", "-S", landlock.__file__, json.dumps(given | order)]


def _other_names(named: Iterable[str]) -> Iterator[str]:
    """Links, where what is named is really somewhere else (`/bin`, say)."""
    there = {os.path.realpath(path) for path in named}
    for path in sorted({*named} - there):
        if not any(path.startswith(f"{top}/") for top in there):
            there.add(path)  # paths below are visible through the link
            yield from ("--symlink", os.path.realpath(path), path)


def _landlock(words: Sequence[str], bounds: Bounds, scratch: str) -> Wrapped:
    os.makedirs(scratch, mode=0o700, exist_ok=True)
    writable = [*_writable(bounds), scratch]
    readable = _readable(bounds)
    if bounds.git is not None:
        writable.append(bounds.git.repository)
        readable += [*bounds.git.objects, *bounds.git.modules]
    for path in bounds.hidden:
        for folder in writable:
            if _is_in(path, folder):
                raise Refused(
                    f"Landlock cannot hide {path}, because {folder} around it is writable. Install "
                    "bubblewrap, or work in another folder.",
                    path=path,
                )
    lacks = [*LANDLOCK_LACKS]
    if bounds.own_processes:
        lacks.append("It can see other processes.")
    shown = [each for path in readable for each in landlock.unhidden(path, bounds.hidden)]
    order = {"write": writable, "hidden": ["/"], "readable": shown}
    launcher = _launcher(bounds, files=True, **order)
    return Wrapped([*launcher, *words], {"TMPDIR": scratch}, Kind.LANDLOCK, lacks)


def _is_in(path: str, folder: str) -> bool:
    real, top = os.path.realpath(path), os.path.realpath(folder)
    return os.path.commonpath((real, top)) == top


def _nothing(words: Sequence[str], bounds: Bounds, scratch: str) -> Wrapped:
    os.makedirs(scratch, mode=0o700, exist_ok=True)
    said = ["Nothing keeps it in bounds: it may change whatever its user may."]
    return Wrapped([*words], {"TMPDIR": scratch}, Kind.NONE, said)


_MAKERS = {Kind.BUBBLEWRAP: _bubblewrap, Kind.LANDLOCK: _landlock, Kind.NONE: _nothing}
