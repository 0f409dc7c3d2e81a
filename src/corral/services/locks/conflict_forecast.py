"""Forecasting merge conflicts: trial merges between the worktrees of a repository."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import combinations

import msgspec

from corral.adapters.git import commits, git
from corral.adapters.processes import process
from corral.adapters.worktrees import worktree_registry
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


class ConflictSide(msgspec.Struct, frozen=True):
    """A worktree, and the owner of the run in it."""

    folder: str
    branch: str | None
    owner: str | None
    run_id: str | None


class MergeConflict(msgspec.Struct, frozen=True):
    """Two worktrees that cannot be merged automatically, and the conflicting files."""

    one: ConflictSide
    other: ConflictSide
    files: list[str]


def forecast(database: Database, folder: str, *, notify: bool) -> list[MergeConflict]:
    """Return the conflicts between all worktrees of a repository; with `notify`, notify the owners.

    Raises Refused outside of a repository, and when there are too many worktrees.
    """
    top = git.find_worktree_root(os.path.realpath(folder))
    if top is None:
        raise Refused(
            f"{folder} is not in a git repository.", dir=folder, reason="not_a_repository"
        )
    trees = worktree_registry.list_worktrees(top)
    if len(trees) > MAX_TREES:
        raise Refused(
            f"The repository has {len(trees)} worktrees; at most {MAX_TREES} can be compared. "
            "Remove those that are no longer needed (`git worktree remove`).",
            trees=len(trees),
        )
    return _try_merges(database, top, trees, notify=notify)


def forecast_live(database: Database) -> list[MergeConflict]:
    """Return the conflicts between worktrees of live runs on this machine; notifies the owners.

    Considers only repositories with live runs in more than one worktree. Without live runs, it only
    reads the store.
    """
    cwds_of: dict[str, set[str]] = {}
    for dir, cwd in database.read(_list_live_dirs):
        # Resolved from the project's directory: an agent can forge the `.git` of its worktree.
        top = git.find_worktree_root(os.path.realpath(dir))
        if top is not None:
            cwds_of.setdefault(git.find_main_worktree(top) or top, set()).add(os.path.realpath(cwd))
    conflicts = []
    for repository, cwds in cwds_of.items():
        # A damaged repository must not prevent the forecast of the others; `forecast` reports it.
        with suppress(Refused):
            trees = worktree_registry.list_worktrees(repository) if len(cwds) > 1 else []
            nearest = {_find_tree(trees, cwd) for cwd in cwds}
            active = [tree for tree in trees if tree in nearest][:MAX_TREES]
            conflicts += _try_merges(database, repository, active, notify=True) if active else []
    return conflicts


def _list_live_dirs(tx: Tx) -> list[tuple[str, str]]:
    """Return the project directory and the working directory of each live run of this machine."""
    return [
        (projects.get(tx, run.project_id).dir if run.project_id else run.cwd, run.cwd)
        for run in _list_local_runs(tx)
    ]


def _find_tree(
    trees: Sequence[worktree_registry.ListedWorktree], cwd: str
) -> worktree_registry.ListedWorktree | None:
    """Return the innermost worktree that contains a folder."""
    containing = [
        tree for tree in trees if f"{cwd}/".startswith(f"{os.path.realpath(tree.folder)}/")
    ]
    return max(containing, key=lambda tree: len(tree.folder), default=None)


def _try_merges(
    database: Database, top: str, trees: Sequence[worktree_registry.ListedWorktree], *, notify: bool
) -> list[MergeConflict]:
    """Merge the worktrees pairwise in a temporary folder."""
    sides = database.read(lambda tx: _list_sides(tx, trees))
    with scratch_folder("forecast") as folder:
        trial = commits.MergeTrial(top, str(folder))
        states = [trial.state_of(tree) for tree in trees] if len(trees) > 1 else []
        conflicts = [
            MergeConflict(sides[one], sides[other], files[:MAX_FILES])
            for one, other in combinations(range(len(states)), 2)
            if (files := trial.conflicts(states[one], states[other]))
        ]
    if notify and conflicts:
        database.write(lambda tx: _notify_owners(tx, conflicts), repeatable=True)
    return conflicts


def _list_local_runs(tx: Tx) -> list[Run]:
    """Return the runs that have a process on this machine, oldest first.

    A run of another machine is not in a local worktree, even if its path is the same.
    """
    active: list[Run] = []
    while page := runs.list_active(tx, after=active[-1].id if active else ""):
        active += page
    return [run for run in active if run.host == process.host()]


def _list_sides(tx: Tx, trees: Sequence[worktree_registry.ListedWorktree]) -> list[ConflictSide]:
    """Return each worktree with its run; of several runs, the newest."""
    # Oldest first, so the newest run replaces the others.
    run_of = {_find_tree(trees, os.path.realpath(run.cwd)): run for run in _list_local_runs(tx)}
    return [
        ConflictSide(tree.folder, tree.branch, _find_owner(tx, run), run.id)
        if (run := run_of.get(tree)) is not None
        else ConflictSide(tree.folder, tree.branch, None, None)
        for tree in trees
    ]


def _find_owner(tx: Tx, run: Run) -> str:
    if run.agent_id is not None:
        try:
            return f"agent:{agents.get(tx, run.agent_id).name}"
        except NotFound:
            pass
    return f"session:{run.session_id}" if run.session_id else f"run:{run.id}"


def _notify_owners(tx: Tx, conflicts: list[MergeConflict]) -> None:
    """Notify both owners of each conflict, once for the same runs in the same worktrees."""
    for conflict, own, other in _both_sides(conflicts):
        if own.owner is not None and not own.owner.startswith("run:"):
            pair = [(side.folder, side.run_id) for side in (conflict.one, conflict.other)]
            key = sha256(msgspec.json.encode(pair)).hexdigest()[:32]
            other_owner = other.owner or "another user"
            mail.put_caused_by(
                tx,
                None,
                own.owner,
                {
                    "forecast": msgspec.to_builtins(conflict),
                    "text": f"Your changes in {own.folder} conflict with those of {other_owner} in "
                    f"{other.folder}: {', '.join(conflict.files[:10])}. Coordinate before you "
                    "merge.",
                },
                key=f"forecast:{key}",
            )


def _both_sides(
    conflicts: list[MergeConflict],
) -> Iterator[tuple[MergeConflict, ConflictSide, ConflictSide]]:
    for conflict in conflicts:
        yield conflict, conflict.one, conflict.other
        yield conflict, conflict.other, conflict.one
