"""Clearing away what races left on disk, and never anything that would be missed.

What is not committed stays. What no other branch has stays too, unless that is asked for, and then
its branch is kept. First it is only said what would be done.

Several stores may have one home folder. What no attempt of this store is known for is taken for an
orphan only where it is written down that this store made it (see `race_folders.Mark`).
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from corral.adapters import history, leftovers, pool, ports, process, worktrees
from corral.db.database import Database
from corral.domain.races import ops, selection
from corral.domain.races.model import Attempt, AttemptState, Race
from corral.domain.settings import ops as settings
from corral.kernel.errors import Ambiguous, Invalid, NotFound
from corral.services import worktree_cleanup
from corral.services.races import driver
from corral.services.races.folders import (
    Mark,
    drop_folder,
    mark_of,
    pool_folder,
    pool_of,
    ports_folder,
    races_folder,
)
from corral.services.worktree_cleanup import Leftover

PIECE = 500


class AttemptLeftover(Leftover, frozen=True, kw_only=True):
    """A worktree of an attempt; of an orphan only what its place says of where it came from."""

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
    """Every worktree of a race, or of all on this machine, with what is done about it."""
    found: list[AttemptLeftover] = []
    races: dict[str, Race] = {}
    for attempt in _attempts(database, race):
        if attempt.race_id not in races:
            races[attempt.race_id] = database.read(partial(ops.get, id=attempt.race_id))
        if races[attempt.race_id].host == process.host():
            found += _clean(database, races[attempt.race_id], attempt, confirm, unmerged)
    if orphans:
        found += [_reclaim(each, confirm) for each in orphaned(database)]
        found += _kept_for_nobody(database, confirm)
    root = races_folder() / race.id if race is not None else races_folder()
    found += _cut_short(str(root))
    if race is None:
        found += [_drop(each, pooled, confirm) for each in pool.pooled(str(pool_folder()))]
    return found if not confirm else _swept(found)


def _clean(
    database: Database, race: Race, attempt: Attempt, confirm: bool, unmerged: bool
) -> Iterator[AttemptLeftover]:
    """The worktree of an attempt, and those of its earlier tries that are still there."""
    for each in (*_earlier(attempt), attempt):
        left = _look(race, each, unmerged)
        if left.action == "gone" and each is not attempt:
            continue
        if confirm and left.action != "keep":
            left = _remove(database, race, each, left, is_last=each is attempt)
        yield left


def _earlier(attempt: Attempt) -> Iterator[Attempt]:
    """The earlier tries of an attempt, each in a worktree and on a branch of its own."""
    end = f"-{attempt.tries}"
    for tries in range(1, attempt.tries):
        again = f"-{tries}" if tries > 1 else ""
        yield replace(
            attempt,
            worktree=attempt.worktree.removesuffix(end) + again,
            branch=attempt.branch.removesuffix(end) + again,
            state=AttemptState.FAILED,
            ended_at=attempt.created_at,
            checked_tree=None,
        )


def _attempts(database: Database, race: Race | None) -> Iterator[Attempt]:
    if race is not None:
        for round in race.rounds:
            yield from (each for each in round.attempts if each.cleaned_at is None)
        return
    after = ""
    while page := database.read(partial(selection.in_place, after=after, limit=PIECE)):
        yield from page
        after = page[-1].worktree


def _look(race: Race, attempt: Attempt, unmerged: bool) -> AttemptLeftover:
    """What would become of the worktree of an attempt."""
    left = AttemptLeftover(
        worktree=attempt.worktree,
        bytes=leftovers.disk_use(attempt.worktree),
        race_id=attempt.race_id,
        attempt_id=attempt.id,
        branch=attempt.branch,
    )
    if attempt.is_open:
        return replace(left, reason=f"its attempt is {attempt.state}")
    left, state = worktree_cleanup.look_into(left, race.repository)
    if state is None:
        return left
    if state.missing:
        return replace(left, action="gone", reason=worktree_cleanup.GONE)
    why = _why_kept(attempt, state, unmerged)
    if why is not None:
        return replace(left, reason=why)
    why = worktree_cleanup.ELSEWHERE
    if state.unmerged:
        why = f"its commits stay on {attempt.branch}: {state.unmerged}"
    elif state.dirty:
        why = f"{worktree_cleanup.ELSEWHERE}, but for what its checks left"
    return replace(left, action="remove", reason=why)


def _why_kept(attempt: Attempt, state: worktrees.State, unmerged: bool) -> str | None:
    """What would be missed; what only the checks of an attempt left there would not."""
    if state.locked is not None:
        return f"it is locked ({state.locked or 'without a reason'})"
    if inside := [name for name in state.untracked if name.endswith("/")]:
        return f"repositories inside, of which no commit here has the work: {', '.join(inside)}"
    if state.dirty and driver.fingerprint(state) != attempt.checked_tree:
        return f"files in it that are in no commit: {len(state.changed)}"
    if state.unmerged and not unmerged:
        return f"commits that are on no other branch: {state.unmerged}"
    return None


def _remove(
    database: Database, race: Race, attempt: Attempt, left: AttemptLeftover, *, is_last: bool
) -> AttemptLeftover:
    """Remove a worktree that may go; its branch stays where it alone has commits."""
    if left.action == "remove":
        now = _look(race, attempt, unmerged=True)
        if now.action != "remove":
            return now
    removed = worktree_cleanup.remove(
        left,
        race.repository,
        delete_branch=not left.unmerged,
        # What only its checks left there was looked at above; nothing else may be dirty.
        despite={"dirty"} if left.uncommitted else (),
        pool=pool_of(database, race) if left.action == "remove" else None,
    )
    if removed.action == "removed":
        if left.action == "gone":
            leftovers.drop_branch(race.repository, attempt.branch)
        if is_last:
            database.write(lambda tx: selection.set_cleaned(tx, [attempt.id]))
        ports.give_back(ports_folder(), attempt.worktree)
    return removed


# -- what a crash left -----------------------------------------------------------------------------


def reclaim(database: Database) -> list[AttemptLeftover]:
    """Remove the orphans that nobody has touched for as long as the setting says, and of which all
    is elsewhere too, and what nobody took from the pool; let go of what repositories keep for races
    that are forgotten, where others have it too. Gives these."""
    keep_ms = database.read(lambda tx: int(settings.value(tx, "races.unused_ms")))
    before = database.clock.now() - keep_ms
    old = [each for each in orphaned(database) if _touched(each.folder) < before]
    found = _swept([_reclaim(each, confirm=True) for each in old])
    found += _kept_for_nobody(database, confirm=True)
    for entry in pool.pooled(str(pool_folder())):
        if entry.kept_at < before or not os.path.isdir(entry.repository):
            found.append(_drop(entry, may_go=True, confirm=True))
    pool.sweep(str(pool_folder()))
    # Those of races that were forgotten with their project, and of whichever store.
    ports.give_back_of(ports_folder(), lambda worktree: not os.path.isdir(worktree))
    return [left for left in found if left.action == "removed"]


def missing(database: Database) -> list[tuple[str, str]]:
    """Worktrees of attempts on this machine that are not there any more: the race, and where.

    An attempt that never began may never have had one. Whoever removes one says so right after, so
    it is asked twice.
    """
    return sorted(_missing(database) & _missing(database))


def _missing(database: Database) -> set[tuple[str, str]]:
    found = set()
    hosts: dict[str, str] = {}
    for attempt in _attempts(database, None):
        if attempt.started_at is None or os.path.isdir(attempt.worktree):
            continue
        if attempt.race_id not in hosts:
            race = _known_race(database, attempt.race_id)
            hosts[attempt.race_id] = race.host if race is not None else ""
        if hosts[attempt.race_id] == process.host():
            found.add((attempt.race_id, attempt.worktree))
    return found


class Orphan(leftovers.Orphan, frozen=True, kw_only=True):
    race_id: str
    attempt_id: str | None
    of_this_store: bool


def orphaned(database: Database) -> Iterator[Orphan]:
    """Worktrees below the folder of races that are in the place of no attempt, nor another store's;
    each with the attempt that it was made for, where that can be told."""
    known = set()
    for attempt in _attempts(database, None):
        known |= {attempt.worktree, *(each.worktree for each in _earlier(attempt))}
    with suppress(FileNotFoundError):
        for folder in sorted(os.scandir(races_folder()), key=lambda each: each.name):
            mark = mark_of(folder.path)
            if not folder.is_dir(follow_symlinks=False):
                continue
            if mark is not None and mark.store != database.url:
                continue
            of_race = _known_race(database, folder.name)
            repositories = [mark.repository] if mark else []
            if of_race is not None and of_race.repository not in repositories:
                repositories.append(of_race.repository)
            places = {} if of_race is None else _places(of_race)
            for each in leftovers.orphans(repositories, folder.path, known):
                if not os.path.basename(each.folder).startswith(leftovers.REMOVED):
                    yield Orphan(
                        folder=each.folder,
                        repository=each.repository,
                        branch=each.branch,
                        exists=each.exists,
                        race_id=folder.name,
                        attempt_id=places.get(each.folder),
                        of_this_store=mark is not None,
                    )


def _kept_for_nobody(database: Database, confirm: bool) -> Iterator[AttemptLeftover]:
    """What repositories keep for races that this store has forgotten; it goes where all of it is
    elsewhere too. The last of it takes the race's folder along."""
    for folder, race_id, mark in _marked(database):
        if _known_race(database, race_id) is not None:
            continue
        for name in history.kept(mark.repository, race_id):
            yield _let_go(mark.repository, race_id, name, confirm)
        if confirm:
            drop_folder(folder)


def _let_go(repository: str, race_id: str, name: str, confirm: bool) -> AttemptLeftover:
    ref = f"{history.KEPT}{name}"
    left = AttemptLeftover(worktree=ref, bytes=0, race_id=race_id)
    alone = history.kept_alone(repository, name)
    if alone:
        why = (
            f"nothing else in {repository} has its commits; `git branch NAME {ref}` there makes a "
            f"branch of them, `git update-ref -d {ref}` gives them up"
        )
        return replace(left, reason=why, unmerged=alone)
    left = replace(
        left,
        action="remove",
        reason=f"{repository} keeps it for a deleted race, and {worktree_cleanup.ELSEWHERE}",
    )
    if confirm and history.let_go(repository, name):
        return replace(left, action="removed")
    return left


def _marked(database: Database) -> Iterator[tuple[str, str, Mark]]:
    """The folders of races that this store made, with their races."""
    with suppress(FileNotFoundError):
        for folder in sorted(os.scandir(races_folder()), key=lambda each: each.name):
            mark = mark_of(folder.path)
            if mark is not None and mark.store == database.url:
                yield folder.path, folder.name, mark


def _known_race(database: Database, id: str) -> Race | None:
    with suppress(Ambiguous, Invalid, NotFound):
        found = database.read(partial(ops.get, id=id))
        return found if found.id == id else None
    return None


def _places(race: Race) -> dict[str, str]:
    """Whose each worktree of a race was, also those of earlier tries."""
    attempts = [attempt for round in race.rounds for attempt in round.attempts]
    return {
        each.worktree: attempt.id for attempt in attempts for each in (*_earlier(attempt), attempt)
    }


def _drop(entry: pool.Pooled, may_go: bool, confirm: bool) -> AttemptLeftover:
    """What is in the pool is told for the room that it takes; it may go at any time."""
    left = AttemptLeftover(
        worktree=entry.folder,
        action="remove" if may_go else "keep",
        reason=f"files for the next attempt in {entry.repository}",
        bytes=leftovers.disk_use(entry.folder),
    )
    if not (may_go and confirm):
        return left
    pool.drop(entry.folder)
    return replace(left, action="removed")


def _touched(folder: str) -> int:
    """When a folder was changed last, or what it has of git; 0: it is gone."""
    found = [0]
    for path in (folder, os.path.join(folder, ".git")):
        with suppress(OSError):
            found.append(os.lstat(path).st_mtime_ns // 1_000_000)
    return max(found)


def _reclaim(orphan: Orphan, confirm: bool) -> AttemptLeftover:
    left = AttemptLeftover(
        worktree=orphan.folder,
        reason="no attempt works in it; look at it and remove it yourself",
        bytes=leftovers.disk_use(orphan.folder),
        branch=orphan.branch,
        race_id=orphan.race_id,
        attempt_id=orphan.attempt_id,
    )
    if orphan.repository is None or not orphan.of_this_store:
        return left
    left, state = worktree_cleanup.look_into(left, orphan.repository)
    if state is None:
        return left
    if not state.clean:
        return replace(left, reason=f"no attempt works in it, but it holds: {state.why_kept}")
    left = replace(
        left, action="remove", reason=f"no attempt works in it, and {worktree_cleanup.ELSEWHERE}"
    )
    if not confirm:
        return left
    ours = (state.branch or "").startswith("corral/")
    return worktree_cleanup.remove(left, orphan.repository, delete_branch=ours)


def _cut_short(root: str) -> list[AttemptLeftover]:
    """What was judged and renamed already when its removal was cut short."""
    return [
        AttemptLeftover(
            worktree=folder,
            action="remove",
            reason="its removal was cut short",
            bytes=leftovers.disk_use(folder),
            race_id=os.path.basename(os.path.dirname(folder)),
        )
        for folder in leftovers.cut_short(root)
    ]


def _swept(found: list[AttemptLeftover]) -> list[AttemptLeftover]:
    """Finish what was cut short, and take away the folders of races that have become empty."""
    done = []
    pool.sweep(str(pool_folder()))
    for left in found:
        if os.path.basename(left.worktree).startswith(leftovers.REMOVED):
            leftovers.delete(left.worktree)
            left = replace(left, action="removed")
        if left.action == "removed" and left.race_id is not None:
            drop_folder(os.path.dirname(left.worktree))
        done.append(left)
    return done
