"""Processes that recover runs continuously while they are killed too.

A killed process is replaced at once by a fork of a process that has loaded all modules and opened
no store, so that the next one starts while the work of the last is unfinished.
"""

import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import corral
from corral.adapters.processes import process
from corral.adapters.processes.process import ProcessIdentity
from corral.kernel.errors import CorralError

PROCESSES = 3
MAX_PAUSE = 0.2  # seconds


def reap_forever() -> None:
    """Reap killed processes, because zombies would keep their pids."""

    def reap() -> None:
        while True:
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                time.sleep(0.01)

    threading.Thread(target=reap, daemon=True).start()


class RecoveryProcesses:
    """A number of recovery processes, replaced until the end."""

    def __init__(self, url: str, seed: int, folder: Path) -> None:
        self.died: list[int] = []
        """Pids of processes that ended without a kill by the test."""
        self.error_file = folder / "recoverers"
        self._errors = self.error_file.open("w")
        marks = folder / "recovering"
        marks.write_bytes(bytes(PROCESSES))
        with marks.open("r+b") as file:
            self._marks = mmap.mmap(file.fileno(), PROCESSES)
        command = [
            sys.executable,
            "-m",
            "tests.torture.recovery_processes",
            url,
            str(seed),
            str(marks),
        ]
        self._fork_server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
        )
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._running = [self._start(number) for number in range(PROCESSES)]
        self._thread = threading.Thread(target=self._replace_dead, daemon=True)
        self._thread.start()

    def _start(self, number: int) -> ProcessIdentity:
        assert self._fork_server.stdin is not None
        assert self._fork_server.stdout is not None
        while True:
            self._marks[number] = 0
            self._fork_server.stdin.write(b"%d\n" % number)
            self._fork_server.stdin.flush()
            identity = process.identify(int(self._fork_server.stdout.readline()))
            if identity is not None:
                return identity

    def busy(self) -> list[ProcessIdentity]:
        """Return the processes that are recovering now."""
        with self._lock:
            return [
                identity for number, identity in enumerate(self._running) if self._marks[number]
            ]

    def replace(self, dead: ProcessIdentity) -> None:
        """Replace a killed process at once."""
        with self._lock:
            if dead in self._running and not self._ended.is_set():
                number = self._running.index(dead)
                self._running[number] = self._start(number)

    def _replace_dead(self) -> None:
        while not self._ended.wait(0.5):
            with self._lock:
                for number, identity in enumerate(self._running):
                    if process.identify(identity.pid) != identity:
                        self.died.append(identity.pid)
                        self._running[number] = self._start(number)

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        self._fork_server.kill()
        for identity in self._running:
            process.send_signal(identity, signal.SIGKILL)


def recover_forever(url: str, pause: random.Random, marks: mmap.mmap, number: int) -> None:
    """Recover in a loop, like `corral ps`, `wait` and the daemon, only faster."""
    reap_forever()
    parent = os.getppid()
    marks[number] = 1
    with corral.open(url, actor="recoverer") as store:
        while os.getppid() == parent:
            marks[number] = 1
            try:
                store.runs.recover()
            except CorralError as error:
                print(f"recover: {error.message}", file=sys.stderr, flush=True)
            marks[number] = 0
            time.sleep(pause.uniform(0, MAX_PAUSE))


def main() -> None:
    """Fork one process for each requested number and report its pid."""
    url, seed, path = sys.argv[1:4]
    import corral.api.runs
    import corral.services.runs.recovery  # their modules are loaded once

    if url.startswith("postgres"):
        import corral.db.postgres  # noqa: F401
    with open(path, "r+b") as file:
        marks = mmap.mmap(file.fileno(), PROCESSES)
    for turn, line in enumerate(sys.stdin):
        while _reaped():
            pass
        pid = os.fork()
        if pid == 0:
            try:
                draw = random.Random(f"{seed} {turn}")
                recover_forever(url, draw, marks, int(line))
            finally:
                os._exit(1)
        print(pid, flush=True)


def _reaped() -> bool:
    try:
        return os.waitpid(-1, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return False


if __name__ == "__main__":
    main()
