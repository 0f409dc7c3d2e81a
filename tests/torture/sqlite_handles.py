"""Stress one SQLite file: several processes, several handles in each, and other libraries.

Worker processes put, claim and ack letters through handles that are opened and closed all the time,
by different names of the same file, from several threads. They fork children that try to open the
file too. Some workers are killed. Meanwhile other processes read the file with other SQLite
libraries (Python's sqlite3, the sqlite3 shell), which close it after every read.

A worker writes a line to its journal after every call that returned. At the end, every journaled
letter must be in the store exactly once and in the state that was accepted.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import apsw

import corral
from corral.api import Corral
from corral.kernel.errors import Conflict, StoreUnavailable
from tests.support.invariants import check_store
from tests.torture.workspace import folder_for

MAX_HANDLES = 4
THREADS = 2
READ = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=30)
connection.execute(sys.argv[2]).fetchall()
connection.close()
"""
QUERY = "SELECT count(*), max(seq) FROM letters"


def list_names(folder: Path) -> list[Path]:
    """Return the names of the store's file; the first one is its own."""
    real = folder / "store" / "corral.db"
    if not real.parent.exists():
        (folder / "store" / "inner").mkdir(parents=True)
        (folder / "folder-link").symlink_to(folder / "store")
        (folder / "file-link.db").symlink_to(real)
    return [
        real,
        folder / "store" / "inner" / ".." / "corral.db",
        folder / "folder-link" / "corral.db",
        folder / "file-link.db",
    ]


# -- a worker ------------------------------------------------------------------------------------


class HandleWorker:
    def __init__(self, number: int, operations: int, journal: Path, names: list[Path]) -> None:
        self.number = number
        self.remaining = operations
        self.names = names
        self.handles: list[Corral] = []
        self.lock = threading.Lock()
        self.journal = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.count = 0

    def run(self) -> None:
        threads = [threading.Thread(target=self.work, args=(n,)) for n in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for handle in self.handles:
            handle.close()

    def record(self, action: str, body: str = "") -> None:
        os.write(self.journal, f"{json.dumps([action, body])}\n".encode())

    def work(self, thread: int) -> None:
        rng = random.Random(self.number * 100 + thread)
        while self.next_operation() is not None:
            if rng.random() < 0.02:
                self.fork(rng)
            handle = self.take_handle(rng)
            try:
                self.operate(handle, rng)
            except Conflict:
                self.record("conflict")  # another worker's lease
            except StoreUnavailable as error:
                self.record("unavailable", error.reason)
            finally:
                self.return_handle(handle, rng)

    def next_operation(self) -> int | None:
        with self.lock:
            if not self.remaining:
                return None
            self.remaining -= 1
            return self.remaining

    def take_handle(self, rng: random.Random) -> Corral:
        with self.lock:
            if self.handles and (len(self.handles) >= MAX_HANDLES or rng.random() < 0.7):
                return self.handles.pop(rng.randrange(len(self.handles)))
        self.record("open")
        return corral.open(rng.choice(self.names), actor=f"user:{self.number}")

    def return_handle(self, handle: Corral, rng: random.Random) -> None:
        if rng.random() < 0.2:
            handle.close()
            return
        with self.lock:
            self.handles.append(handle)

    def operate(self, handle: Corral, rng: random.Random) -> None:
        drawn = rng.random()
        if drawn < 0.6:
            with self.lock:
                self.count += 1
                body = f"{self.number}-{os.getpid()}-{self.count}"
            handle.mail.put("queue:stress", body)
            self.record("put", body)
        elif drawn < 0.9:
            for letter in handle.mail.claim("queue:stress", owner=f"w{self.number}"):
                handle.mail.ack(letter)
                self.record("ack", str(letter.body))
        else:
            handle.mail.list(limit=5)
            self.record("read")

    def fork(self, rng: random.Random) -> None:
        """Fork a child that opens the file by any name: rejected, or its writes are kept."""
        body = f"child-{os.getpid()}-{rng.random()}"
        name = rng.choice(self.names)
        with self.lock:
            pid = os.fork()
        if pid == 0:
            code = 1
            with suppress(BaseException):
                code = self.use_as_child(name, body)
            os._exit(code)
        _, status = os.waitpid(pid, 0)
        self.record("forks" if status == 0 else "child failed", str(status))

    def use_as_child(self, name: Path, body: str) -> int:
        try:
            with corral.open(name) as store:
                store.mail.put("queue:stress", body)
                self.record("put", body)
        except RuntimeError:
            self.record("refused in a child")
        self.handles.clear()  # collects the inherited connections
        return 0


# -- the stress test -----------------------------------------------------------------------------


class HandleStress:
    def __init__(self, folder: Path, operations: int, workers: int, kills: int, seed: int) -> None:
        self.folder = folder
        self.names = list_names(folder)
        self.share = operations // workers
        self.workers = workers
        self.kills = kills
        self.rng = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.over = threading.Event()

    def run(self) -> list[str]:
        """Run the workers; return the violations."""
        corral.open(self.names[0]).close()
        readers = [
            threading.Thread(target=self.read_repeatedly, args=(command,))
            for command in self.commands()
        ]
        for reader in readers:
            reader.start()
        try:
            self.run_workers()
        finally:
            self.over.set()
            for reader in readers:
                reader.join()
        return self.judge()

    def commands(self) -> list[Callable[[], list[str]]]:
        def python() -> list[str]:
            return [sys.executable, "-c", READ, str(self.rng.choice(self.names)), QUERY]

        def shell() -> list[str]:
            return ["sqlite3", "-cmd", ".timeout 30000", str(self.rng.choice(self.names)), QUERY]

        return [python, shell] if shutil.which("sqlite3") else [python]

    def read_repeatedly(self, command: Callable[[], list[str]]) -> None:
        while not self.over.is_set():
            arguments = command()
            result = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
            self.counts[f"reads by {Path(arguments[0]).name}"] += result.returncode == 0
            if result.returncode:
                self.counts[f"failed: {result.stderr.strip()[-80:]}"] += 1

    def run_workers(self) -> None:
        running = {self.start(n): n for n in range(self.workers)}
        kills, number = self.kills, self.workers
        while running:
            if kills and self.rng.random() < 0.3:
                victim = self.rng.choice([*running])
                if victim.poll() is None:
                    victim.send_signal(signal.SIGKILL)
                    kills -= 1
            time.sleep(self.rng.random() * 0.3)
            for process in [item for item in running if item.poll() is not None]:
                self.counts[f"workers that ended with {process.returncode}"] += 1
                running.pop(process)
                if process.returncode == -signal.SIGKILL:  # another worker does its share
                    running[self.start(number)] = number
                    number += 1

    def start(self, number: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.torture.sqlite_handles", "--worker", str(number)]
        command += ["--operations", str(self.share), "--folder", str(self.folder)]
        return subprocess.Popen(command)

    def judge(self) -> list[str]:
        put: Counter[str] = Counter()
        acked: Counter[str] = Counter()
        for journal in self.folder.glob("journal-*"):
            for line in journal.read_text().splitlines():
                with suppress(ValueError):  # the last line of a killed worker
                    action, body = json.loads(line)
                    self.counts[f"{action} {body}" if action == "unavailable" else action] += 1
                    put[body] += action == "put"
                    acked[body] += action == "ack"
        wrong = []
        connection = apsw.Connection(str(self.names[0]))
        integrity = connection.execute("PRAGMA integrity_check").fetchall()
        if integrity != [("ok",)]:
            wrong.append(f"integrity_check: {integrity[:3]}")
        rows = connection.execute("SELECT body, state FROM letters").fetchall()
        connection.close()
        states = {json.loads(str(body)): str(state) for body, state in rows}
        if len(states) != len(rows):
            wrong.append(f"{len(rows) - len(states)} letters exist twice")
        lost = [body for body in +put if body not in states]
        wrong += [f"{len(lost)} accepted letters are lost, as {lost[0]}"] if lost else []
        undone = [body for body in +acked if states.get(body) != "done"]
        wrong += [f"{len(undone)} accepted acks are lost, as {undone[0]}"] if undone else []
        twice = [body for body, count in acked.items() if count > 1]
        wrong += [f"{len(twice)} letters were acked twice, as {twice[0]}"] if twice else []
        with corral.open(self.names[0]) as store:
            check_store(store)
        for bad in ("child failed", "unavailable replaced"):
            if self.counts[bad]:
                wrong.append(f"{self.counts[bad]} times: {bad}")
        wrong += [name for name in self.counts if name.startswith("failed")]
        good_ends = {"0", str(-signal.SIGKILL)}
        for name in self.counts:
            if name.startswith("workers that ended") and name.rpartition(" ")[2] not in good_ends:
                wrong.append(name)
        return wrong


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.torture --handles", description=__doc__)
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    wanted = parser.parse_args(arguments)
    if wanted.worker is not None:
        journal = wanted.folder / f"journal-{wanted.worker}"
        HandleWorker(wanted.worker, wanted.operations, journal, list_names(wanted.folder)).run()
        return 0
    with folder_for("handles", keep=wanted.keep) as folder:
        start = time.monotonic()
        stress = HandleStress(folder, wanted.operations, wanted.workers, wanted.kills, wanted.seed)
        wrong = stress.run()
        print(f"{wanted.operations:,} operations in {time.monotonic() - start:.0f} s")
        for name, count in sorted(stress.counts.items()):
            print(f"  {name}: {count:,}")
        print("\n".join(f"  ! {text}" for text in wrong) or "  no violations")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
