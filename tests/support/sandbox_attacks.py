"""A program that tries to escape its sandbox: `python sandbox_attacks.py FACTS.json REPORT.json`.

Standard library only. The report names each attack that succeeds; an attack that raises has
failed.
"""

import ctypes
import json
import os
import shutil
import socket
import sys
from collections.abc import Callable
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
MS_REMOUNT, MS_BIND = 32, 4096
NEW_MOUNTS, NEW_USERS = 0x0002_0000, 0x1000_0000
PTRACE_ATTACH = 16


def reads_a_secret(facts: dict[str, Any]) -> bool:
    """Read any file of the user that holds the secret."""
    for path in facts["secret_files"]:
        try:
            with open(path, "rb") as file:
                if facts["secret"].encode() in file.read():
                    return True
        except OSError:
            continue
    return False


def reads_it_in_an_environment(facts: dict[str, Any]) -> bool:
    secret = facts["secret"].encode()
    if any(facts["secret"] in value for value in os.environ.values()):
        return True
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if secret in file.read():
                    return True
        except OSError:
            continue
    return False


def reaches_it_through_proc(facts: dict[str, Any]) -> bool:
    for name in os.listdir("/proc"):
        for root in ("root", "cwd"):
            for path in facts["secret_files"]:
                try:
                    with open(f"/proc/{name}/{root}{path}", "rb") as file:
                        if facts["secret"].encode() in file.read():
                            return True
                except OSError:
                    continue
    return False


def writes_outside(facts: dict[str, Any]) -> bool:
    has_written = False
    for path in facts["untouchable"]:
        try:
            with open(path, "a") as file:
                file.write("evil")
            has_written = True
        except OSError:
            continue
    return has_written and facts["sees_host_files"]


def _is_writable_after(flags: int) -> bool:
    for folder in (b"/", b"/usr", b"/etc"):
        LIBC.mount(None, folder, None, flags, None)
    try:
        with open("/usr/.corral-attack", "w"):
            return True
    except OSError:
        return False


def remounts(facts: dict[str, Any]) -> bool:
    return _is_writable_after(MS_REMOUNT) or _is_writable_after(MS_REMOUNT | MS_BIND)


def remounts_in_a_namespace(facts: dict[str, Any]) -> bool:
    if os.fork() == 0:
        won = 0
        if LIBC.unshare(NEW_USERS | NEW_MOUNTS) == 0 or LIBC.unshare(NEW_MOUNTS) == 0:
            won = int(_is_writable_after(MS_REMOUNT) or _is_writable_after(MS_REMOUNT | MS_BIND))
        os._exit(won)
    return os.waitstatus_to_exitcode(os.wait()[1]) != 0


def makes_a_device(facts: dict[str, Any]) -> bool:
    os.mknod("device", 0o060600, os.makedev(1, 0))
    return True


def has_a_capability(facts: dict[str, Any]) -> bool:
    header, data = (ctypes.c_uint32 * 2)(0x2008_0522, 0), (ctypes.c_uint32 * 6)()
    assert LIBC.capget(header, data) == 0
    return any(data)


def gains_a_capability(facts: dict[str, Any]) -> bool:
    """Root regains capabilities by executing a program, unless that is forbidden."""
    bounded = not any(LIBC.prctl(23, number, 0, 0, 0) == 1 for number in range(41))
    is_forbidden = LIBC.prctl(39, 0, 0, 0, 0) == 1
    return not (bounded or is_forbidden)


def opens_a_kernel_file_to_write(facts: dict[str, Any]) -> bool:
    for folder, _, names in os.walk("/proc"):
        if folder == "/proc":
            continue
        if folder.split("/")[2].isdigit() or folder.split("/")[2] in ("self", "thread-self"):
            continue
        for name in names:
            try:
                os.close(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_NONBLOCK))
            except OSError:
                continue
            return True
    return False


def uses_the_keys_of_the_user(facts: dict[str, Any]) -> bool:
    """keyctl(KEYCTL_GET_KEYRING_ID, KEY_SPEC_USER_KEYRING)"""
    number = {"x86_64": 250, "aarch64": 219}.get(os.uname().machine)
    return number is not None and LIBC.syscall(number, 0, -4, 0) != -1


def makes_a_ring(facts: dict[str, Any]) -> bool:
    """io_uring_setup; its number is the same on every architecture."""
    return bool(LIBC.syscall(425, 4, ctypes.create_string_buffer(120)) >= 0)


def kills_a_host_process(facts: dict[str, Any]) -> bool:
    os.kill(facts["victim"], 0)
    os.kill(facts["victim"], 9)
    return bool(facts["sees_host_pids"])


def traces_a_host_process(facts: dict[str, Any]) -> bool:
    return bool(LIBC.ptrace(PTRACE_ATTACH, facts["victim"], 0, 0) == 0 and facts["sees_host_pids"])


def connects_to_an_abstract_socket(facts: dict[str, Any]) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect("\0" + facts["abstract"])
    return True


def connects_to_a_socket_in_a_folder(facts: dict[str, Any]) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(facts["socket"])
    return True


def deletes_the_objects(facts: dict[str, Any]) -> bool:
    shutil.rmtree(os.path.join(facts["git"], "objects"), ignore_errors=True)
    shutil.rmtree("/run/corral/objects", ignore_errors=True)
    for path in facts["object_files"]:
        os.unlink(path)
    return False  # the caller checks


def hard_links_a_secret(facts: dict[str, Any]) -> bool:
    for path in facts["secret_files"]:
        try:
            os.link(path, "hard-link")
            return True
        except OSError:
            continue
    return False


ATTACKS: list[Callable[[dict[str, Any]], bool]] = [
    *(reads_a_secret, reads_it_in_an_environment, reaches_it_through_proc, writes_outside),
    *(remounts, remounts_in_a_namespace, makes_a_device, has_a_capability, kills_a_host_process),
    *(traces_a_host_process, connects_to_an_abstract_socket, connects_to_a_socket_in_a_folder),
    *(deletes_the_objects, hard_links_a_secret, gains_a_capability),
    *(opens_a_kernel_file_to_write, uses_the_keys_of_the_user, makes_a_ring),
]


def main() -> None:
    facts_file, report_file = sys.argv[1:]
    with open(facts_file) as file:
        facts = json.load(file)
    succeeded, attempted = [], []
    for attack in ATTACKS:
        attempted.append(attack.__name__)
        try:
            if attack(facts):
                succeeded.append(attack.__name__)
        except OSError:
            continue
    with open(report_file, "w") as file:
        json.dump({"won": succeeded, "tried": attempted, "user": os.getuid()}, file)


if __name__ == "__main__":
    main()
