"""A worker process: random puts, claims, failures, locks, tasks, timers and runs.

It records what the store accepted. It sometimes holds leases beyond their end, and the test kills,
stops and disconnects it. Rejections are fine; accepted operations are checked at the end.
"""

import os
import random
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import corral
from corral.api import Corral
from corral.kernel.errors import CorralError, Invalid, StoreUnavailable
from tests.torture.chaos.journal import Journal

LEASE_MS = 2_500
TTL_MS = 3_000
ORDERED = ("agent:a", "agent:b")
UNCONFIRMED = "agent:once"
UNORDERED = ("queue:plain", "queue:timers", "queue:series")
PATHS = ("one.txt", "two.txt")
MAX_RUNS = 3
MAX_TASKS = 12

# The agent records what it has written and how it intends to end.
AGENT = r"""
import os, signal, sys, time
lines, pause, end = int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
journal = os.open(f"{sys.argv[1]}/{os.environ['CORRAL_RUN']}.ran", flags, 0o600)
me = os.getpid()
def record(text):
    os.write(journal, f"{me} {text}\n".encode())
record("begin")
try:
    os.write(1, b"\n")  # an earlier attempt may have ended inside a line
except OSError:
    pass
for number in range(1, lines + 1):
    line = b"%d:%06d %s\n" % (me, number, b"x" * 40)
    try:
        whole = os.write(1, line) == len(line)
    except OSError:  # the terminal is closed or the disk is full
        whole = False
    if not whole:
        record("end exit74")
        os._exit(74)
    record("wrote")
    time.sleep(pause)
record("end " + end)
if end.startswith("exit"):
    os._exit(int(end[4:]))
os.kill(me, int(end[6:]))
time.sleep(60)
"""


class Worker:
    def __init__(self, store: Corral, folder: Path, name: str, seed: int) -> None:
        self.store = store
        self.folder = folder
        self.name = name
        self.random = random.Random(f"{seed} {name} {os.getpid()}")
        self.mailboxeser = f"{name}-{os.getpid()}"
        self.journal = Journal(folder / f"{self.mailboxeser}.journal", name)
        self.project = (folder / "project" / "id").read_text()
        self.mailboxes = (f"user:{name}", f"agent:{name}")
        """Mailboxes for notices about its tasks and locks."""
        self.count = 0
        self.steps = {
            self.put: 5,
            self.claim: 6,
            self.lock: 2,
            self.do_task: 2,
            self.add_task: 1,
            self.accept: 1,
            self.set_timer: 1,
            self.start_run: 1,
        }
        self.calm = {self.claim: 4, self.do_task: 2, self.accept: 2}
        """Steps of the recovery phase, which create no new work."""

    @property
    def is_calm(self) -> bool:
        return (self.folder / "calm").exists()

    def work(self) -> None:
        """Work until the parent is gone or the test is over."""
        parent = os.getppid()
        while os.getppid() == parent and not (self.folder / "over").exists():
            steps = self.calm if self.is_calm else self.steps
            (step,) = self.random.choices([*steps], [*steps.values()])
            try:
                step()
            except Invalid:
                raise  # an error of the test itself
            except CorralError:
                # Rejected or unknown: there is nothing to record. Objects that it may own without
                # knowing it are left to others from now on.
                self.count += 1
                self.mailboxeser = f"{self.name}-{os.getpid()}-{self.count}"
                time.sleep(0.05)
            time.sleep(self.random.uniform(0, 0.08))

    def linger(self) -> None:
        """Hold a claim for a moment, or for longer than its lease."""
        if not self.is_calm:
            time.sleep(self.random.choice((0, 0, 0, 0, 0.02, 0.1, 0.5, LEASE_MS / 1_000 + 0.5)))

    # -- letters ---------------------------------------------------------------------------------

    def put(self) -> None:
        mailbox = self.random.choice((*ORDERED, *ORDERED, UNCONFIRMED, UNORDERED[0]))
        self.count += 1
        key = f"{self.mailboxeser}-{self.count}"
        start = time.monotonic()
        letter = self.store.mail.put(mailbox, {"n": self.count}, key=key)
        self.journal.record("put", letter.id, start, mailbox=mailbox, key=key)

    def claim(self) -> None:
        mailbox = self.random.choice((*ORDERED, UNCONFIRMED, *UNORDERED, *self.mailboxes))
        start = time.monotonic()
        for letter in self.store.mail.claim(mailbox, owner=self.mailboxeser, lease_ms=LEASE_MS):
            self.journal.record("claim", letter.id, start, fence=letter.fence)
            self._process(letter, mailbox == UNCONFIRMED)

    def _process(self, letter: Any, unconfirmed: bool) -> None:
        mail, act = self.store.mail, "act"
        if unconfirmed:
            self._record_call(
                "begin_delivery", letter.id, letter.fence, lambda: mail.begin_delivery(letter)
            )
            act = "act in doubt"
        self.journal.record(act, letter.id, time.monotonic())
        self.linger()
        chance = 1.0 if unconfirmed or self.is_calm else self.random.random()
        if chance < 0.1:
            self._record_call("renew", letter.id, letter.fence, lambda: mail.renew(letter))
            self.linger()
        if chance < 0.06:
            self._record_call(
                "fail", letter.id, letter.fence, lambda: mail.fail(letter, "injected failure")
            )
        else:
            self._record_call("ack", letter.id, letter.fence, lambda: mail.ack(letter))

    def _record_call(self, action: str, subject: str, fence: int, call: Any) -> Any:
        start = time.monotonic()
        answer = call()
        self.journal.record(action, subject, start, fence=fence)
        return answer

    # -- locks, tasks, timers, runs --------------------------------------------------------------

    def lock(self) -> None:
        path = self.random.choice(PATHS)
        locks, start_time = self.store.locks, time.monotonic()
        lock = locks.acquire(self.project, path, f"agent:{self.name}", ttl_ms=TTL_MS)
        self.journal.record("acquire", f"lock:{path}", start_time, fence=lock.fence)
        self.linger()
        if self.random.random() < 0.3:
            self._record_call("renew", f"lock:{path}", lock.fence, lambda: locks.renew(lock))
            self.linger()
        self._record_call("release", f"lock:{path}", lock.fence, lambda: locks.release(lock))

    def add_task(self) -> None:
        known = self.store.tasks.list(project=self.project, limit=100).items
        if sum(task.ended_at is None for task in known) < MAX_TASKS:
            self.count += 1
            needs = [task.key for task in known[:1] if self.random.random() < 0.5]
            key = f"{self.mailboxeser}-{self.count}"
            start = time.monotonic()
            task = self.store.tasks.add(self.project, key, key, depends_on=needs)
            self.journal.record("task", task.id, start)

    def do_task(self) -> None:
        tasks, start_time = self.store.tasks, time.monotonic()
        task = tasks.claim(self.project, self.name, lease_ms=LEASE_MS)
        if task is None:
            return
        self.journal.record("claim", task.id, start_time, fence=task.fence)
        self.linger()
        evidence = {"text": f"by {self.mailboxeser}"}
        self._record_call("submit", task.id, task.fence, lambda: tasks.submit(task, evidence))

    def accept(self) -> None:
        """Accept submitted tasks as a person, because no agent may review its own."""
        for task in self.store.tasks.list(project=self.project, state="submitted", limit=5).items:
            self.store.tasks.accept(task.id)

    def set_timer(self) -> None:
        self.count += 1
        body, delay = {"timer": self.count}, self.random.randrange(5_100, 9_000)
        start = time.monotonic()
        timer = self.store.timers.set("queue:timers", body, delay_ms=delay)
        self.journal.record("timer", timer.id, start)

    def start_run(self) -> None:
        if len(self.store.runs.list(live=True, limit=20).items) >= MAX_RUNS:
            return
        command = [sys.executable, "-S", "-E", str(self.folder / "agent.py"), str(self.folder)]
        lines = self.random.randrange(10, 120)
        end = self.random.choice(("exit0", "exit0", "exit3", "signal11"))
        terminal = self.random.random() < 0.25
        start = time.monotonic()
        run = self.store.runs.start(
            command=[*command, str(lines), f"{self.random.uniform(0.01, 0.1):.3f}", end],
            project=self.project,
            terminal=terminal,
            max_restarts=self.random.choice((0, 0, 1, 2)),
            grace_period_ms=500,
            labels=["chaos"],
        )
        self.journal.record("run", run.id, start, key="pty" if terminal else "pipe")


def main() -> None:
    url, folder, name, seed = sys.argv[1:5]
    while True:
        with (
            suppress(StoreUnavailable),
            corral.open(url, actor=f"user:{name}") as store,
        ):
            return Worker(store, Path(folder), name, int(seed)).work()
        time.sleep(0.2)


if __name__ == "__main__":
    main()
