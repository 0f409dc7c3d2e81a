"""Progress of attempts, and diffs between them."""

from contextlib import suppress

import msgspec

from corral.adapters.git import git, git_history
from corral.adapters.git.git_history import FileChange, FileDiff
from corral.adapters.processes import process
from corral.domain.races import refs
from corral.domain.races.model import Attempt, AttemptState, Race
from corral.kernel.errors import Refused


class AttemptProgress(msgspec.Struct, frozen=True):
    """The progress of an attempt."""

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


def list_progress(race: Race, now: int) -> list[AttemptProgress]:
    """Return the progress of the attempts of the latest round.

    Counts the changes of running attempts in their worktrees, if those are on this machine.
    """
    round = race.latest
    return [_measure_progress(race, round.base_commit, attempt, now) for attempt in round.attempts]


def _measure_progress(race: Race, base: str, attempt: Attempt, now: int) -> AttemptProgress:
    files, added, removed = attempt.files, attempt.insertions, attempt.deletions
    if attempt.state is AttemptState.RUNNING and race.host == process.host():
        with suppress(Refused, OSError):
            size = git_history.diff_stat_of_worktree(race.repository, attempt.worktree, base)
            files, added, removed = size.files, size.added, size.removed
    elapsed = None
    if attempt.started_at is not None:
        elapsed = (attempt.ended_at or now) - attempt.started_at
    return AttemptProgress(
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


def list_changes(race: Race, one: str, other: str | None) -> list[FileChange]:
    """List the files that an attempt changed, or in which two attempts differ."""
    old, new = _resolve_sides(race, one, other)
    return [
        _make_storable(change) for change in git_history.list_changes(race.repository, old, new)
    ]


def diff(race: Race, one: str, other: str | None, file: str) -> FileDiff:
    """Return the diff of one file: of an attempt, or between two attempts."""
    old, new = _resolve_sides(race, one, other)
    # `list_changes` returns a name that is not valid UTF-8 in its storable form. Map it back.
    names = {
        git.decode_name(change.name): change.name
        for change in git_history.list_changes(race.repository, old, new)
    }
    file_diff = git_history.diff_file(race.repository, old, new, names.get(file, file))
    return msgspec.structs.replace(file_diff, change=_make_storable(file_diff.change))


def _make_storable(change: FileChange) -> FileChange:
    old = git.decode_name(change.old_name) if change.old_name is not None else None
    return msgspec.structs.replace(change, name=git.decode_name(change.name), old_name=old)


def _resolve_sides(race: Race, one: str, other: str | None) -> tuple[str, str]:
    """Return the two commits to compare: base and attempt, or attempt and attempt."""
    first = refs.find_attempt(race, one)
    if other is None:
        round = next(other for other in race.rounds if other.id == first.round_id)
        return round.base_commit, _commit(first)
    return _commit(first), _commit(refs.find_attempt(race, other))


def _commit(attempt: Attempt) -> str:
    if attempt.commit is None:
        raise Refused(
            f"Attempt {attempt.number} is {attempt.state} and has no commit yet. Its files are in "
            f"{attempt.worktree}.",
            attempt=attempt.id,
            state=attempt.state,
        )
    return attempt.commit
