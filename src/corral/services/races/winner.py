"""What becomes of a winner: written out, merged, or made better by what others had."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from uuid import uuid4

from corral.adapters import exports, git, merges, worktrees
from corral.adapters.exports import Manifest, TreeOf
from corral.adapters.merges import Merge
from corral.api.outputs import Outputs
from corral.db.database import Database
from corral.domain.races import refs, selection
from corral.domain.races.model import Attempt, Check, Graft, Race, Round, RoundState
from corral.kernel.errors import Invalid, NotFound, Refused
from corral.kernel.text import clean_text
from corral.services.races.checks import run_gates
from corral.services.races.folders import drop_folder, keep_commit, make_folder, races_folder


def _winner(race: Race, number: int | None) -> Round:
    """A round with a winner: the one that is named, else the last."""
    decided = [each for each in race.rounds if each.state is RoundState.COMPLETED]
    if number is not None:
        decided = [each for each in decided if each.number == number]
    if not decided:
        open_one = refs.round_of(race, number)
        raise Refused(
            f"Round {open_one.number} of {race.id} has no winner yet; "
            f"{refs.to_be_decided(race, open_one)}.",
            id=race.id,
            reason="no_winner",
        )
    return decided[-1]


# -- export --------------------------------------------------------------------------------------


def export(
    database: Database, race: Race, target: str, *, round: int | None, replace: bool
) -> Manifest:
    """Write winners and logs into a folder, whole or not at all."""
    folder = Path(clean_text(target, "The folder")).expanduser().absolute()
    if round is not None:
        rounds = [_winner(race, round)]
    else:
        _winner(race, None)
        rounds = race.rounds
    trees = {
        f"round-{each.number}-winner": TreeOf(race.repository, each.winner_commit)
        for each in rounds
        if each.winner_commit is not None
    }
    files: dict[str, Path | bytes | Iterator[bytes]] = {}
    for each in rounds:
        for attempt in each.attempts:
            if attempt.run_id is not None:
                name = f"logs/round-{each.number}-attempt-{attempt.number}.log"
                files[name] = _log(database, attempt.run_id)
    if not folder.parent.is_dir():
        raise Invalid(f"{folder.parent} is no directory; create it first, or correct the path.")
    exports.sweep(folder.parent)
    return exports.export(
        folder, trees=trees, files=files, existing="replace" if replace else "refuse"
    )


def _log(database: Database, run_id: str) -> Iterator[bytes]:
    """What a run wrote, as far as it is kept; secrets were taken out before."""
    with suppress(NotFound, Refused):
        for piece in Outputs(database).follow(run_id):
            yield piece.text


# -- merge ---------------------------------------------------------------------------------------


def merge(database: Database, race: Race, *, into: str | None, round: int | None) -> Merge:
    """Merge a winner into a branch of the user's, and note that; never by force."""
    winner = _winner(race, round)
    if race.private:
        raise Refused(
            f"{race.id} was run on a directory that is in no git repository; write its winner out "
            f"with `corral race export {race.id} DIR`.",
            id=race.id,
            reason="not_a_repository",
        )
    branch = into or race.branch
    if branch is None:
        raise Refused(
            f"{race.id} began on no branch (a detached HEAD); name one with --into BRANCH.",
            id=race.id,
            reason="detached_head",
        )
    assert winner.winner_commit is not None
    message = f"{race.name}\n\nThe winner of round {winner.number} of {race.id}."
    done = merges.merge(race.repository, winner.winner_commit, branch, message=message)
    if done.outcome != "conflicts":
        commit = winner.winner_commit
        database.write(lambda tx: selection.set_merged(tx, race.id, commit, branch))
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
    """Try files or hunks of another attempt on the winner, and keep them if nothing is worse."""
    other = refs.find_attempt(race, attempt)
    round = _winner(race, None)
    if not files and not hunks:
        raise Invalid("Name the files to graft, with --file.")
    if other.commit is None or other.id == round.winner_id:
        what = "is the winner itself" if other.id == round.winner_id else "has no commit"
        raise Refused(f"Attempt {other.number} {what}; graft from another.", attempt=other.id)
    assert round.winner_commit is not None
    assert round.winner_id is not None
    # Each has a name of its own: two at once, or one that a crash cut short, must not be mixed.
    name = f"graft-{round.number}-{uuid4().hex[:8]}"
    folder = races_folder() / race.id / name
    branch = f"{refs.branch_name(race, round.number, 0, 1).rpartition('/')[0]}/{name}"
    with git.writing(str(folder.parent)):
        make_folder(database, race)
        worktrees.make(race.repository, str(folder), branch, base=round.winner_commit)
    message = (
        f"{race.name}\n\nGrafted from attempt {other.number}: {', '.join(_named(files, hunks))}"
    )
    done = merges.graft(
        race.repository, str(folder), other.commit, message=message, files=files, hunks=hunks
    )
    note = partial(_note, database, race, round, other, _named(files, hunks), str(folder), branch)
    if done.conflicts:
        clashes = ", ".join(f"{clash.name} ({clash.why})" for clash in done.conflicts[:5])
        return note(commit=None, checks=[], kept=False, reason=f"it does not fit: {clashes}")
    assert done.commit is not None
    checks = run_gates(database, race, str(folder), None)
    winner = next(each for each in round.attempts if each.id == round.winner_id)
    why, kept = _compare(winner, checks)
    if kept:
        keep_commit(database, race, name, done.commit)
    return note(commit=done.commit, checks=checks, kept=kept, reason=why)


def _named(files: Sequence[str], hunks: Mapping[str, Sequence[int]]) -> list[str]:
    return [*files, *(f"{name}#{number}" for name, all in hunks.items() for number in all)]


def _note(
    database: Database,
    race: Race,
    round: Round,
    other: Attempt,
    files: list[str],
    folder: str,
    branch: str,
    *,
    commit: str | None,
    checks: list[Check],
    kept: bool,
    reason: str,
) -> Graft:
    """Write a graft down; what it was tried in goes, with its branch: the repository keeps the
    commit of one that is kept, and any other can be made again."""
    made = database.write(
        lambda tx: selection.add_graft(
            tx, race.id, round, other, files, commit=commit, checks=checks, kept=kept, reason=reason
        )
    )
    with suppress(Refused, OSError):
        worktrees.remove(race.repository, folder, delete_branch=True, despite={"dirty", "unmerged"})
        drop_folder(os.path.dirname(folder))
    return made


def _compare(winner: Attempt, checks: Sequence[Check]) -> tuple[str, bool]:
    """Whether a graft is kept: no gate may fail that did not before, and no test either."""
    bad = next((check for check in checks if check.exit_code != 0), None)
    if bad is not None and winner.passed is not False:
        return f"worse: `{bad.command[:200]}` ended with {bad.exit_code}", False
    before, after = _failing(winner.checks), _failing(checks)
    if len(checks) < len(winner.checks) or after > before:
        return f"worse: {after} tests fail, and {before} did before", False
    return "not worse: its checks ended as before, or better", True


def _failing(checks: Sequence[Check]) -> int:
    return sum(check.tests.failed + check.tests.errors for check in checks if check.tests)
