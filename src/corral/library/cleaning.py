"""Clearing away what races left on disk, and never anything that would be missed.

What is not committed stays. What no other branch has stays too, unless that is asked for, and then
its branch is kept. First it is only said what would be done.
"""

from collections.abc import Iterator
from functools import partial
from typing import Literal

import msgspec

from corral.adapters import leftovers, ports, process, worktrees
from corral.db.database import Database
from corral.kernel.errors import Refused
from corral.library import racing
from corral.rooms.races import choosing, ops
from corral.rooms.races.model import Attempt, AttemptState, Race

PIECE = 500


class Place(msgspec.Struct, frozen=True):
    """A worktree, what would become of it or became of it, and why."""

    worktree: str
    action: Literal["remove", "keep", "removed", "gone"]
    reason: str
    bytes: int
    race_id: str | None = None
    attempt_id: str | None = None
    branch: str | None = None
    uncommitted: int = 0
    unmerged: int = 0


def clean(
    database: Database, race: Race | None, *, confirm: bool, unmerged: bool, orphans: bool
) -> list[Place]:
    """Every worktree of a race, or of all on this machine, with what is done about it."""
    found: list[Place] = []
    races: dict[str, Race] = {}
    for attempt in _attempts(database, race):
        if attempt.race_id not in races:
            races[attempt.race_id] = database.read(partial(ops.get, id=attempt.race_id))
        if races[attempt.race_id].host == process.host():
            found += _clean(database, races[attempt.race_id], attempt, confirm, unmerged)
    if orphans:
        found += _orphans(database, confirm)
    return found


def _clean(
    database: Database, race: Race, attempt: Attempt, confirm: bool, unmerged: bool
) -> Iterator[Place]:
    """The worktree of an attempt, and those of its earlier tries that are still there."""
    for each in (*_earlier(attempt), attempt):
        place = _look(race, each, unmerged)
        if place.action == "gone" and each is not attempt:
            continue
        if confirm and place.action != "keep":
            place = _remove(database, race, each, place, is_last=each is attempt)
        yield place


def _earlier(attempt: Attempt) -> Iterator[Attempt]:
    """The earlier tries of an attempt, each in a worktree and on a branch of its own."""
    end = f"-{attempt.tries}"
    for tries in range(1, attempt.tries):
        again = f"-{tries}" if tries > 1 else ""
        yield msgspec.structs.replace(
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
    while page := database.read(partial(choosing.in_place, after=after, limit=PIECE)):
        yield from page
        after = page[-1].worktree


def _look(race: Race, attempt: Attempt, unmerged: bool) -> Place:
    """What would become of the worktree of an attempt."""
    if attempt.is_open:
        return _place(attempt, "keep", f"its attempt is {attempt.state}", None)
    state = worktrees.state(race.repository, attempt.worktree)
    if state.missing:
        return _place(attempt, "gone", "it is not there any more", state)
    if state.locked is not None:
        return _place(
            attempt, "keep", f"it is locked ({state.locked or 'without a reason'})", state
        )
    left = racing.fingerprint(state)
    if left is not None and left != attempt.checked_tree:
        count = len(state.uncommitted) + len(state.untracked)
        return _place(attempt, "keep", f"{count} files in it are in no commit", state)
    if state.unmerged and not unmerged:
        return _place(
            attempt, "keep", f"commits that are on no other branch: {state.unmerged}", state
        )
    why = "all of it is elsewhere too"
    if state.unmerged:
        why = f"{state.unmerged} commits stay on {attempt.branch}"
    elif left is not None:
        why = "all of it is elsewhere too, but for what its checks left"
    return _place(attempt, "remove", why, state)


def _place(
    attempt: Attempt,
    action: Literal["remove", "keep", "removed", "gone"],
    reason: str,
    state: worktrees.State | None,
) -> Place:
    return Place(
        worktree=attempt.worktree,
        action=action,
        reason=reason,
        bytes=leftovers.disk_use(attempt.worktree),
        race_id=attempt.race_id,
        attempt_id=attempt.id,
        branch=attempt.branch,
        uncommitted=len(state.uncommitted) + len(state.untracked) if state else 0,
        unmerged=state.unmerged if state else 0,
    )


def _remove(
    database: Database, race: Race, attempt: Attempt, place: Place, *, is_last: bool
) -> Place:
    """Remove a worktree that may go; its branch stays where it alone has commits."""
    # What only its checks left there was looked at above; nothing else may be dirty.
    despite: set[worktrees.Loss] = {"dirty"} if place.uncommitted else set()
    if place.action == "remove":
        now = _look(race, attempt, unmerged=True)
        if now.action != "remove":
            return now
        try:
            worktrees.remove(
                race.repository,
                attempt.worktree,
                delete_branch=not place.unmerged,
                despite=despite,
            )
        except Refused as error:
            return msgspec.structs.replace(place, action="keep", reason=error.message)
    else:
        worktrees.remove(race.repository, attempt.worktree)
    if is_last:
        database.write(lambda tx: choosing.set_cleaned(tx, [attempt.id]))
        ports.give_back(racing.ports_folder(), attempt.id)
    return msgspec.structs.replace(place, action="removed")


def _orphans(database: Database, confirm: bool) -> list[Place]:
    """Worktrees below the folder of races of which no attempt is known."""
    known, repositories = set(), set()
    for attempt in _attempts(database, None):
        known |= {attempt.worktree, *(each.worktree for each in _earlier(attempt))}
    after: str | None = None
    while True:
        page = database.read(partial(ops.list_races, after=after, limit=PIECE))
        repositories |= {race.repository for race in page.items if race.host == process.host()}
        after = page.next
        if after is None:
            break
    root = str(racing.races_folder())
    found = []
    for orphan in leftovers.orphans(sorted(repositories), root, known):
        place = Place(
            worktree=orphan.folder,
            action="keep",
            reason="no attempt is known for it; look at it and remove it yourself",
            bytes=leftovers.disk_use(orphan.folder),
            branch=orphan.branch,
        )
        found.append(_reclaim(orphan, place, confirm) if orphan.repository else place)
    return found


def _reclaim(orphan: leftovers.Orphan, place: Place, confirm: bool) -> Place:
    assert orphan.repository is not None
    state = worktrees.state(orphan.repository, orphan.folder)
    count = len(state.uncommitted) + len(state.untracked)
    place = msgspec.structs.replace(place, uncommitted=count, unmerged=state.unmerged)
    if not state.missing and not state.clean:
        return msgspec.structs.replace(place, reason=state.why_kept or place.reason)
    place = msgspec.structs.replace(
        place, action="remove", reason="no attempt is known for it, and all of it is elsewhere too"
    )
    if not confirm:
        return place
    worktrees.remove(orphan.repository, orphan.folder, delete_branch=False)
    return msgspec.structs.replace(place, action="removed")
