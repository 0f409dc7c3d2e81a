"""Committing only the files that the caller has locked or names."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from corral.adapters.git import commits, git
from corral.db.database import Database
from corral.domain.locks import resolve, touches
from corral.domain.locks.model import Lock, LockMode, LockState
from corral.kernel.errors import Held, Invalid, Refused
from corral.kernel.pagination import iter_all
from corral.kernel.path_patterns import can_overlap
from corral.kernel.validation import MAX_TEXT, check_text
from corral.services.locks.acquisition import list_locks
from corral.services.locks.project_paths import (
    ProjectPath,
    find_commit_conflicts,
    find_project_path,
)

MAX_SHOWN = 15


class CommitResult(msgspec.Struct, frozen=True):
    """A commit that was made, or that a dry run would make."""

    commit: str | None
    """None for a dry run."""
    files: list[str]
    left: list[str]
    """Changed files that are not in the commit."""
    unlocked: list[str]
    """Files in the commit that were named but that the caller has not locked."""


def commit(
    database: Database,
    folder: str,
    message: str,
    files: Sequence[str],
    owner: str,
    run: str | None,
    dry_run: bool,
) -> CommitResult:
    """Commit the changed files of a worktree that `owner` has locked or that are in `files`.

    Raises Held when another owner has locked one of them, and Refused when there is nothing to
    commit. Records the committed files as touched by the owner.
    """
    text = _add_trailers(message, owner, run)
    folder = os.path.realpath(folder)  # the paths of `files` are compared with the real `top`
    top = git.find_worktree_root(folder)
    if top is None:
        raise Refused(f"{folder} is not in a git repository.", dir=folder)
    location = find_project_path(database, top)
    changes = _list_changes(top)
    lock_paths = {name: _get_lock_path(location, name) for name in changes}
    held = [
        lock.path for lock in _list_held(database, owner, location) if lock.run_id in (None, run)
    ]
    locked = _match_names(lock_paths, held)
    chosen = sorted(locked | _find_named(location, top, folder, files, lock_paths))
    _require_unlocked_by_others(database, top, chosen or [*lock_paths], owner, run)
    if not chosen:
        raise Refused(
            "No file that you have locked has changed. Lock the files that you change, or name "
            "them."
            if held
            else "You have no locks here and named no files. Lock the files that you change, or "
            "name them.",
            changed=sorted(changes)[:MAX_SHOWN],
        )
    commit_id: str | None = None
    if not dry_run:
        new = [name for name in chosen if changes[name] == "??"]
        commit_id = commits.commit_files(
            top, text, chosen, new=new, environment=_build_hook_env(owner, database)
        )
        _record_touches(database, location, owner, [lock_paths[name] for name in chosen])
    left = sorted({*changes} - {*chosen})
    return CommitResult(
        commit_id,
        [git.decode_name(name) for name in chosen],
        [git.decode_name(name) for name in left],
        [git.decode_name(name) for name in chosen if name not in locked],
    )


def _find_named(
    location: ProjectPath,
    top: str,
    folder: str,
    files: Sequence[str],
    lock_paths: Mapping[str, str],
) -> set[str]:
    """Return the changed files that the caller named; raises Refused for an unchanged one."""
    named: set[str] = set()
    for file in files:
        pattern = _resolve_lock_pattern(location, top, os.path.join(folder, file), lock_paths)
        matches = _match_names(lock_paths, [pattern])
        if not matches:
            raise Refused(f"{file} has no changes to commit.", file=file)
        named |= matches
    return named


def _match_names(lock_paths: Mapping[str, str], patterns: Sequence[str]) -> set[str]:
    """Return the names whose lock path one of the patterns covers."""
    return {
        name
        for name, path in lock_paths.items()
        if any(can_overlap(pattern, path) for pattern in patterns)
    }


def _record_touches(
    database: Database, location: ProjectPath, owner: str, paths: Sequence[str]
) -> None:
    for path in paths:
        with suppress(Invalid):  # a symlink that leads out of the project
            database.write(
                partial(touches.record_touch, project=location.project.id, path=path, agent=owner)
            )


def _list_changes(top: str) -> dict[str, str]:
    """Return the changed files with their git status. Raises Refused for unmerged files."""
    changes = git.list_changes(top)
    unmerged = [name for name, status in changes.items() if "U" in status or status in ("AA", "DD")]
    if unmerged:
        raise Refused(f"{unmerged[0]} has merge conflicts. Resolve them first.", files=unmerged)
    return changes


def _resolve_lock_pattern(
    location: ProjectPath, top: str, absolute_path: str, lock_paths: Mapping[str, str]
) -> str:
    """Return the lock pattern for a path that the caller named."""
    name = os.path.relpath(absolute_path, top)
    if name in lock_paths:
        return lock_paths[name]
    project_path = os.path.join(location.path, git.decode_name(name))
    return resolve.resolve_pattern(location.project, project_path, lockable=False)


def _get_lock_path(location: ProjectPath, name: str) -> str:
    """Return the lock path of a file in this worktree."""
    project_path = os.path.join(location.path, git.decode_name(name))
    path = resolve.to_literal_pattern(location.project, project_path)
    assert path is not None, "the worktree is inside the project"
    return path


def _list_held(database: Database, owner: str, location: ProjectPath) -> list[Lock]:
    return [
        lock
        for lock in iter_all(partial(list_locks, database), agent=owner, limit=200)
        if lock.project_id == location.project.id
        and lock.state is LockState.HELD
        and lock.mode is LockMode.EXCLUSIVE
    ]


def _require_unlocked_by_others(
    database: Database, top: str, names: Sequence[str], owner: str, run: str | None
) -> None:
    names = [git.decode_name(name) for name in names]
    if conflicts := find_commit_conflicts(database, top, names, owner, run=run):
        more = f" (and {len(conflicts) - 1} more)" if len(conflicts) > 1 else ""
        raise Held(
            f"{conflicts[0].text}{more} Nothing was committed.",
            files=[conflict.path for conflict in conflicts],
            owner=conflicts[0].lock.owner,
        )


def _build_hook_env(owner: str, database: Database) -> dict[str, str]:
    """Return the environment for the repository's hooks: the committer and the store."""
    kind, _, name = owner.partition(":")
    agent = {"CORRAL_AGENT": name} if kind == "agent" else {}
    return {"CORRAL_STORE": database.address, **agent}


def _add_trailers(message: str, owner: str, run: str | None) -> str:
    """Return the commit message with git trailers for the owner and the run."""
    text = check_text(message, "The message", max_bytes=MAX_TEXT).rstrip()
    trailers = [f"Corral-Owner: {owner}", *([f"Corral-Run: {run}"] if run else [])]
    return "\n".join([text, "", *trailers])
