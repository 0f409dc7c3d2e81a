"""Attempts beside each other: how far they are, and in what they differ."""

from contextlib import suppress

import msgspec

from corral.adapters import git, history, process
from corral.adapters.history import Change, FileDiff
from corral.domain.races import refs
from corral.domain.races.model import Attempt, AttemptState, Race
from corral.kernel.errors import Refused


class SoFar(msgspec.Struct, frozen=True):
    """How far an attempt is."""

    attempt_id: str
    number: int
    state: AttemptState
    agent: str | None
    elapsed_ms: int | None
    cost_micros: int | None
    files: int | None
    insertions: int | None
    deletions: int | None
    reason: str | None


def so_far(race: Race, now: int) -> list[SoFar]:
    """How far the attempts of the latest round are; what they changed is looked up where they
    work, if that is on this machine."""
    round = race.latest
    return [_so_far(race, round.base_commit, attempt, now) for attempt in round.attempts]


def _so_far(race: Race, base: str, attempt: Attempt, now: int) -> SoFar:
    files, added, removed = attempt.files, attempt.insertions, attempt.deletions
    if attempt.state is AttemptState.RUNNING and race.host == process.host():
        with suppress(Refused, OSError):
            now_there = history.differing(race.repository, attempt.worktree, base)
            files, added, removed = now_there.files, now_there.added, now_there.removed
    elapsed = None
    if attempt.started_at is not None:
        elapsed = (attempt.ended_at or now) - attempt.started_at
    return SoFar(
        attempt_id=attempt.id,
        number=attempt.number,
        state=attempt.state,
        agent=attempt.agent,
        elapsed_ms=elapsed,
        cost_micros=attempt.cost_micros,
        files=files,
        insertions=added,
        deletions=removed,
        reason=attempt.reason,
    )


def changes(race: Race, one: str, other: str | None) -> list[Change]:
    """Which files an attempt changed, or in which two attempts differ."""
    old, new = _sides(race, one, other)
    return [_storable(change) for change in history.changes(race.repository, old, new)]


def diff(race: Race, one: str, other: str | None, file: str) -> FileDiff:
    """How an attempt changed a file, or how two attempts differ in it."""
    old, new = _sides(race, one, other)
    # A name that is no text is given as it was shown, so it is looked for under that.
    names = {
        git.storable(each.name): each.name for each in history.changes(race.repository, old, new)
    }
    found = history.diff(race.repository, old, new, names.get(file, file))
    return msgspec.structs.replace(found, change=_storable(found.change))


def _storable(change: Change) -> Change:
    old = git.storable(change.old_name) if change.old_name is not None else None
    return msgspec.structs.replace(change, name=git.storable(change.name), old_name=old)


def _sides(race: Race, one: str, other: str | None) -> tuple[str, str]:
    """The two commits that are compared: base and attempt, or attempt and attempt."""
    first = refs.find_attempt(race, one)
    if other is None:
        round = next(each for each in race.rounds if each.id == first.round_id)
        return round.base_commit, _commit(first)
    return _commit(first), _commit(refs.find_attempt(race, other))


def _commit(attempt: Attempt) -> str:
    if attempt.commit is None:
        raise Refused(
            f"Attempt {attempt.number} is {attempt.state} and has no commit yet; look at "
            f"{attempt.worktree}.",
            attempt=attempt.id,
            state=attempt.state,
        )
    return attempt.commit
