"""The winner of a round: export, merge, and grafts of files of other attempts."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from corral import config
from corral.adapters import exports
from corral.adapters.exports import CommitTree, ExportManifest
from corral.adapters.git import git, merges
from corral.adapters.git.merges import MergeResult
from corral.adapters.worktrees import worktrees
from corral.db.database import Database
from corral.domain.races import ops, refs, selection
from corral.domain.races.model import (
    Attempt,
    CheckResult,
    Graft,
    GraftTrial,
    Race,
    Round,
    RoundState,
)
from corral.kernel.errors import Invalid, NotFound, Refused
from corral.kernel.validation import check_text
from corral.services.races.checks import run_checks
from corral.services.races.paths import (
    create_race_folder,
    pin_commit,
    remove_race_folder,
)
from corral.services.runs.outputs import follow_output


def _get_decided_round(race: Race, number: int | None) -> Round:
    """Return the round with this number, or the last round that has a winner."""
    decided = [round for round in race.rounds if round.state is RoundState.COMPLETED]
    if number is not None:
        decided = [round for round in decided if round.number == number]
    if not decided:
        undecided = refs.find_round(race, number)
        raise Refused(
            f"Round {undecided.number} of {race.id} has no winner yet. "
            f"{refs.suggest_next_step(race, undecided)}.",
            id=race.id,
            reason="no_winner",
        )
    return decided[-1]


# -- export --------------------------------------------------------------------------------------


def export(
    database: Database, race: Race, target: str, *, round: int | None, replace: bool
) -> ExportManifest:
    """Export winners and logs to a folder, all or nothing."""
    folder = Path(check_text(target, "The directory")).expanduser().absolute()
    if round is not None:
        rounds = [_get_decided_round(race, round)]
    else:
        _get_decided_round(race, None)
        rounds = race.rounds
    trees = {
        f"round-{exported.number}-winner": CommitTree(race.repository, exported.winner_commit)
        for exported in rounds
        if exported.winner_commit is not None
    }
    files: dict[str, Path | bytes | Iterator[bytes]] = {}
    for exported in rounds:
        for attempt in exported.attempts:
            if attempt.run_id is not None:
                name = f"logs/round-{exported.number}-attempt-{attempt.number}.log"
                files[name] = _iter_log(database, attempt.run_id)
    if not folder.parent.is_dir():
        raise Invalid(
            f"The directory {folder.parent} does not exist. Create it, or correct the path."
        )
    exports.delete_leftovers(folder.parent)
    return exports.write_export(
        folder, trees=trees, files=files, existing="replace" if replace else "refuse"
    )


def _iter_log(database: Database, run_id: str) -> Iterator[bytes]:
    """Yield the stored output of a run, in which secrets are redacted already."""
    with suppress(NotFound, Refused):
        for piece in follow_output(database, run_id):
            yield piece.text


# -- merge ---------------------------------------------------------------------------------------


def merge(database: Database, race: Race, *, into: str | None, round: int | None) -> MergeResult:
    """Merge a winner into a branch of the user, and record that. Never overwrites changes."""
    winner = _get_decided_round(race, round)
    if race.managed_repository:
        raise Refused(
            f"The directory of {race.id} is not in a git repository. Export the winner with "
            f"`corral race export {race.id} DIR`.",
            id=race.id,
            reason="not_a_repository",
        )
    branch = into or race.branch
    if branch is None:
        raise Refused(
            f"{race.id} started on a detached HEAD. Name the target with --into BRANCH.",
            id=race.id,
            reason="detached_head",
        )
    assert winner.winner_commit is not None
    message = f"{race.name}\n\nWinner of round {winner.number} of {race.id}."
    done = merges.merge_commit(race.repository, winner.winner_commit, branch, message=message)
    if done.outcome != "conflicts":
        commit = winner.winner_commit
        database.write(lambda tx: ops.mark_merged(tx, race.id, commit, branch))
    return done


# -- graft ---------------------------------------------------------------------------------------


def graft(
    database: Database,
    race: Race,
    attempt: str,
    *,
    files: Sequence[str],
    hunks: Mapping[str, Sequence[int]],
) -> Graft:
    """Add files or hunks of another attempt to the winner; keep them if no check gets worse."""
    other = refs.find_attempt(race, attempt)
    round = _get_decided_round(race, None)
    if not files and not hunks:
        raise Invalid("Name the files to graft with --file.")
    if other.commit is None or other.id == round.winner_id:
        what = "is the winner" if other.id == round.winner_id else "has no commit"
        raise Refused(f"Attempt {other.number} {what}. Graft from another.", attempt=other.id)
    assert round.winner_id is not None
    # A unique name: concurrent grafts, or the leftovers of a crashed graft, must not mix.
    name = f"graft-{round.number}-{uuid4().hex[:8]}"
    message = (
        f"{race.name}\n\nGrafted from attempt {other.number}: {', '.join(_describe(files, hunks))}"
    )
    with _trial_worktree(database, race, round, name) as folder:
        done = merges.graft_changes(
            race.repository, str(folder), other.commit, message=message, files=files, hunks=hunks
        )
        checks: list[CheckResult] = []
        if done.conflicts:
            conflicts = ", ".join(f"{clash.name} ({clash.why})" for clash in done.conflicts[:5])
            why, kept = f"conflicts: {conflicts}", False
        else:
            assert done.commit is not None
            checks = run_checks(database, race, str(folder), None)
            winner = next(attempt for attempt in round.attempts if attempt.id == round.winner_id)
            why, kept = _compare(winner, checks)
            if kept:
                pin_commit(database, race, name, done.commit)
        trial = GraftTrial(
            attempt_id=other.id,
            files=_describe(files, hunks),
            commit=None if done.conflicts else done.commit,
            checks=checks,
            kept=kept,
            reason=why,
        )
        return database.write(lambda tx: selection.record_graft(tx, race.id, round, trial))


def _describe(files: Sequence[str], hunks: Mapping[str, Sequence[int]]) -> list[str]:
    return [*files, *(f"{name}#{number}" for name, numbers in hunks.items() for number in numbers)]


@contextmanager
def _trial_worktree(database: Database, race: Race, round: Round, name: str) -> Iterator[Path]:
    """Create a worktree of the winner; on exit, remove it and its branch, also after an error.

    A kept commit is pinned in the repository; any other graft can be tried again.
    """
    assert round.winner_commit is not None
    folder = config.races_folder() / race.id / name
    branch = f"{refs.make_branch_name(race, round.number, 0, 1).rpartition('/')[0]}/{name}"
    with git.refuse_write_errors(str(folder.parent)):
        create_race_folder(database, race)
        worktrees.create(race.repository, str(folder), branch, base=round.winner_commit)
    try:
        yield folder
    finally:
        with suppress(Refused, OSError):
            worktrees.remove(
                race.repository, str(folder), delete_branch=True, despite={"dirty", "unmerged"}
            )
            remove_race_folder(str(folder.parent))


def _compare(winner: Attempt, checks: Sequence[CheckResult]) -> tuple[str, bool]:
    """Return the reason, and whether the graft is kept: no additional check or test may fail."""
    failed = next((check for check in checks if check.exit_code != 0), None)
    if failed is not None and winner.passed is not False:
        return f"worse: `{failed.command[:200]}` exited with {failed.exit_code}", False
    before, after = _count_failures(winner.checks), _count_failures(checks)
    if len(checks) < len(winner.checks) or after > before:
        return f"worse: {after} tests fail, {before} failed before", False
    return "not worse: its checks have the same or better results", True


def _count_failures(checks: Sequence[CheckResult]) -> int:
    return sum(check.tests.failed + check.tests.errors for check in checks if check.tests)
