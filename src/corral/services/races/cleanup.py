"""Clean-up of worktrees: removing what races left on disk, without losing work.

A worktree with uncommitted changes is always kept. A worktree whose commits are on no other branch
is kept too, unless the caller asks for its removal; then its branch stays. Without `confirm`, the
functions only report what they would do. `orphans` finds the worktrees without an attempt.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from corral import config
from corral.adapters.git import git_history
from corral.adapters.processes import ports, process
from corral.adapters.worktrees import worktree_leftovers, worktree_pool, worktrees
from corral.db.database import Database
from corral.domain.races import ops, queries
from corral.domain.races.model import Attempt, Race
from corral.domain.settings import ops as settings
from corral.services import worktree_cleanup
from corral.services.races.orphans import (
    RaceOrphan,
    find_race,
    iter_attempts,
    iter_earlier_tries,
    iter_orphans,
)
from corral.services.races.paths import (
    RaceMarker,
    get_pool,
    judging_folder,
    pool_folder,
    ports_folder,
    read_marker,
    remove_race_folder,
)
from corral.services.worktree_cleanup import Leftover

PAGE_SIZE = 500


class AttemptLeftover(Leftover, frozen=True, kw_only=True):
    """A worktree of an attempt. For an orphan, the ids are derived from its path, if possible.

    For a pinned commit of a deleted race, `worktree` is the git ref that keeps it.
    """

    race_id: str | None = None
    attempt_id: str | None = None


def clean(
    database: Database,
    race: Race | None,
    *,
    confirm: bool,
    unmerged: bool,
    orphans: bool,
    pooled: bool,
) -> list[AttemptLeftover]:
    """Clean the worktrees of a race, or of all races on this machine; returns each with its action.

    `unmerged` allows the removal of worktrees with commits that are on no other branch. `orphans`
    includes worktrees and pinned commits without an attempt. `pooled` allows the removal of pooled
    files.
    """
    leftovers: list[AttemptLeftover] = []
    races: dict[str, Race] = {}
    for attempt in iter_attempts(database, race):
        if attempt.race_id not in races:
            races[attempt.race_id] = database.read(partial(queries.get, id=attempt.race_id))
        if races[attempt.race_id].host == process.host():
            leftovers += _clean_attempt(
                database, races[attempt.race_id], attempt, confirm, unmerged
            )
    if orphans:
        leftovers += [_clean_orphan(orphan, confirm) for orphan in iter_orphans(database)]
    root = config.races_folder() / race.id if race is not None else config.races_folder()
    leftovers += _list_interrupted(str(root))
    if race is None:
        leftovers += [
            _clean_pooled(entry, pooled, confirm)
            for entry in worktree_pool.list_entries(str(pool_folder()))
        ]
    if confirm:
        leftovers = _finish_removals(leftovers)
    # Not part of `_finish_removals`, which removes the folders around worktrees.
    return leftovers + ([*_clean_pinned_commits(database, confirm)] if orphans else [])


# -- attempts ------------------------------------------------------------------------------------


def _clean_attempt(
    database: Database, race: Race, attempt: Attempt, confirm: bool, unmerged: bool
) -> Iterator[AttemptLeftover]:
    """Clean the worktree of an attempt, and those of its earlier tries that still exist."""
    for tried in (*iter_earlier_tries(attempt), attempt):
        leftover = _plan_removal(race, tried, unmerged)
        if leftover.action == "gone" and tried is not attempt:
            continue
        if confirm and leftover.action != "keep":
            leftover = _remove_worktree(database, race, tried, leftover, is_last=tried is attempt)
        yield leftover


def _plan_removal(race: Race, attempt: Attempt, unmerged: bool) -> AttemptLeftover:
    """Return what to do with the worktree of an attempt, and why."""
    leftover = AttemptLeftover(
        worktree=attempt.worktree,
        bytes=worktree_leftovers.measure_disk_usage(attempt.worktree),
        race_id=attempt.race_id,
        attempt_id=attempt.id,
        branch=attempt.branch,
    )
    if attempt.is_open:
        return replace(leftover, reason=f"its attempt is {attempt.state}")
    leftover, state = worktree_cleanup.inspect(leftover, race.repository)
    if state is None:
        return leftover
    if state.missing:
        return replace(leftover, action="gone", reason=worktree_cleanup.GONE)
    why = _explain_kept(attempt, state, unmerged)
    if why is not None:
        return replace(leftover, reason=why)
    why = worktree_cleanup.NOTHING_UNIQUE
    if state.unmerged:
        why = f"its commits stay on {attempt.branch}: {state.unmerged}"
    elif state.dirty:
        why = f"{worktree_cleanup.NOTHING_UNIQUE}, except for files that its checks left"
    return replace(leftover, action="remove", reason=why)


def _explain_kept(attempt: Attempt, state: worktrees.WorktreeState, unmerged: bool) -> str | None:
    """Return the work that a removal would lose; None when there is none.

    Files that only the checks of the attempt left do not count.
    """
    if state.locked is not None:
        return f"it is locked ({state.locked or 'without a reason'})"
    if nested := [name for name in state.untracked if name.endswith("/")]:
        return f"it contains other repositories, whose work is in no commit: {', '.join(nested)}"
    if state.dirty and worktrees.fingerprint(state) != attempt.checked_tree:
        return f"it has uncommitted files: {len(state.changed)}"
    if state.unmerged and not unmerged:
        return f"it has commits that are on no other branch: {state.unmerged}"
    return None


def _remove_worktree(
    database: Database, race: Race, attempt: Attempt, leftover: AttemptLeftover, *, is_last: bool
) -> AttemptLeftover:
    """Remove a worktree; its branch stays when it has commits of its own."""
    if leftover.action == "remove":
        # Inspect again: work may have appeared since the first inspection.
        current = _plan_removal(race, attempt, unmerged=True)
        if current.action != "remove":
            return current
    removed = worktree_cleanup.remove(
        leftover,
        race.repository,
        delete_branch=not leftover.unmerged,
        # `_plan_removal` made sure that only the checks left uncommitted files.
        despite={"dirty"} if leftover.uncommitted else (),
        pool=get_pool(database, race) if leftover.action == "remove" else None,
    )
    if removed.action == "removed":
        if leftover.action == "gone":
            worktree_leftovers.delete_unused_branch(race.repository, attempt.branch)
        if is_last:
            database.write(lambda tx: ops.mark_cleaned(tx, [attempt.id]))
        ports.release_ports(ports_folder(), attempt.worktree)
    return removed


# -- orphans -------------------------------------------------------------------------------------


def reclaim(database: Database) -> list[AttemptLeftover]:
    """Remove worktrees, ports and pins unused for `races.worktree_retention_ms`; returns them.

    Removes orphaned worktrees without work of their own, pooled files, ports, diffs for judges, and
    pinned commits of deleted races that other branches have too.
    """
    retention_ms = database.read(
        lambda tx: int(settings.get_value(tx, "races.worktree_retention_ms"))
    )
    before = database.clock.now() - retention_ms
    old = [orphan for orphan in iter_orphans(database) if _get_modified_at(orphan.folder) < before]
    leftovers = _finish_removals([_clean_orphan(orphan, confirm=True) for orphan in old])
    leftovers += _clean_pinned_commits(database, confirm=True)
    for entry in worktree_pool.list_entries(str(pool_folder())):
        if entry.added_at < before or not os.path.isdir(entry.repository):
            leftovers.append(_clean_pooled(entry, removable=True, confirm=True))
    worktree_pool.delete_abandoned(str(pool_folder()))
    _delete_judging_folders(before)
    # Ports of races that were deleted with their project, of any store.
    ports.release_matching(ports_folder(), lambda worktree: not os.path.isdir(worktree))
    return [leftover for leftover in leftovers if leftover.action == "removed"]


def _clean_orphan(orphan: RaceOrphan, confirm: bool) -> AttemptLeftover:
    leftover = AttemptLeftover(
        worktree=orphan.folder,
        reason="it belongs to no attempt; inspect it and remove it by hand",
        bytes=worktree_leftovers.measure_disk_usage(orphan.folder),
        branch=orphan.branch,
        race_id=orphan.race_id,
        attempt_id=orphan.attempt_id,
    )
    if orphan.repository is None or not orphan.of_this_store:
        return leftover
    leftover, state = worktree_cleanup.inspect(leftover, orphan.repository)
    if state is None:
        return leftover
    if not state.clean:
        return replace(
            leftover, reason=f"it belongs to no attempt, but has {state.removal_blockers}"
        )
    leftover = replace(
        leftover,
        action="remove",
        reason=f"it belongs to no attempt, and {worktree_cleanup.NOTHING_UNIQUE}",
    )
    if not confirm:
        return leftover
    is_own_branch = (state.branch or "").startswith("corral/")
    return worktree_cleanup.remove(leftover, orphan.repository, delete_branch=is_own_branch)


def _delete_judging_folders(before: int) -> None:
    """Delete the diffs of judges whose verdict was never recorded, or whose race was deleted."""
    folder = judging_folder()
    for race in folder.iterdir() if folder.is_dir() else ():
        if _get_modified_at(str(race)) < before:
            worktree_leftovers.delete_tree(str(race))


def _get_modified_at(folder: str) -> int:
    """Return when a folder or its `.git` was last modified; 0 when it is gone."""
    times = [0]
    for path in (folder, os.path.join(folder, ".git")):
        with suppress(OSError):
            times.append(os.lstat(path).st_mtime_ns // 1_000_000)
    return max(times)


# -- pinned commits ------------------------------------------------------------------------------


def _clean_pinned_commits(database: Database, confirm: bool) -> Iterator[AttemptLeftover]:
    """Clean the pinned commits of races that were deleted from this store.

    With the last one, the race's folder is removed too.
    """
    for folder, race_id, marker in _iter_marked_folders(database):
        if find_race(database, race_id) is not None:
            continue
        for name in git_history.list_kept(marker.repository, race_id):
            yield _unpin_commit(marker.repository, race_id, name, confirm)
        if confirm:
            remove_race_folder(folder)


def _unpin_commit(repository: str, race_id: str, name: str, confirm: bool) -> AttemptLeftover:
    """Remove a pin unless it alone keeps its commits reachable."""
    ref = f"{git_history.KEPT_REFS_PREFIX}{name}"
    leftover = AttemptLeftover(worktree=ref, bytes=0, race_id=race_id)
    unique = git_history.count_only_kept(repository, name)
    if unique:
        why = (
            f"no other ref in {repository} has its commits; keep them as a branch with `git branch "
            f"NAME {ref}`, or delete them with `git update-ref -d {ref}`"
        )
        return replace(leftover, reason=why, unmerged=unique)
    leftover = replace(
        leftover,
        action="remove",
        reason=f"{repository} keeps it for a deleted race, and {worktree_cleanup.NOTHING_UNIQUE}",
    )
    if confirm and git_history.release_commit(repository, name):
        return replace(leftover, action="removed")
    return leftover


def _iter_marked_folders(database: Database) -> Iterator[tuple[str, str, RaceMarker]]:
    """Yield the race folders that this store created, with the race's id and the marker."""
    with suppress(FileNotFoundError):
        for folder in sorted(os.scandir(config.races_folder()), key=lambda entry: entry.name):
            marker = read_marker(folder.path)
            if marker is not None and marker.store == database.url:
                yield folder.path, folder.name, marker


# -- pooled files and interrupted removals -------------------------------------------------------


def _clean_pooled(
    entry: worktree_pool.PoolEntry, removable: bool, confirm: bool
) -> AttemptLeftover:
    """Report pooled files for the space they use; they can be removed at any time."""
    leftover = AttemptLeftover(
        worktree=entry.folder,
        action="remove" if removable else "keep",
        reason=f"files for the next attempt in {entry.repository}",
        bytes=worktree_leftovers.measure_disk_usage(entry.folder),
    )
    if not (removable and confirm):
        return leftover
    worktree_pool.delete_entry(entry.folder)
    return replace(leftover, action="removed")


def _list_interrupted(root: str) -> list[AttemptLeftover]:
    """Return worktrees that were inspected and renamed for removal before a crash."""
    return [
        AttemptLeftover(
            worktree=folder,
            action="remove",
            reason="its removal was interrupted",
            bytes=worktree_leftovers.measure_disk_usage(folder),
            race_id=os.path.basename(os.path.dirname(folder)),
        )
        for folder in worktree_leftovers.find_interrupted_removals(root)
    ]


def _finish_removals(leftovers: list[AttemptLeftover]) -> list[AttemptLeftover]:
    """Finish interrupted removals, and remove the folders of races that became empty."""
    swept = []
    worktree_pool.delete_abandoned(str(pool_folder()))
    for leftover in leftovers:
        if os.path.basename(leftover.worktree).startswith(worktree_leftovers.REMOVAL_PREFIX):
            worktree_leftovers.delete_tree(leftover.worktree)
            leftover = replace(leftover, action="removed")
        if leftover.action == "removed" and leftover.race_id is not None:
            remove_race_folder(os.path.dirname(leftover.worktree))
        swept.append(leftover)
    return swept
