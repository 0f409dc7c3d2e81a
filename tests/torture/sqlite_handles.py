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

MOST_HANDLES = 4
THREADS = 2
READ = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=30)
connection.execute(sys.argv[2]).fetchall()
connection.close()
"""
QUERY = "SELECT count(*), max(seq) FROM letters"


def names_of(folder: Path) -> list[Path]:
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


class Worker:
    def __init__(self, number: int, operations: int, journal: Path, names: list[Path]) -> None:
        self.number = number
        self.left = operations
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

    def note(self, what: str, body: str = "") -> None:
        os.write(self.journal, f"{json.dumps([what, body])}\n".encode())

    def work(self, thread: int) -> None:
        chance = random.Random(self.number * 100 + thread)
        while self.next_operation() is not None:
            if chance.random() < 0.02:
                self.fork(chance)
            handle = self.take_handle(chance)
            try:
                self.operate(handle, chance)
            except Conflict:
                self.note("conflict")  # another worker's lease
            except StoreUnavailable as error:
                self.note("unavailable", error.reason)
            finally:
                self.give_back(handle, chance)

    def next_operation(self) -> int | None:
        with self.lock:
            if not self.left:
                return None
            self.left -= 1
            return self.left

    def take_handle(self, chance: random.Random) -> Corral:
        with self.lock:
            if self.handles and (len(self.handles) >= MOST_HANDLES or chance.random() < 0.7):
                return self.handles.pop(chance.randrange(len(self.handles)))
        self.note("open")
        return corral.open(chance.choice(self.names), actor=f"user:{self.number}")

    def give_back(self, handle: Corral, chance: random.Random) -> None:
        if chance.random() < 0.2:
            handle.close()
            return
        with self.lock:
            self.handles.append(handle)

    def operate(self, handle: Corral, chance: random.Random) -> None:
        drawn = chance.random()
        if drawn < 0.6:
            with self.lock:
                self.count += 1
                body = f"{self.number}-{os.getpid()}-{self.count}"
            handle.mail.put("queue:storm", body)
            self.note("put", body)
        elif drawn < 0.9:
            for letter in handle.mail.claim("queue:storm", owner=f"w{self.number}"):
                handle.mail.ack(letter)
                self.note("ack", str(letter.body))
        else:
            handle.mail.list(limit=5)
            self.note("read")

    def fork(self, chance: random.Random) -> None:
        """Fork a child that opens the file by any name: rejected, or its writes are kept."""
        body = f"child-{os.getpid()}-{chance.random()}"
        name = chance.choice(self.names)
        with self.lock:
            pid = os.fork()
        if pid == 0:
            code = 1
            with suppress(BaseException):
                code = self.live_as_child(name, body)
            os._exit(code)
        _, status = os.waitpid(pid, 0)
        self.note("forks" if status == 0 else "child failed", str(status))

    def live_as_child(self, name: Path, body: str) -> int:
        try:
            with corral.open(name) as store:
                store.mail.put("queue:storm", body)
                self.note("put", body)
        except RuntimeError:
            self.note("refused in a child")
        self.handles.clear()  # collects the inherited connections
        return 0


# -- the storm -----------------------------------------------------------------------------------


class Storm:
    def __init__(self, folder: Path, operations: int, workers: int, kills: int, seed: int) -> None:
        self.folder = folder
        self.names = names_of(folder)
        self.share = operations // workers
        self.workers = workers
        self.kills = kills
        self.chance = random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.over = threading.Event()

    def run(self) -> list[str]:
        """Run the workers; return the violations."""
        corral.open(self.names[0]).close()
        readers = [
            threading.Thread(target=self.read_on, args=(command,)) for command in self.commands()
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
            return [sys.executable, "-c", READ, str(self.chance.choice(self.names)), QUERY]

        def shell() -> list[str]:
            return ["sqlite3", "-cmd", ".timeout 30000", str(self.chance.choice(self.names)), QUERY]

        return [python, shell] if shutil.which("sqlite3") else [python]

    def read_on(self, command: Callable[[], list[str]]) -> None:
        while not self.over.is_set():
            words = command()
            done = subprocess.run(words, capture_output=True, text=True, timeout=120)
            self.seen[f"reads by {Path(words[0]).name}"] += done.returncode == 0
            if done.returncode:
                self.seen[f"failed: {done.stderr.strip()[-80:]}"] += 1

    def run_workers(self) -> None:
        going = {self.start(n): n for n in range(self.workers)}
        kills, number = self.kills, self.workers
        while going:
            if kills and self.chance.random() < 0.3:
                victim = self.chance.choice([*going])
                if victim.poll() is None:
                    victim.send_signal(signal.SIGKILL)
                    kills -= 1
            time.sleep(self.chance.random() * 0.3)
            for process in [item for item in going if item.poll() is not None]:
                self.seen[f"workers that ended with {process.returncode}"] += 1
                going.pop(process)
                if process.returncode == -signal.SIGKILL:  # another worker does its share
                    going[self.start(number)] = number
                    number += 1

    def start(self, number: int) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "tests.torture.sqlite_handles", "--worker", str(number)]
        words += ["--operations", str(self.share), "--folder", str(self.folder)]
        return subprocess.Popen(words)

    def judge(self) -> list[str]:
        put: Counter[str] = Counter()
        acked: Counter[str] = Counter()
        for journal in self.folder.glob("journal-*"):
            for line in journal.read_text().splitlines():
                with suppress(ValueError):  # the last line of a killed worker
                    what, body = json.loads(line)
                    self.seen[f"{what} {body}" if what == "unavailable" else what] += 1
                    put[body] += what == "put"
                    acked[body] += what == "ack"
        wrong = []
        connection = apsw.Connection(str(self.names[0]))
        integrity = connection.execute("PRAGMA integrity_check").fetchall()
        if integrity != [("ok",)]:
            wrong.append(f"integrity_check: {integrity[:3]}")
        rows = connection.execute("SELECT body, state FROM letters").fetchall()
        connection.close()
        states = {json.loads(str(body)): str(state) for body, state in rows}
        if len(states) != len(rows):
            wrong.append(f"{len(rows) - len(states)} letters are in the store twice")
        lost = [body for body in +put if body not in states]
        wrong += [f"{len(lost)} accepted letters are lost, as {lost[0]}"] if lost else []
        undone = [body for body in +acked if states.get(body) != "done"]
        wrong += [f"{len(undone)} accepted acks are lost, as {undone[0]}"] if undone else []
        twice = [body for body, count in acked.items() if count > 1]
        wrong += [f"{len(twice)} letters were acked twice, as {twice[0]}"] if twice else []
        with corral.open(self.names[0]) as store:
            check_store(store)
        for bad in ("child failed", "unavailable replaced"):
            if self.seen[bad]:
                wrong.append(f"{self.seen[bad]} times: {bad}")
        wrong += [name for name in self.seen if name.startswith("failed")]
        good_ends = {"0", str(-signal.SIGKILL)}
        for name in self.seen:
            if name.startswith("workers that ended") and name.rpartition(" ")[2] not in good_ends:
                wrong.append(name)
        return wrong


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.torture --handles", description=__doc__)
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="leave the folder for a look")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    wanted = parser.parse_args(words)
    if wanted.worker is not None:
        journal = wanted.folder / f"journal-{wanted.worker}"
        Worker(wanted.worker, wanted.operations, journal, names_of(wanted.folder)).run()
        return 0
    with folder_for("handles", keep=wanted.keep) as folder:
        began = time.monotonic()
        storm = Storm(folder, wanted.operations, wanted.workers, wanted.kills, wanted.seed)
        wrong = storm.run()
        print(f"{wanted.operations:,} operations in {time.monotonic() - began:.0f} s")
        for name, count in sorted(storm.seen.items()):
            print(f"  {name}: {count:,}")
        print("\n".join(f"  ! {text}" for text in wrong) or "  nothing wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
