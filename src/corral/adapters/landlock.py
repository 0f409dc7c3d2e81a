"""Bounds by Landlock: a small program that gives up its rights and becomes another one.

    python -I -S landlock.py '{"write": [...], ...}' PROGRAM WORD…

It needs no package and no right of its own. Where it may make a network of its own it does, so that
no network is none; else Landlock keeps it off TCP, where the kernel can.

The same program runs inside of bubblewrap (`"files": false`), which has no means of its own for
resource limits and for abstract Unix sockets.

Landlock does not restrict: connecting to a Unix socket in a folder, changing the mode, owner, times
or extended attributes of files of the same user, asking whether a path exists, UDP and raw sockets,
shared memory and System V IPC, and seeing which processes there are.
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

TROUBLE = 125  # as `env` and `timeout` say it: not begun
CREATE, ADD_RULE, RESTRICT = 444, 445, 446  # the same on every machine
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
MAKE_DEVICE = 1 << 6 | 1 << 11  # character and block devices: never, as root not either
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


def version() -> int:
    """How much the kernel knows of it; 0 without."""
    if not sys.platform.startswith("linux"):
        return 0
    return max(_system_call(CREATE, None, 0, VERSION), 0)


def _system_call(*words: object) -> int:
    library = ctypes.CDLL(None, use_errno=True)
    return int(library.syscall(*(ctypes.c_long(w) if isinstance(w, int) else w for w in words)))


def _must(what: str, answer: int) -> int:
    if answer < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return answer


def restrict(
    write: Iterable[str],
    *,
    hidden: Iterable[str] = (),
    readable: Iterable[str] = (),
    tcp: bool = True,
    signals: bool = True,
    files: bool = True,
) -> None:
    """Give up all rights to files for this process and its children, except to read what is not
    hidden and to change what is named. Without `tcp` and `signals`, also the right to connect and
    to signal processes outside. Abstract Unix sockets of processes outside are always closed, where
    the kernel can (6.12). With `files=False` the rights to files stay."""
    known = version()
    if known < 1:
        raise OSError("this kernel has no Landlock")
    rights = FIRST_RIGHTS | (REFER if known >= 2 else 0) | (TRUNCATE if known >= 3 else 0)
    rights |= DEVICE_IOCTL if known >= 5 else 0
    rights = rights if files else 0
    network = TCP if known >= 4 and not tcp else 0
    scope = ABSTRACT_SOCKETS | (0 if signals else SIGNALS) if known >= 6 else 0
    if not rights | network | scope:
        return
    size = 24 if known >= 6 else 16 if known >= 4 else 8
    rules = _must(
        "landlock", _system_call(CREATE, struct.pack("QQQ", rights, network, scope), size, 0)
    )
    try:
        if files:
            for path in (*unhidden("/", hidden), *readable):
                _allow(rules, path, READ)
            for path in DEVICES:
                _allow(rules, path, rights & ~MAKE_DEVICE)
            for path in write:
                _allow(rules, path, rights & ~MAKE_DEVICE & ~DEVICE_IOCTL)
        library = ctypes.CDLL(None, use_errno=True)
        _must("no new privileges", library.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0))
        _must("landlock", _system_call(RESTRICT, rules, 0))
    finally:
        os.close(rules)


def _allow(rules: int, path: str, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what is not there needs no right
    try:
        if not stat.S_ISDIR(os.fstat(handle).st_mode):
            rights &= EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | DEVICE_IOCTL
        rule = struct.pack("=Qi", rights, handle)
        _must(path, _system_call(ADD_RULE, rules, 1, rule, 0))
    finally:
        os.close(handle)


def unhidden(top: str, hidden: Iterable[str]) -> Iterator[str]:
    """A folder without what is hidden in it. Rights only add up, so each folder above a hidden one
    is listed entry by entry. Symlinks are skipped: their target has its own right or has none."""
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
    """Give up every capability for good, also as root: an empty bounding set leaves a program of
    root's without any."""
    library = ctypes.CDLL(None, use_errno=True)
    library.prctl(AMBIENT, CLEAR_ALL, 0, 0, 0)
    number = 0
    while library.prctl(DROP_BOUNDING, number, 0, 0, 0) == 0:
        number += 1
    call = CAPSET.get(os.uname().machine)
    if call is None:
        return  # the next execve does it, because the bounding set is empty
    header = struct.pack("=Ii", CAPABILITY_VERSION, 0)
    _must("capabilities", _system_call(call, header, bytes(24)))


def forbid_calls() -> None:
    """Have the kernel refuse system calls that reach past files, sockets and processes. On machines
    whose numbers are not known here nothing is refused."""
    known = FORBIDDEN_CALLS.get(os.uname().machine)
    if known is None:
        return
    architecture, numbers = known
    count = len(numbers)
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06  # of the kernel's packet filter
    program = [
        (load, 0, 0, 4),  # the architecture
        (equal, 0, count + 3, architecture),  # another one has other numbers: refused
        (load, 0, 0, 0),  # the number of the call
        (at_least, count + 1, 0, 0x4000_0000),  # x32 has other numbers too: refused
        *((equal, count - place, 0, number) for place, number in enumerate(numbers)),
        (give, 0, 0, ALLOW),
        (give, 0, 0, DENY),
    ]
    data = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *each) for each in program))
    filters = struct.pack("@HP", len(program), ctypes.addressof(data))
    library = ctypes.CDLL(None, use_errno=True)
    _must("no new privileges", library.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    _must("seccomp", library.prctl(SECCOMP, FILTER, filters, 0, 0))


def limit(processes: int | None, file_bytes: int | None) -> None:
    """Bound how many processes there may be, and how large a file; no core dumps. The kernel does
    not bound the processes of the machine's root: Corral counts those."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for kind, most in ((resource.RLIMIT_NPROC, processes), (resource.RLIMIT_FSIZE, file_bytes)):
        if most is not None:
            _, hard = resource.getrlimit(kind)
            most = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(kind, (most, most))


def processes_of_user() -> int:
    """How many processes and threads this user has now, which the kernel counts together."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == os.getuid():
                    count += len(os.listdir(f"/proc/{name}/task"))
    return count


def own_network() -> bool:
    """Have this process in a network of its own with nothing but loopback, where that can be."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(NEW_NETWORK):
        user, group = os.getuid(), os.getgid()
        if library.unshare(NEW_USERS | NEW_NETWORK):
            return False
        with suppress(OSError):
            _put("/proc/self/setgroups", "deny")
        _put("/proc/self/uid_map", f"{user} {user} 1")
        _put("/proc/self/gid_map", f"{group} {group} 1")
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        # Loopback is there and down; programs talk to their own servers over it.
        fcntl.ioctl(handle, 0x8914, struct.pack("16sH14x", b"lo", 0x41))
    return True


def _put(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def main(arguments: list[str]) -> int:
    order, *words = arguments
    bounds = json.loads(order)
    files = bounds["files"]
    processes = bounds["processes"]
    try:
        off = files and not bounds["network"] and not own_network()
        if off and version() < 4:
            raise OSError("this kernel cannot keep a program off the network")
        if files and processes is not None:  # in a user namespace only those inside are counted
            processes += processes_of_user()
        limit(processes, bounds["file_bytes"])
        if files or version() >= 6:
            restrict(
                bounds["write"],
                hidden=bounds["hidden"],
                readable=bounds["readable"],
                tcp=not off,
                signals=bounds["signals"],
                files=files,
            )
        drop_capabilities()
        forbid_calls()
    except OSError as error:
        sys.stderr.write(f"corral: the sandbox could not be made: {error}\n")
        return TROUBLE
    try:
        os.execvp(words[0], words)
    except OSError as error:
        sys.stderr.write(f"{words[0]}: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
