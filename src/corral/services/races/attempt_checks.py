"""Checks of attempts: commit the work of attempts whose agents have ended, and check it."""

import os
from contextlib import suppress

from corral import config
from corral.adapters.git import git_history, private_git
from corral.adapters.worktrees import worktrees
from corral.adapters.worktrees.worktree_registry import find_checkout
from corral.db.database import Database
from corral.domain.races import round_steps
from corral.domain.races.model import Attempt, AttemptState, Race
from corral.kernel.errors import Conflict, Held, Refused
from corral.services.races.checks import run_checks
from corral.services.races.round_context import RoundContext, fail_attempt, run_parallel


def check_attempts(database: Database, context: RoundContext) -> bool:
    """Commit and check the attempts whose agents have ended; returns whether there were any."""
    waiting = context.list_attempts(AttemptState.CHECKING)
    run_parallel(
        database, context.race, waiting, lambda attempt: _check_attempt(database, context, attempt)
    )
    return bool(waiting)


def _check_attempt(database: Database, context: RoundContext, attempt: Attempt) -> None:
    """Commit the work of an attempt and run the checks on it."""
    race = context.race
    try:
        _commit_work(database, context, attempt)
        checks = run_checks(database, race, attempt.worktree, attempt)
        tree = worktrees.fingerprint(worktrees.inspect(race.repository, attempt.worktree))
    except Held:
        raise
    except (Refused, Conflict, OSError) as error:
        reason = f"the work could not be committed or checked: {error}"
        fail_attempt(database, context, attempt, reason)
        return
    passed = all(check.exit_code == 0 for check in checks) if checks else None
    with suppress(Conflict):  # it has ended meanwhile
        database.write(
            lambda tx: round_steps.record_checks(
                tx, context.lease, attempt, checks, passed=passed, tree=tree
            )
        )


def _commit_work(database: Database, context: RoundContext, attempt: Attempt) -> None:
    """Commit what is uncommitted in the worktree, and record the commit.

    Skipped when an earlier driver recorded a commit before it died. Later changes in the
    worktree come from the checks.
    """
    if attempt.commit is not None:
        return
    if not os.path.isdir(attempt.worktree):
        raise Refused(f"the worktree {attempt.worktree} no longer exists")
    race, round = context.race, context.round
    _import_commits(race, attempt)
    message = f"{race.name}\n\nAttempt {attempt.number} of round {round.number} of {race.id}."
    saved = git_history.commit_all(race.repository, attempt.worktree, message)
    size = git_history.diff_stat(race.repository, round.base_commit, saved.commit)
    database.write(
        lambda tx: round_steps.record_commit(
            tx,
            context.lease,
            attempt,
            saved.commit,
            files=size.files,
            added=size.added,
            removed=size.removed,
        )
    )


def _import_commits(race: Race, attempt: Attempt) -> None:
    """Import the commits of a sandboxed attempt whose supervisor died before it did so.

    Commits that fail the validation are dropped; the files in the worktree are committed as they
    are.
    """
    folder = str(config.run_folder(attempt.run_id) / "git") if attempt.run_id else ""
    checkout = find_checkout(race.repository, attempt.worktree)
    if checkout is not None and os.path.isdir(folder):
        with suppress(Refused, Conflict):
            private_git.import_commits(checkout, folder)
        private_git.discard(checkout, folder)
