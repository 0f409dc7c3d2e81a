"""Worktrees for the attempts of a race, over plain `git worktree add`."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from bench.harness import Bar, Bench, Rates, Rival, Row
from corral.adapters import worktrees
from corral.adapters.pool import Pool, pool_of

TITLE = "Worktrees of a large repository"
ABOUT = """
    Eight worktrees of a repository of 20,000 files, each on a new branch at the same commit, over
    eight plain calls of `git worktree add`, one after the other; and eight whose files are taken
    from the pool, where those of another commit are, each compared by its content. Removing them is
    not counted.
"""
COUNT = 8
FILES = 20_000
PLAIN = "git worktree add"
MADE = "8 worktrees are made"
POOLED = "8 worktrees are made from the pool"


def measure(bench: Bench) -> list[Row]:
    repository = bench.once("repository", lambda: _repository(bench.folder / "repository"))
    found = bench.compare(
        Rival(PLAIN, lambda: _sample(repository, _plain)),
        [
            Rival(MADE, lambda: _sample(repository, _make)),
            Rival(POOLED, lambda: _sample(repository, _refill, before=_fill_pool)),
        ],
        rounds=bench.pick(3, 1),
    )
    return [
        Row(MADE, found.speed_of_base_over(MADE, "prepared"), Bar("<=", 1.5)),
        Row(POOLED, found.speed_of_base_over(POOLED, "prepared"), Bar("<=", 1)),
    ]


def _git(where: Path, *words: str) -> None:
    who = ("-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0")
    subprocess.run(["git", "-C", str(where), *who, *words], check=True, capture_output=True)


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


def _sample(
    repository: Path,
    prepare: Callable[[Path, Path], None],
    before: Callable[[Path, Path], None] | None = None,
) -> Rates:
    place = repository.parent / "trees"
    if before is not None:
        before(repository, place)
    began = time.perf_counter()
    prepare(repository, place)
    taken = time.perf_counter() - began
    shutil.rmtree(place)
    _git(repository, "worktree", "prune", "--expire", "now")
    names = os.listdir(repository / ".git/refs/heads/tree")
    _git(repository, "branch", "-q", "-D", *(f"tree/{name}" for name in names))
    return {"prepared": COUNT / taken}


def _plain(repository: Path, place: Path) -> None:
    for number in range(COUNT):
        folder = str(place / str(number))
        _git(repository, "worktree", "add", "-q", "-b", f"tree/{number}", folder, "main~1")


def _make(repository: Path, place: Path) -> None:
    for number in range(COUNT):
        folder = str(place / str(number))
        worktrees.make(str(repository), folder, f"tree/{number}", base="main~1")


def _fill_pool(repository: Path, place: Path) -> None:
    _make(repository, place)
    for number in range(COUNT):
        folder = str(place / str(number))
        worktrees.remove(str(repository), folder, delete_branch=True, pool=_pool(repository))


def _refill(repository: Path, place: Path) -> None:
    for number in range(COUNT):
        folder = str(place / str(number))
        branch = f"tree/again{number}"
        worktrees.make(str(repository), folder, branch, base="main", pool=_pool(repository))


def _pool(repository: Path) -> Pool:
    return pool_of(str(repository.parent / "pool"), str(repository), COUNT)
