"""Processes that recover runs continuously while they are killed too.

A killed one is replaced at once by a fork of a process that has loaded all modules and opened no
store, so that the next one starts while the work of the last is half done.
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
from corral.adapters import process
from corral.adapters.process import ProcessIdentity
from corral.kernel.errors import CorralError

AT_ONCE = 3
LONGEST_REST = 0.2  # seconds


def reap_for_ever() -> None:
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
        """Those who ended and were not killed here."""
        self.said = folder / "recoverers"
        self._errors = self.said.open("w")
        marks = folder / "recovering"
        marks.write_bytes(bytes(AT_ONCE))
        with marks.open("r+b") as file:
            self._marks = mmap.mmap(file.fileno(), AT_ONCE)
        words = [
            sys.executable,
            "-m",
            "tests.torture.recovery_processes",
            url,
            str(seed),
            str(marks),
        ]
        self._mother = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
        )
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._going = [self._start(number) for number in range(AT_ONCE)]
        self._thread = threading.Thread(target=self._replace_the_dead, daemon=True)
        self._thread.start()

    def _start(self, number: int) -> ProcessIdentity:
        assert self._mother.stdin is not None
        assert self._mother.stdout is not None
        while True:
            self._marks[number] = 0
            self._mother.stdin.write(b"%d\n" % number)
            self._mother.stdin.flush()
            who = process.identify(int(self._mother.stdout.readline()))
            if who is not None:
                return who

    def busy(self) -> list[ProcessIdentity]:
        """Return those at work now."""
        with self._lock:
            return [who for number, who in enumerate(self._going) if self._marks[number]]

    def replace(self, dead: ProcessIdentity) -> None:
        """Replace a killed one at once."""
        with self._lock:
            if dead in self._going and not self._ended.is_set():
                number = self._going.index(dead)
                self._going[number] = self._start(number)

    def _replace_the_dead(self) -> None:
        while not self._ended.wait(0.5):
            with self._lock:
                for number, who in enumerate(self._going):
                    if process.identify(who.pid) != who:
                        self.died.append(who.pid)
                        self._going[number] = self._start(number)

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        self._mother.kill()
        for who in self._going:
            process.send_signal(who, signal.SIGKILL)


def recover_for_ever(url: str, pause: random.Random, marks: mmap.mmap, number: int) -> None:
    """Recover in a loop, like `corral ps`, `wait` and the daemon, only faster."""
    reap_for_ever()
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
            time.sleep(pause.uniform(0, LONGEST_REST))


def main() -> None:
    """Fork one process for each requested number and report its pid."""
    url, seed, path = sys.argv[1:4]
    import corral.api.runs
    import corral.services.runs.recovery  # their modules are loaded once

    if url.startswith("postgres"):
        import corral.db.postgres  # noqa: F401
    with open(path, "r+b") as file:
        marks = mmap.mmap(file.fileno(), AT_ONCE)
    for turn, line in enumerate(sys.stdin):
        while _reaped():
            pass
        pid = os.fork()
        if pid == 0:
            try:
                draw = random.Random(f"{seed} {turn}")
                recover_for_ever(url, draw, marks, int(line))
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
