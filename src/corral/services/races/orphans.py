"""Orphans: worktrees of races without an attempt, and attempts without a worktree.

Several stores can share one home folder. A worktree without an attempt in this store counts as its
orphan only where the marker of the folder names this store (see `paths.RaceMarker`).
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

from msgspec.structs import replace

from corral import config
from corral.adapters.processes import process
from corral.adapters.worktrees import worktree_leftovers
from corral.db.database import Database
from corral.domain.races import queries
from corral.domain.races.model import Attempt, AttemptState, Race
from corral.kernel.errors import Ambiguous, Invalid, NotFound
from corral.services.races.paths import RaceMarker, read_marker

PAGE_SIZE = 500


class RaceOrphan(worktree_leftovers.OrphanWorktree, frozen=True, kw_only=True):
    """A worktree without an attempt, in the folder of a race."""

    race_id: str
    attempt_id: str | None
    """The attempt that the path identifies: it was cleaned, or belongs to an earlier try."""
    of_this_store: bool
    """Whether the marker of the folder names this store; without a marker it is not known."""


def iter_orphans(database: Database) -> Iterator[RaceOrphan]:
    """Yield worktrees in the folder of races that belong to no attempt.

    Skips folders that are marked as another store's. The attempt is set where the path of the
    worktree identifies it.
    """
    known = set()
    for attempt in iter_attempts(database, None):
        known |= {attempt.worktree, *(earlier.worktree for earlier in iter_earlier_tries(attempt))}
    with suppress(FileNotFoundError):
        for folder in sorted(os.scandir(config.races_folder()), key=lambda entry: entry.name):
            marker = read_marker(folder.path)
            is_of_another_store = marker is not None and marker.store != database.url
            if folder.is_dir(follow_symlinks=False) and not is_of_another_store:
                yield from _iter_orphans_of_race(database, folder.path, marker, known)


def _iter_orphans_of_race(
    database: Database, folder: str, marker: RaceMarker | None, known: set[str]
) -> Iterator[RaceOrphan]:
    race_id = os.path.basename(folder)
    race = find_race(database, race_id)
    repositories = [marker.repository] if marker else []
    if race is not None and race.repository not in repositories:
        repositories.append(race.repository)
    attempt_ids = {} if race is None else _map_attempts_by_worktree(race)
    for orphan in worktree_leftovers.find_orphans(repositories, folder, known):
        # Clean-up reports worktrees whose removal was interrupted separately.
        if os.path.basename(orphan.folder).startswith(worktree_leftovers.REMOVAL_PREFIX):
            continue
        yield RaceOrphan(
            folder=orphan.folder,
            repository=orphan.repository,
            branch=orphan.branch,
            exists=orphan.exists,
            race_id=race_id,
            attempt_id=attempt_ids.get(orphan.folder),
            of_this_store=marker is not None,
        )


def list_missing(database: Database) -> list[tuple[str, str]]:
    """Return the attempts of this machine whose worktree is missing, as pairs of race and path.

    Skips attempts that never started: they may never have had a worktree. Looks twice, because a
    process that removes a worktree updates the store only afterwards.
    """
    return sorted(_find_missing(database) & _find_missing(database))


def _find_missing(database: Database) -> set[tuple[str, str]]:
    missing = set()
    hosts: dict[str, str] = {}
    for attempt in iter_attempts(database, None):
        if attempt.started_at is None or os.path.isdir(attempt.worktree):
            continue
        if attempt.race_id not in hosts:
            race = find_race(database, attempt.race_id)
            hosts[attempt.race_id] = race.host if race is not None else ""
        if hosts[attempt.race_id] == process.host():
            missing.add((attempt.race_id, attempt.worktree))
    return missing


def iter_earlier_tries(attempt: Attempt) -> Iterator[Attempt]:
    """Yield the earlier tries of an attempt, each with its own worktree and branch."""
    suffix = f"-{attempt.try_number}"
    for try_number in range(1, attempt.try_number):
        earlier_suffix = f"-{try_number}" if try_number > 1 else ""
        yield replace(
            attempt,
            worktree=attempt.worktree.removesuffix(suffix) + earlier_suffix,
            branch=attempt.branch.removesuffix(suffix) + earlier_suffix,
            state=AttemptState.FAILED,
            ended_at=attempt.created_at,
            checked_tree=None,
        )


def iter_attempts(database: Database, race: Race | None) -> Iterator[Attempt]:
    """Yield the attempts whose worktrees were not removed yet: of a race, or of all races."""
    if race is not None:
        for round in race.rounds:
            yield from (attempt for attempt in round.attempts if attempt.cleaned_at is None)
        return
    after = ""
    while page := database.read(partial(queries.list_with_worktree, after=after, limit=PAGE_SIZE)):
        yield from page
        after = page[-1].worktree


def find_race(database: Database, id: str) -> Race | None:
    """Return a race by its full id."""
    with suppress(Ambiguous, Invalid, NotFound):
        race = database.read(partial(queries.get, id=id))
        return race if race.id == id else None
    return None


def _map_attempts_by_worktree(race: Race) -> dict[str, str]:
    """Return the attempt of each worktree of a race, including those of earlier tries."""
    attempts = [attempt for round in race.rounds for attempt in round.attempts]
    return {
        tried.worktree: attempt.id
        for attempt in attempts
        for tried in (*iter_earlier_tries(attempt), attempt)
    }
