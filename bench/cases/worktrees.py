"""Worktrees for the attempts of a race, compared with plain `git worktree add`."""

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.home import Home

from bench.harness import Bar, Bench, Rates, Rival, Row
from corral.adapters.worktrees import worktrees
from corral.adapters.worktrees.worktree_pool import find_pool
from corral.api import Corral

TITLE = "Worktrees of a large repository"
ABOUT = """
    Worktrees of a repository of 20,000 files, each on a new branch at the same commit, in turn
    with plain `git worktree add`; the same with files from the worktree pool, each compared by
    content; and the eight attempts of a race, from the call that starts it until each has its
    worktree, its port and its queued run. Once on disk and once in memory, because the time of
    plain git on a disk varies several times from minute to minute. Removal is not measured.
"""
FILES = 20_000
ATTEMPTS = 8
MEMORY = Path("/dev") / "shm"  # Linux's memory file system
ROOM = 4 << 30  # the maximum bytes that it takes
PLAIN = "git worktree add"
MADE = "a worktree is made"
POOLED = "a worktree is made from the pool"
RACE = "8 attempts of a race are prepared"


def measure(bench: Bench) -> list[Row]:
    with_memory = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM
    rows = []
    if not (bench.quick and with_memory):
        rows += _rows(bench, bench.folder, "on disk", rounds=bench.pick(2, 1))
    if with_memory:
        with tempfile.TemporaryDirectory(prefix="corral-bench-", dir=MEMORY) as folder:
            rows += _rows(bench, Path(folder), "in memory", rounds=bench.pick(4, 2))
    return rows


def _rows(bench: Bench, folder: Path, location: str, rounds: int) -> list[Row]:
    bench.progress(f"a repository {location}")
    with _open_repository(folder / "worktrees") as repository:
        plain_git = Rival(PLAIN, repository.plain)
        rivals = [Rival(MADE, repository.make), Rival(POOLED, repository.refill)]
        result = bench.compare(plain_git, rivals, rounds=rounds)
        race = bench.compare(plain_git, [Rival(RACE, repository.race)], rounds=1)
    return [
        Row(f"{MADE}, {location}", result.speed_of_base_over(MADE, "prepared"), Bar("<=", 1.5)),
        Row(f"{POOLED}, {location}", result.speed_of_base_over(POOLED, "prepared"), Bar("<=", 1)),
        Row(f"{RACE}, {location}", race.speed_of_base_over(RACE, "prepared"), Bar("<=", 1.5)),
    ]


@contextmanager
def _open_repository(folder: Path) -> "Iterator[_RaceRepository]":
    folder.mkdir()
    repository = _repository(folder / "repository")
    os.environ["CORRAL_HOME"] = str(folder / "home")
    home = Home(folder, f"sqlite:///{folder}/store.db")
    try:
        with home.store() as store:
            store.settings.set("races.max_attempts", ATTEMPTS)
            store.settings.set("runs.max_concurrent", 1)
            store.agents.create("worker", command="true")
            yield _RaceRepository(repository, store)
    finally:
        home.kill_processes()
        shutil.rmtree(folder)


class _RaceRepository:
    """A repository and a store with races, on one disk; each sample restores its state."""

    def __init__(self, repository: Path, store: Corral) -> None:
        self._repository = repository
        self._store = store
        self._folder = str(repository.parent / "tree")

    def plain(self) -> Rates:
        start = time.perf_counter()
        arguments = ("worktree", "add", "-q", "-b", "tree/plain", self._folder, "main~1")
        _git(self._repository, *arguments)
        return self._over(start)

    def make(self) -> Rates:
        start = time.perf_counter()
        worktrees.create(str(self._repository), self._folder, "tree/made", base="main~1")
        return self._over(start)

    def refill(self) -> Rates:
        repository = str(self._repository)
        pool = find_pool(str(self._repository.parent / "pool"), repository, 1)
        worktrees.create(repository, self._folder, "tree/pooled", base="main~1")
        worktrees.remove(repository, self._folder, delete_branch=True, pool=pool)
        start = time.perf_counter()
        worktrees.create(repository, self._folder, "tree/refilled", base="main", pool=pool)
        return self._over(start)

    def race(self) -> Rates:
        start = time.perf_counter()
        race = self._store.races.start(
            "Do nothing", agents=f"worker:{ATTEMPTS}", project=str(self._repository), base="main~1"
        )
        elapsed = time.perf_counter() - start
        for attempt in race.latest.attempts:
            assert attempt.run_id is not None, attempt.reason
            assert len(os.listdir(attempt.worktree)) > 1
        self._store.races.abandon(race.id)
        self._clear(os.path.dirname(race.latest.attempts[0].worktree))
        return {"prepared": ATTEMPTS / elapsed}

    def _over(self, start: float) -> Rates:
        elapsed = time.perf_counter() - start
        self._clear(self._folder)
        return {"prepared": 1 / elapsed}

    def _clear(self, folder: str) -> None:
        shutil.rmtree(folder)
        _git(self._repository, "worktree", "prune", "--expire", "now")
        result = _git(self._repository, "branch", "--format=%(refname:short)")
        _git(self._repository, "branch", "-q", "-D", *(set(result.split()) - {"main"}))


def _git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0")
    result = subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True
    )
    return result.stdout.decode()


def _repository(top: Path) -> Path:
    for number in range(FILES):
        file = top / f"part{number // 100}" / f"file{number}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"# {number}\n" * 40)
    _git(top, "init", "-q", "-b", "main")
    _git(top, "add", "-A")
    _git(top, "commit", "-qm", "first")
    for number in range(0, FILES, 50):
        (top / f"part{number // 100}" / f"file{number}.py").write_text("changed\n")
    _git(top, "commit", "-qam", "second")
    return top
