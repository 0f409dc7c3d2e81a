"""Conflict forecast: the worktrees of a repository, merged two by two, as they are now."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import combinations

import msgspec

from corral.adapters import checkouts, commits, git, process
from corral.db.database import Database
from corral.db.tx import Tx
from corral.domain.agents import ops as agents
from corral.domain.mail import ops as mail
from corral.domain.projects import ops as projects
from corral.domain.runs import ops as runs
from corral.domain.runs.model import Run
from corral.kernel.errors import NotFound, Refused
from corral.scratch_folders import scratch_folder

MAX_TREES = 30
MAX_FILES = 100


class Side(msgspec.Struct, frozen=True):
    """A worktree, and who works in it."""

    folder: str
    branch: str | None
    owner: str | None
    run_id: str | None


class Clash(msgspec.Struct, frozen=True):
    """Two worktrees that cannot be merged without a person, and the files in which."""

    one: Side
    other: Side
    files: list[str]


def forecast(database: Database, folder: str, *, tell: bool) -> list[Clash]:
    top = git.worktree_of(os.path.realpath(folder))
    if top is None:
        raise Refused(f"{folder} is in no git repository.", dir=folder, reason="not_a_repository")
    trees = checkouts.trees(top)
    if len(trees) > MAX_TREES:
        raise Refused(
            f"The repository has {len(trees)} worktrees, and {MAX_TREES} are tried at the most; "
            "remove those that are done (`git worktree remove`).",
            trees=len(trees),
        )
    return _tried(database, top, trees, tell=tell)


def forecast_live(database: Database) -> list[Clash]:
    """Of every repository on this machine in which live runs have more than one worktree: which of
    these would conflict. Their owners are told. Without any, nothing but the store is looked at."""
    busy: dict[str, set[str]] = {}
    for dir, cwd in database.read(_places_here):
        # By the project, and not by what stands in the worktree: an agent may have written that.
        top = git.worktree_of(os.path.realpath(dir))
        if top is not None:
            busy.setdefault(git.main_worktree(top) or top, set()).add(os.path.realpath(cwd))
    clashes = []
    for repository, cwds in busy.items():
        # One in which git is in trouble keeps nobody from looking at the others; whoever asks for
        # its forecast is told.
        with suppress(Refused):
            trees = checkouts.trees(repository) if len(cwds) > 1 else []
            nearest = {_around(trees, cwd) for cwd in cwds}
            at_work = [tree for tree in trees if tree in nearest][:MAX_TREES]
            clashes += _tried(database, repository, at_work, tell=True) if at_work else []
    return clashes


def _places_here(tx: Tx) -> list[tuple[str, str]]:
    """Of the live runs of this machine, where their project is and where they work."""
    return [
        (projects.get(tx, run.project_id).dir if run.project_id else run.cwd, run.cwd)
        for run in _live(tx)
        if run.host == process.host()
    ]


def _around(trees: Sequence[checkouts.Tree], cwd: str) -> checkouts.Tree | None:
    """The nearest worktree that a folder is in."""
    found = [tree for tree in trees if f"{cwd}/".startswith(f"{os.path.realpath(tree.folder)}/")]
    return max(found, key=lambda tree: len(tree.folder), default=None)


def _tried(
    database: Database, top: str, trees: Sequence[checkouts.Tree], *, tell: bool
) -> list[Clash]:
    """Merge worktrees two by two, in a place apart."""
    sides = database.read(lambda tx: _sides_of(tx, trees))
    with scratch_folder("forecast") as apart:
        trial = commits.Trial(top, str(apart))
        states = [trial.state_of(tree) for tree in trees] if len(trees) > 1 else []
        clashes = [
            Clash(sides[one], sides[other], files[:MAX_FILES])
            for one, other in combinations(range(len(states)), 2)
            if (files := trial.conflicts(states[one], states[other]))
        ]
    if tell and clashes:
        database.write(lambda tx: _tell_all(tx, clashes), repeatable=True)
    return clashes


def _live(tx: Tx) -> list[Run]:
    """Runs that have a process, the newest of all first."""
    found: list[Run] = []
    while page := runs.active(tx, after=found[-1].id if found else ""):
        found += page
    return found[::-1]


def _sides_of(tx: Tx, trees: Sequence[checkouts.Tree]) -> list[Side]:
    """Who works in each; of several the one that began last."""
    at_work = {_around(trees, os.path.realpath(run.cwd)): run for run in reversed(_live(tx))}
    return [
        Side(tree.folder, tree.branch, _owner(tx, run), run.id)
        if (run := at_work.get(tree)) is not None
        else Side(tree.folder, tree.branch, None, None)
        for tree in trees
    ]


def _owner(tx: Tx, run: Run) -> str:
    if run.agent_id is not None:
        try:
            return f"agent:{agents.get(tx, run.agent_id).name}"
        except NotFound:
            pass
    return f"session:{run.session_id}" if run.session_id else f"run:{run.id}"


def _tell_all(tx: Tx, clashes: list[Clash]) -> None:
    """A letter to both owners of each, once for the same two at work in the same worktrees."""
    for clash, mine, theirs in _sides(clashes):
        if mine.owner is not None and not mine.owner.startswith("run:"):
            same = [(side.folder, side.run_id) for side in (clash.one, clash.other)]
            key = sha256(msgspec.json.encode(same)).hexdigest()[:32]
            who = theirs.owner or "somebody"
            mail.put_after(
                tx,
                None,
                mine.owner,
                {
                    "forecast": msgspec.to_builtins(clash),
                    "text": f"Your work in {mine.folder} and that of {who} in {theirs.folder} "
                    f"will conflict in {', '.join(clash.files[:10])}; agree before you merge.",
                },
                key=f"forecast:{key}",
            )


def _sides(clashes: list[Clash]) -> Iterator[tuple[Clash, Side, Side]]:
    for clash in clashes:
        yield clash, clash.one, clash.other
        yield clash, clash.other, clash.one
