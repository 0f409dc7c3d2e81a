"""Many agents on one project, each in its own process: they claim tasks, lock files and post.

For tests and for the benchmark. Mutual exclusion is checked outside the store: the holder of a
lock creates a file that must not exist yet, and removes it before it releases the lock.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

import corral
from corral.api import Corral
from corral.kernel.errors import Held
from tests.support.store import rows

T = TypeVar("T")
GROUP = "team"
PATHS = 20  # few enough for contention
STOCK = 20  # tasks that are declared when none is ready
READING = 10  # how often an agent reads the posts of the others


class WorkloadResult(msgspec.Struct):
    """The counts of one agent, and its slowest call."""

    rounds: int = 0
    taken: list[str] = msgspec.field(default_factory=list)
    posted: list[str] = msgspec.field(default_factory=list)
    declared: int = 0
    locked: int = 0
    refused: int = 0
    held_twice: int = 0
    longest_ms: float = 0.0
    longest_of: str = ""
    errors: list[str] = msgspec.field(default_factory=list)

    def timed(self, what: str, call: Callable[[], T]) -> T:
        start = time.monotonic()
        try:
            return call()
        finally:
            elapsed = (time.monotonic() - start) * 1_000
            if elapsed > self.longest_ms:
                self.longest_ms, self.longest_of = elapsed, what


def names(count: int) -> list[str]:
    return [f"agent-{number:02}" for number in range(count)]


def create_team(store: Corral, folder: Path, count: int) -> str:
    """Create a project with agents in one group; submitted tasks are accepted automatically."""
    (folder / "src").mkdir(parents=True, exist_ok=True)
    project = store.projects.register(folder).id
    store.settings.set("tasks.auto_accept", True, scope=f"project:{project}")
    for name in names(count):
        store.agents.create(name)
    store.groups.create(GROUP, members=[f"agent:{name}" for name in names(count)])
    return project


class Worker:
    """One agent of the team."""

    def __init__(self, store: Corral, project: str, name: str, witnesses: Path) -> None:
        self._store = store
        self._project = project
        self._name = name
        self._witnesses = witnesses
        self._turn = int(name.rpartition("-")[2])  # agents do not read at the same time
        self.result = WorkloadResult()

    def round(self) -> None:
        """Claim a task, change a file under its lock, post, submit."""
        store, result, name = self._store, self.result, self._name
        result.rounds += 1
        task = result.timed("claim", partial(store.tasks.claim, self._project, name))
        if task is None:
            self._declare()
            return
        result.taken.append(task.id)
        self._change(f"src/{result.rounds * 7 % PATHS}.py")
        text = f"{name} {result.rounds}"
        result.timed("post", partial(store.groups.post, GROUP, text, key=text))
        result.posted.append(text)
        evidence = {"commands": [{"command": "make test", "exit_code": 0}]}
        result.timed("submit", partial(store.tasks.submit, task, evidence))
        if (result.rounds + self._turn) % READING == 0:
            self._catch_up()

    def _declare(self) -> None:
        first = self.result.declared
        tasks = [{"key": f"{self._name}-{first + number}"} for number in range(STOCK)]
        self.result.timed("declare", partial(self._store.tasks.declare, self._project, tasks))
        self.result.declared += STOCK

    def _change(self, path: str) -> None:
        locks, result = self._store.locks, self.result
        try:
            lock = result.timed("lock", partial(locks.acquire, self._project, path, self._name))
        except Held:
            result.refused += 1
            return
        result.locked += 1
        witness = self._witnesses / path.replace("/", "-")
        try:
            os.close(os.open(witness, os.O_CREAT | os.O_EXCL))
            witness.unlink()
        except FileExistsError:
            result.held_twice += 1
        result.timed("release", partial(locks.release, lock))

    def _catch_up(self) -> None:
        groups, result, me = self._store.groups, self.result, f"agent:{self._name}"
        page = result.timed("read", partial(groups.read, GROUP, member=me, limit=500))
        if page.items:
            newest = page.items[-1].number
            result.timed("mark", partial(groups.mark, GROUP, newest, member=me))


@contextmanager
def run_worker(url: str, project: str, name: str, witnesses: Path) -> Iterator[Worker]:
    with corral.open(url, actor=f"agent:{name}") as store:
        yield Worker(store, project, name, witnesses)


def count_double_holds(results: Sequence[WorkloadResult]) -> int:
    """Return the number of tasks and locks that two agents had at once."""
    claims = Counter(id for result in results for id in result.taken)
    return sum(times - 1 for times in claims.values()) + sum(item.held_twice for item in results)


def count_lost(store: Corral, results: Sequence[WorkloadResult]) -> int:
    """Return the number of lost or duplicated posts, and submitted tasks that are not done."""
    posted = Counter(text for result in results for text in result.posted)
    stored = Counter(text for (text,) in rows(store, "SELECT text FROM posts"))
    expected = {
        f"agent:{name}": posted.total() - len(result.posted)
        for name, result in zip(names(len(results)), results, strict=True)
    }
    letters = "SELECT mailbox, count(*) FROM letters GROUP BY mailbox ORDER BY mailbox"
    arrived = {mailbox: count for mailbox, count in rows(store, letters) if mailbox in expected}
    states = dict(rows(store, "SELECT state, count(*) FROM tasks GROUP BY state ORDER BY state"))
    return (
        (posted - stored).total()
        + (stored - posted).total()
        + sum(abs(count - arrived.get(mailbox, 0)) for mailbox, count in expected.items())
        + abs(states.get("done", 0) - sum(len(result.taken) for result in results))
    )


def fairness(results: Sequence[WorkloadResult]) -> float:
    """Return the rounds of the slowest agent over those of the fastest."""
    rounds = [result.rounds for result in results]
    return min(rounds) / max(rounds)


def find_slowest(results: Sequence[WorkloadResult]) -> WorkloadResult:
    """Return the result with the slowest call."""
    return max(results, key=lambda result: result.longest_ms)


def errors(results: Sequence[WorkloadResult]) -> list[str]:
    return [error for result in results for error in result.errors]
