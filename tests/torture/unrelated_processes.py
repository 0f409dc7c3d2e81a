"""Processes that belong to no run and record every signal that they get.

Some of them reuse the pid of a process that was just killed, where the system permits that.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from corral.adapters.processes import process
from corral.adapters.processes.process import Liveness, ProcessIdentity

MAX_REUSED = 24

BYSTANDER = r"""
import os, signal, sys, time
def record_signal(number, _):
    with open(f"{sys.argv[1]}/signal.{os.getpid()}", "a") as file:
        file.write(f"{number}\n")
for number in signal.Signals:
    if number not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD):
        signal.signal(number, record_signal)
open(f"{sys.argv[1]}/ready.{os.getpid()}", "w").close()
while True:
    time.sleep(3600)
"""


def _command(program: str, folder: str) -> list[str]:
    return [sys.executable, "-S", "-E", program, folder]


class UnrelatedProcesses:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self._program = folder / "bystander.py"
        self._program.write_text(BYSTANDER)
        self._all: list[ProcessIdentity] = []
        self.reused = 0
        # In its own single-threaded process, because it forks by a raw system call.
        self._cloner = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.torture.unrelated_processes",
                str(self._program),
                str(folder),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={k: v for k, v in os.environ.items() if not k.startswith("CORRAL_")},
        )

    def __len__(self) -> int:
        return len(self._all)

    def add(self, env: dict[str, str] | None = None, *, pid: int | None = None) -> bool:
        command = _command(str(self._program), str(self._folder))
        if pid is None:
            new_pid = os.posix_spawn(command[0], command, {"PATH": os.defpath, **(env or {})})
        else:
            new_pid = self._clone_with_pid(pid)
        if new_pid <= 0:
            return False
        ready = self._folder / f"ready.{new_pid}"
        deadline = time.monotonic() + 20
        while not ready.exists() and time.monotonic() < deadline:
            time.sleep(0.002)
        identity = process.identify(new_pid)
        assert identity is not None, "the process exited before it was ready"
        self._all.append(identity)
        return True

    def _clone_with_pid(self, pid: int) -> int:
        assert self._cloner.stdin is not None
        assert self._cloner.stdout is not None
        self._cloner.stdin.write(f"{pid}\n")
        return int(self._cloner.stdout.readline())

    def take_pid_of(self, identity: ProcessIdentity) -> None:
        """Start a process with the pid that was just freed."""
        if self.reused >= MAX_REUSED:
            return
        for _ in range(50):
            if process.read_stat(identity.pid) is None:
                self.reused += self.add(pid=identity.pid)
                return
            time.sleep(0.004)

    def judge(self) -> list[str]:
        """Return a message for each process that was signalled or exited."""
        wrong = []
        for identity in self._all:
            signalled = self._folder / f"signal.{identity.pid}"
            if signalled.exists():
                wrong.append(f"bystander {identity.pid} got {signalled.read_text().split()}")
            elif process.check(identity) is not Liveness.ALIVE:
                wrong.append(f"bystander {identity.pid} is gone")
        return wrong

    def end(self) -> None:
        self._cloner.kill()
        for identity in self._all:
            process.send_signal(identity, signal.SIGKILL)


class _CloneArgs(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in [
            "flags",
            "pidfd",
            "child_tid",
            "parent_tid",
            "exit_signal",
            "stack",
            "stack_size",
            "tls",
            "set_tid",
            "set_tid_size",
            "cgroup",
        ]
    ]


def _clone(pid: int, command: list[str], env: dict[str, str]) -> int:
    """Start a process with a chosen pid; -1 if that is not permitted or the pid is taken."""
    libc = ctypes.CDLL(None)
    wanted = (ctypes.c_int * 1)(pid)
    args = _CloneArgs(
        exit_signal=int(signal.SIGCHLD), set_tid=ctypes.addressof(wanted), set_tid_size=1
    )
    new_pid = int(libc.syscall(435, ctypes.byref(args), ctypes.sizeof(args)))
    if new_pid == 0:
        try:
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 0)
            os.dup2(null, 1)
            os.execve(command[0], command, env)
        finally:
            os._exit(127)
    return new_pid


def main() -> None:
    """Start a process for each requested pid."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        print(_clone(int(line), _command(*sys.argv[1:3]), {"PATH": os.defpath}), flush=True)


if __name__ == "__main__":
    main()
