"""Run a program in a sandbox: Bubblewrap if it works, otherwise Landlock, otherwise none.

Landlock is part of Linux and needs no package. The result always names the kind that is used, why a
better one does not work, and the protections that it lacks.
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

from corral import config
from corral.adapters.git.private_git import SHARED_OBJECTS, PrivateGit
from corral.adapters.sandbox import landlock
from corral.kernel.errors import Refused
from corral.scratch_folders import scratch_folder

PROBE_SECONDS = 20
LANDLOCK_GAPS = (
    "It can connect to Unix sockets in the file system.",
    "It can change the mode and times of files of the same user, and test whether a path exists.",
    "It can read and write other terminals of the same user.",
)
# The probe writes an allowed file, fails to write a forbidden one, and counts network interfaces.
_PROBE = (
    'echo x > "$1/in" && ! echo x 2>/dev/null > "$2/out" && '
    '"$3" -I -c "import socket; print(len(socket.if_nameindex()))"'
)
ONLY_LOOPBACK = "1"
SHARED_MEMORY_BYTES = 1 << 30  # limit of /dev/shm, which uses memory
# Kernel files owned by root: root can write them even without capabilities, and bubblewrap does not
# protect `/proc/sys` when the folder itself is read-only.
READ_ONLY_KERNEL_FILES = ("sys", "sysrq-trigger", "irq", "bus", "fs", "driver", "mtrr", "pressure")
HIDDEN_KERNEL_FILES = ("kcore", "keys", "key-users", "acpi", "scsi", "timer_list", "sched_debug")


class SandboxKind(StrEnum):
    BUBBLEWRAP = "bubblewrap"
    LANDLOCK = "landlock"
    NONE = "none"


SYSTEM_PATHS = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt"),
    *("/etc/alternatives", "/etc/gitconfig", "/etc/ld.so.cache", "/etc/localtime", "/etc/passwd"),
    *("/etc/group", "/etc/nsswitch.conf", "/etc/ssl", "/etc/ca-certificates", "/etc/pki"),
    *("/System", "/Library/Frameworks", "/nix/store"),
)
NETWORK_PATHS = (
    "/etc/resolv.conf",
    "/etc/hosts",
    "/etc/services",
    "/etc/host.conf",
    "/etc/gai.conf",
)


TASKS_PER_PROCESS = 4  # the kernel counts threads as processes


class ResourceLimits(msgspec.Struct, frozen=True):
    """Resource limits of a program and its children; None: no limit."""

    processes: int | None = None
    file_bytes: int | None = None
    """Maximum size of one file."""


class SandboxBounds(msgspec.Struct, frozen=True):
    """The rights of a sandboxed program.

    It sees the programs and libraries of the system and the paths named here; not the user's
    home, the store, sockets or other processes.
    """

    writable: tuple[str, ...] = ()
    """Writable folders and files."""
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
    """The program runs at a terminal and keeps it as its controlling terminal."""
    own_processes: bool = True
    """The program sees only its own processes (Landlock: it sees others but cannot signal them)."""
    limits: ResourceLimits = ResourceLimits()


class WrappedCommand(msgspec.Struct, frozen=True):
    """A command line that starts a program in a sandbox."""

    words: list[str]
    environment: dict[str, str]
    """Variables to add to the environment."""
    kind: SandboxKind
    missing_protections: list[str]
    """Requested protections that this kind does not provide, as sentences for the user."""


class ProbeResult(msgspec.Struct, frozen=True):
    """The available sandbox."""

    kind: SandboxKind
    """The best kind that works on this machine."""
    why_not: dict[SandboxKind, str]
    """Why the better kinds do not work."""


def probe_sandboxes(*, network: bool = True) -> ProbeResult:
    """Find the best sandbox that works on this machine, by starting each kind once per process.

    With `network=False`, the sandbox must be able to block the network.
    """
    why_not: dict[SandboxKind, str] = {}
    for kind in (SandboxKind.BUBBLEWRAP, SandboxKind.LANDLOCK):
        probe = _probe_kind(kind, network=network)
        if probe.problem is None:
            return ProbeResult(kind, why_not)
        why_not[kind] = probe.problem
    return ProbeResult(SandboxKind.NONE, why_not)


def can_block_network(kind: SandboxKind) -> bool:
    """Whether a kind works here and blocks all networks, not only TCP."""
    probe = _probe_kind(kind, network=False)
    return probe.problem is None and probe.blocks_all_networks


class _KindProbe(NamedTuple):
    """The result of starting one kind of sandbox."""

    problem: str | None
    """Why the kind does not work here; None when it does."""
    blocks_all_networks: bool = False


@cache
def _probe_kind(kind: SandboxKind, *, network: bool) -> _KindProbe:
    """Start a kind of sandbox once, and check what it confines."""
    if not sys.platform.startswith("linux"):
        return _KindProbe(f"{kind} needs Linux")
    if kind is SandboxKind.BUBBLEWRAP and shutil.which("bwrap") is None:
        return _KindProbe("`bwrap` is not on the PATH; install bubblewrap")
    with scratch_folder("sandbox") as folder:
        inside, outside, temporary = (os.path.join(folder, name) for name in ("in", "out", "tmp"))
        os.mkdir(inside)
        os.mkdir(outside)
        bounds = SandboxBounds(writable=(inside,), readable=(outside,), network=network)
        command = ["/bin/sh", "-c", _PROBE, "probe", inside, outside, sys.executable]
        wrapped = _WRAPPERS[kind](command, bounds, temporary)
        try:
            result = subprocess.run(
                wrapped.words,
                env=os.environ | wrapped.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=PROBE_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return _KindProbe(str(error))
        if result.returncode or not os.path.exists(os.path.join(inside, "in")):
            last_line = result.stderr.strip().rpartition("\n")[2]
            code = result.returncode
            return _KindProbe(last_line or f"the probe was not confined (exit code {code})")
        return _KindProbe(None, result.stdout.strip() == ONLY_LOOPBACK)


def wrap_command(
    command: Sequence[str], bounds: SandboxBounds, *, scratch: str, kind: SandboxKind | None = None
) -> WrappedCommand:
    """Wrap a command so that it runs within `bounds`, by `kind` or the best kind available.

    `scratch` becomes its private temporary folder; it is created with mode 0700. Raises Refused
    when the kind does not work here, and when a path does not exist.
    """
    for path in (*bounds.writable, *bounds.readable):
        if not os.path.exists(path):
            raise Refused(
                f"{path} does not exist, so the sandbox cannot use it.",
                path=path,
                reason="missing_path",
            )
    if kind is None:
        kind = probe_sandboxes(network=bounds.network).kind
    elif kind is not SandboxKind.NONE:
        problem = _probe_kind(kind, network=bounds.network).problem
        if problem is not None:
            raise Refused(
                f"{kind} does not work here: {problem}.",
                kind=str(kind),
                reason="sandbox_unavailable",
            )
    wrapped = _WRAPPERS[kind](command, bounds, scratch)
    if kind is SandboxKind.NONE or bounds.network:
        return wrapped
    if _probe_kind(kind, network=False).blocks_all_networks:
        return wrapped
    gap = "TCP is blocked, but other network protocols are not."
    return msgspec.structs.replace(wrapped, missing_protections=[*wrapped.missing_protections, gap])


class _Mount(NamedTuple):
    """A mount point in the sandbox, and the bubblewrap options that fill it."""

    place: str
    words: tuple[str, ...]
    is_empty: bool = False
    """An empty tmpfs, remounted read-only so that the program cannot fill memory through it."""


def _wrap_in_bubblewrap(
    command: Sequence[str], bounds: SandboxBounds, scratch: str
) -> WrappedCommand:
    os.makedirs(scratch, mode=0o700, exist_ok=True)
    # Without capabilities, root cannot mount hidden folders or create devices.
    arguments = [
        "bwrap",
        "--die-with-parent",
        "--unshare-ipc",
        "--unshare-uts",
        "--cap-drop",
        "ALL",
    ]
    arguments += ["--dev", "/dev", "--size", str(SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm"]  # noqa: S108
    arguments += ["--remount-ro", "/dev"]
    if bounds.own_processes:
        arguments += ["--unshare-pid", "--proc", "/proc", *_iter_closed_kernel_files()]
    if not bounds.network:
        arguments += ["--unshare-net"]
    if not bounds.terminal:
        arguments += ["--new-session"]
    arguments += ["--bind", os.path.realpath(scratch), "/tmp"]  # noqa: S108  its private /tmp
    readable = _list_readable(bounds)
    mounts = [
        *(
            _Mount(path, ("--tmpfs",), True)
            if os.path.isdir(path)
            else _Mount(path, ("--ro-bind", "/dev/null"))
            for path in map(os.path.realpath, bounds.hidden)
            if os.path.exists(path)
        ),
        *(_Mount(path, ("--bind", path)) for path in map(os.path.realpath, _list_writable(bounds))),
        *_iter_git_mounts(bounds),
        *(_Mount(path, ("--ro-bind", path)) for path in map(os.path.realpath, readable)),
    ]
    # Outer mounts first, so that they do not cover inner ones.
    for mount in sorted(mounts, key=lambda mount: mount.place.count("/")):
        arguments += [*mount.words, mount.place]
    for mount in mounts:
        arguments += ["--remount-ro", mount.place] if mount.is_empty else []
    arguments += [*_iter_symlinks((*_list_writable(bounds), *readable)), "--remount-ro", "/"]
    launcher = _build_launcher(bounds, files=False)
    return WrappedCommand(
        [*arguments, "--", *launcher, *command],
        {"TMPDIR": "/tmp"},  # noqa: S108
        SandboxKind.BUBBLEWRAP,
        [],
    )


def _iter_closed_kernel_files() -> Iterator[str]:
    for path in (f"/proc/{name}" for name in READ_ONLY_KERNEL_FILES):
        if os.path.exists(path):
            yield from ("--ro-bind", path, path)
    for path in (f"/proc/{name}" for name in HIDDEN_KERNEL_FILES):
        if os.path.isdir(path):
            yield from ("--tmpfs", path, "--remount-ro", path)
        elif os.path.exists(path):
            yield from ("--ro-bind", "/dev/null", path)


def _iter_git_mounts(bounds: SandboxBounds) -> Iterator[_Mount]:
    """Mount the private repository over the user's."""
    if bounds.git is None:
        return
    private = bounds.git
    yield _Mount(private.checkout.common, ("--bind", private.repository))
    for number, folder in enumerate(private.objects):
        yield _Mount(f"{SHARED_OBJECTS}/{number}", ("--ro-bind", folder))
    for folder in private.modules:
        yield _Mount(folder, ("--ro-bind", folder))


def _list_writable(bounds: SandboxBounds) -> tuple[str, ...]:
    return (*bounds.writable, *((bounds.worktree,) if bounds.worktree is not None else ()))


def _list_readable(bounds: SandboxBounds) -> list[str]:
    """List the readable paths: those of `bounds`, the system, and Python for the launcher."""
    python = (sys.prefix, sys.base_prefix, str(Path(config.__file__).parents[1]))
    named = (*SYSTEM_PATHS, *(NETWORK_PATHS if bounds.network else ()), *python, *bounds.readable)
    return [path for path in dict.fromkeys(named) if os.path.exists(path)]


def _build_launcher(bounds: SandboxBounds, *, files: bool, **options: object) -> list[str]:
    defaults = {
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
    return [sys.executable, "-I", "-S", landlock.__file__, json.dumps(defaults | options)]


def _iter_symlinks(named: Iterable[str]) -> Iterator[str]:
    """Yield symlinks for paths that are symlinks on the host, such as `/bin`."""
    real_paths = {os.path.realpath(path) for path in named}
    for path in sorted({*named} - real_paths):
        if not any(path.startswith(f"{top}/") for top in real_paths):
            real_paths.add(path)  # paths below are visible through the link
            yield from ("--symlink", os.path.realpath(path), path)


def _wrap_in_landlock(
    command: Sequence[str], bounds: SandboxBounds, scratch: str
) -> WrappedCommand:
    os.makedirs(scratch, mode=0o700, exist_ok=True)
    writable = [*_list_writable(bounds), scratch]
    readable = _list_readable(bounds)
    if bounds.git is not None:
        writable.append(bounds.git.repository)
        readable += [*bounds.git.objects, *bounds.git.modules]
    for path in bounds.hidden:
        for folder in writable:
            if is_inside(path, folder):
                raise Refused(
                    f"Landlock cannot hide {path}, because {folder} around it is writable. Install "
                    "bubblewrap, or work in another directory.",
                    path=path,
                )
    missing = [*LANDLOCK_GAPS]
    if bounds.own_processes:
        missing.append("It can see other processes.")
    visible_paths = [
        visible for path in readable for visible in landlock.list_visible(path, bounds.hidden)
    ]
    order = {"write": writable, "hidden": ["/"], "readable": visible_paths}
    launcher = _build_launcher(bounds, files=True, **order)
    return WrappedCommand([*launcher, *command], {"TMPDIR": scratch}, SandboxKind.LANDLOCK, missing)


def is_inside(path: str, folder: str) -> bool:
    """Whether a path is a folder or inside of it, after symlinks are resolved."""
    real, top = os.path.realpath(path), os.path.realpath(folder)
    return os.path.commonpath((real, top)) == top


def _leave_unconfined(
    command: Sequence[str], bounds: SandboxBounds, scratch: str
) -> WrappedCommand:
    os.makedirs(scratch, mode=0o700, exist_ok=True)
    gaps = ["Not sandboxed: it can change everything that its user can."]
    return WrappedCommand([*command], {"TMPDIR": scratch}, SandboxKind.NONE, gaps)


_WRAPPERS = {
    SandboxKind.BUBBLEWRAP: _wrap_in_bubblewrap,
    SandboxKind.LANDLOCK: _wrap_in_landlock,
    SandboxKind.NONE: _leave_unconfined,
}
