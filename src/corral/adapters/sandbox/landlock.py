"""Launcher that confines itself with Landlock and then executes another program.

    python -I -S landlock.py '{"write": [...], ...}' PROGRAM ARGUMENT…

It needs no package and no privileges. To block the network it enters its own network namespace if
the kernel allows that; otherwise Landlock blocks TCP, where the kernel supports it.

The same program runs inside bubblewrap (`"files": false`), which cannot itself set resource limits
or restrict abstract Unix sockets.

Landlock does not restrict: connecting to a Unix socket in a folder, changing the mode, owner, times
or extended attributes of files of the same user, testing whether a path exists, UDP and raw
sockets, shared memory and System V IPC, and listing processes.
"""

import ctypes
import fcntl
import json
import os
import resource
import socket
import stat
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress

SETUP_FAILED = 125  # as `env` and `timeout` do: the program was not started
CREATE, ADD_RULE, RESTRICT = 444, 445, 446  # the same on every architecture
VERSION = 1
NO_NEW_PRIVILEGES = 38
NEW_USERS, NEW_NETWORK = 0x1000_0000, 0x4000_0000

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
REFER, TRUNCATE = 1 << 13, 1 << 14
FIRST_RIGHTS = (1 << 13) - 1
READ = EXECUTE | READ_FILE | READ_DIR
TCP = 3
ABSTRACT_SOCKETS, SIGNALS = 1, 2
DEVICE_IOCTL = 1 << 15
MAKE_DEVICE = 1 << 6 | 1 << 11  # character and block devices: never granted, not even to root
DROP_BOUNDING, AMBIENT, CLEAR_ALL = 24, 47, 4
CAPABILITY_VERSION = 0x2008_0522
CAPSET = {"x86_64": 126, "aarch64": 91, "riscv64": 91}
SECCOMP, FILTER = 22, 2
ALLOW, DENY = 0x7FFF_0000, 0x0005_0001  # the second: EPERM
# Keys of the user in the kernel (keyctl, add_key, request_key), bpf, perf_event_open, kexec_load,
# open_by_handle_at, userfaultfd, io_uring (425 to 427): no agent needs them, and each has led out
# of a sandbox before. Programs fall back to other calls where io_uring is refused.
FORBIDDEN_CALLS = {
    "x86_64": (0xC000_003E, (250, 248, 249, 321, 298, 246, 304, 323, 425, 426, 427)),
    "aarch64": (0xC000_00B7, (219, 217, 218, 280, 241, 104, 265, 282, 425, 426, 427)),
}
DEVICES = tuple(
    f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts")
)


def landlock_version() -> int:
    """Return the Landlock ABI version of the kernel; 0: not available."""
    if not sys.platform.startswith("linux"):
        return 0
    return max(_call_system(CREATE, None, 0, VERSION), 0)


def _call_system(*arguments: object) -> int:
    library = ctypes.CDLL(None, use_errno=True)
    return int(library.syscall(*(ctypes.c_long(w) if isinstance(w, int) else w for w in arguments)))


def _require_success(operation: str, result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{operation}: {os.strerror(ctypes.get_errno())}")
    return result


def restrict_access(
    write: Iterable[str],
    *,
    hidden: Iterable[str] = (),
    readable: Iterable[str] = (),
    tcp: bool = True,
    signals: bool = True,
    files: bool = True,
) -> None:
    """Restrict this process and its children to the given files.

    They can read everything that is not `hidden` and change only `write`. Without `tcp` and
    `signals`, they also cannot connect, or signal processes outside. Abstract Unix sockets of
    outside processes are always closed, where the kernel can (6.12). With `files=False`, access to
    files is not restricted.
    """
    version = landlock_version()
    if version < 1:
        raise OSError("this kernel has no Landlock")
    rights = FIRST_RIGHTS | (REFER if version >= 2 else 0) | (TRUNCATE if version >= 3 else 0)
    rights |= DEVICE_IOCTL if version >= 5 else 0
    rights = rights if files else 0
    network = TCP if version >= 4 and not tcp else 0
    scope = ABSTRACT_SOCKETS | (0 if signals else SIGNALS) if version >= 6 else 0
    if not rights | network | scope:
        return
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = _require_success(
        "landlock", _call_system(CREATE, struct.pack("QQQ", rights, network, scope), size, 0)
    )
    try:
        if files:
            for path in (*list_visible("/", hidden), *readable):
                _allow(rules, path, READ)
            for path in DEVICES:
                _allow(rules, path, rights & ~MAKE_DEVICE)
            for path in write:
                _allow(rules, path, rights & ~MAKE_DEVICE & ~DEVICE_IOCTL)
        library = ctypes.CDLL(None, use_errno=True)
        _require_success("no new privileges", library.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0))
        _require_success("landlock", _call_system(RESTRICT, rules, 0))
    finally:
        os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # a missing path needs no rule
    try:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            rights &= EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | DEVICE_IOCTL
        rule = struct.pack("=Qi", rights, handle)
        _require_success(path, _call_system(ADD_RULE, rules, 1, rule, 0))
    finally:
        os.close(handle)


def list_visible(top: str, hidden: Iterable[str]) -> Iterator[str]:
    """Yield the paths that together cover `top` without the hidden paths in it.

    Landlock rights only add up, so each folder above a hidden one is listed entry by entry.
    Symlinks are skipped: access depends on their target's own path.
    """
    closed = {os.path.realpath(path) for path in hidden}
    above = {
        "/".join(path.split("/")[:count]) or "/"
        for path in closed
        for count in range(1, path.count("/") + 1)
    }
    waiting = [os.path.realpath(top)]
    while waiting:
        folder = waiting.pop()
        if folder in closed:
            continue
        if folder not in above:
            yield folder
            continue
        with suppress(OSError):
            paths = (os.path.join(folder, name) for name in os.listdir(folder))
            waiting += [path for path in paths if not os.path.islink(path)]


def drop_capabilities() -> None:
    """Drop every capability permanently, also as root.

    With an empty bounding set, a program that root executes gains none.
    """
    library = ctypes.CDLL(None, use_errno=True)
    library.prctl(AMBIENT, CLEAR_ALL, 0, 0, 0)
    number = 0
    while library.prctl(DROP_BOUNDING, number, 0, 0, 0) == 0:
        number += 1
    call = CAPSET.get(os.uname().machine)
    if call is None:
        return  # execve drops the rest, because the bounding set is empty
    header = struct.pack("=Ii", CAPABILITY_VERSION, 0)
    _require_success("capabilities", _call_system(call, header, bytes(24)))


def install_seccomp_filter() -> None:
    """Install a seccomp filter that denies FORBIDDEN_CALLS.

    Does nothing on architectures whose system call numbers are not listed there.
    """
    known = FORBIDDEN_CALLS.get(os.uname().machine)
    if known is None:
        return
    architecture, numbers = known
    count = len(numbers)
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06  # BPF opcodes
    program = [
        (load, 0, 0, 4),  # the architecture
        (equal, 0, count + 3, architecture),  # another one has other numbers: denied
        (load, 0, 0, 0),  # the number of the call
        (at_least, count + 1, 0, 0x4000_0000),  # x32 has other numbers too: denied
        *((equal, count - place, 0, number) for place, number in enumerate(numbers)),
        (give, 0, 0, ALLOW),
        (give, 0, 0, DENY),
    ]
    data = ctypes.create_string_buffer(
        b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    )
    filters = struct.pack("@HP", len(program), ctypes.addressof(data))
    library = ctypes.CDLL(None, use_errno=True)
    _require_success("no new privileges", library.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    _require_success("seccomp", library.prctl(SECCOMP, FILTER, filters, 0, 0))


def set_resource_limits(processes: int | None, file_bytes: int | None) -> None:
    """Limit the number of processes and the size of a file; disable core dumps.

    The kernel does not limit the processes of the real root user: Corral counts those itself.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for kind, maximum in ((resource.RLIMIT_NPROC, processes), (resource.RLIMIT_FSIZE, file_bytes)):
        if maximum is not None:
            _, hard = resource.getrlimit(kind)
            maximum = maximum if hard == resource.RLIM_INFINITY else min(maximum, hard)
            resource.setrlimit(kind, (maximum, maximum))


def count_user_processes() -> int:
    """Count the processes and threads of this user; the kernel limits them together."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == os.getuid():
                    count += len(os.listdir(f"/proc/{name}/task"))
    return count


def enter_network_namespace() -> bool:
    """Enter a new network namespace with only loopback; return whether that worked."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(NEW_NETWORK):
        user, group = os.getuid(), os.getgid()
        if library.unshare(NEW_USERS | NEW_NETWORK):
            return False
        with suppress(OSError):
            _write_text("/proc/self/setgroups", "deny")
        _write_text("/proc/self/uid_map", f"{user} {user} 1")
        _write_text("/proc/self/gid_map", f"{group} {group} 1")
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        # Loopback exists but is down; programs use it to talk to their own servers.
        fcntl.ioctl(handle, 0x8914, struct.pack("16sH14x", b"lo", 0x41))
    return True


def _write_text(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def main(arguments: list[str]) -> int:
    options, *command = arguments
    bounds = json.loads(options)
    files = bounds["files"]
    processes = bounds["processes"]
    try:
        blocks_tcp = files and not bounds["network"] and not enter_network_namespace()
        if blocks_tcp and landlock_version() < 4:
            raise OSError("this kernel cannot block the network")
        if files and processes is not None:  # RLIMIT_NPROC counts all of the user's processes
            processes += count_user_processes()
        set_resource_limits(processes, bounds["file_bytes"])
        if files or landlock_version() >= 6:
            restrict_access(
                bounds["write"],
                hidden=bounds["hidden"],
                readable=bounds["readable"],
                tcp=not blocks_tcp,
                signals=bounds["signals"],
                files=files,
            )
        drop_capabilities()
        install_seccomp_filter()
    except OSError as error:
        sys.stderr.write(f"corral: cannot set up the sandbox: {error}\n")
        return SETUP_FAILED
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
