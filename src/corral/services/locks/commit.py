"""The commit helper: what its owner has locked or names, and nothing else."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from corral.adapters import commits, git
from corral.api.guard import Guard, InProject
from corral.api.locks import Locks
from corral.db.database import Database
from corral.domain.locks import resolve
from corral.domain.locks.model import Lock, LockState, Mode
from corral.kernel.errors import Held, Invalid, Refused
from corral.kernel.pagination import every
from corral.kernel.path_patterns import meet
from corral.kernel.text import MAX_TEXT, clean_text

SHOWN = 15


class Committed(msgspec.Struct, frozen=True):
    """A commit that was made, or would be."""

    commit: str | None
    """None when it was only asked what would be in it."""
    files: list[str]
    left: list[str]
    """Changed too, and left out."""
    unlocked: list[str]
    """In the commit because they were named; nobody has locked them."""


def commit(
    database: Database,
    folder: str,
    message: str,
    files: Sequence[str],
    owner: str,
    run: str | None,
    dry_run: bool,
) -> Committed:
    guard, locks = Guard(database), Locks(database)
    text = _signed(message, owner, run)
    top = git.worktree_of(os.path.realpath(folder))
    if top is None:
        raise Refused(f"{folder} is in no git repository.", dir=folder)
    place = guard.place_of(top)
    changes = _changes(top)
    here = {name: _spelled(place, name) for name in changes}
    mine = [lock.path for lock in _held(locks, owner, place) if lock.run_id in (None, run)]
    named = {file: _pattern(place, top, os.path.join(folder, file), here) for file in files}
    for file, pattern in named.items():
        if not any(meet(pattern, path) for path in here.values()):
            raise Refused(f"{file} has no change that could be committed.", file=file)
    locked = {name for name, path in here.items() if any(meet(lock, path) for lock in mine)}
    chosen = sorted(
        locked | {name for name, path in here.items() if any(meet(n, path) for n in named.values())}
    )
    _refuse_others(guard, top, chosen or [*here], owner, run)
    if not chosen:
        raise Refused(
            "Nothing that you hold has changed; lock what you change, or name the files."
            if mine
            else "You hold no lock here and named no file; lock what you change, or name it.",
            changed=sorted(changes)[:SHOWN],
        )
    made = None
    if not dry_run:
        new = [name for name in chosen if changes[name] == "??"]
        made = commits.commit(top, text, chosen, new=new, environment=_as(owner, database))
        for name in chosen:
            with suppress(Invalid):  # a link that leads out of the project
                locks.touch(place.project.id, here[name], owner)
    left = sorted({*changes} - {*chosen})
    return Committed(
        made,
        [git.storable(name) for name in chosen],
        [git.storable(name) for name in left],
        [git.storable(name) for name in chosen if name not in locked],
    )


def _changes(top: str) -> dict[str, str]:
    changes = git.changed(top)
    torn = [name for name, how in changes.items() if "U" in how or how in ("AA", "DD")]
    if torn:
        raise Refused(f"{torn[0]} is not merged yet; resolve it first.", files=torn)
    return changes


def _pattern(place: InProject, top: str, path: str, here: Mapping[str, str]) -> str:
    """What somebody named, as it is known to the locks of the project."""
    name = os.path.relpath(os.path.join(top, path), top)
    if name in here:
        return here[name]
    there = os.path.join(place.path, git.storable(name))
    return resolve.pattern_of(place.project, there, lockable=False)


def _spelled(place: InProject, name: str) -> str:
    """A file of this worktree, as it is known to the locks of the project."""
    there = os.path.join(place.path, git.storable(name))
    found = resolve.pattern_as_spelled(place.project, there)
    assert found is not None, "the project is around the worktree"
    return found


def _held(locks: Locks, owner: str, place: InProject) -> list[Lock]:
    return [
        lock
        for lock in every(locks.list, agent=owner, limit=200)
        if lock.project_id == place.project.id
        and lock.state is LockState.HELD
        and lock.mode is Mode.EXCLUSIVE
    ]


def _refuse_others(
    guard: Guard, top: str, names: Sequence[str], owner: str, run: str | None
) -> None:
    names = [git.storable(name) for name in names]
    if found := guard.commit_in_the_way(top, names, owner, run=run):
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise Held(
            f"{found[0].text}{more} Nothing was committed.",
            files=[one.path for one in found],
            owner=found[0].lock.owner,
        )


def _as(owner: str, database: Database) -> dict[str, str]:
    """For the repository's own hooks: who commits, and where the locks are."""
    kind, _, name = owner.partition(":")
    who = {"CORRAL_AGENT": name} if kind == "agent" else {}
    return {"CORRAL_STORE": database.address, **who}


def _signed(message: str, owner: str, run: str | None) -> str:
    """The message with who made it, in lines that git tools read."""
    text = clean_text(message, "The message", most=MAX_TEXT).rstrip()
    lines = [f"Corral-Owner: {owner}", *([f"Corral-Run: {run}"] if run else [])]
    return "\n".join([text, "", *lines])
