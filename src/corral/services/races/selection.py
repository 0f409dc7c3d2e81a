"""The selection of a winner by a person or an agent."""

from corral.adapters.git import git_history
from corral.adapters.worktrees import worktrees
from corral.db.database import Database
from corral.domain.races import ops, refs, selection
from corral.domain.races.model import Attempt, Race, Round, RoundState
from corral.kernel.errors import Refused
from corral.services.races.paths import pin_commit
from corral.services.races.progress import get_race
from corral.services.races.validation import require_this_host


def select_winner(
    database: Database,
    race_ref: str,
    attempt_ref: str | None,
    *,
    reason: str | None,
    overrule: bool,
) -> Race:
    """Select the winner of a round; see `Races.select`."""
    race = get_race(database, race_ref)
    ops.require_repository(race)
    ranked = race.latest.ranked
    if attempt_ref is None and not ranked:
        return database.write(
            lambda tx: selection.select(tx, race.id, None, reason=reason, overrule=overrule)
        )
    winner = ranked[0] if attempt_ref is None else refs.find_attempt(race, attempt_ref)
    round = next(round for round in race.rounds if round.id == winner.round_id)
    commit = None
    is_allowed = overrule or (round.state is RoundState.SELECTING and winner.can_win)
    # The store refuses any other attempt before anything is committed.
    if winner.commit is not None and is_allowed:
        require_this_host(race)
        commit = _commit_worktree(race, round, winner)
        pin_commit(database, race, f"{round.number}-{winner.number}", commit)
    return database.write(
        lambda tx: selection.select(
            tx, race.id, winner.id, commit=commit, reason=reason, overrule=overrule
        )
    )


def _commit_worktree(race: Race, round: Round, attempt: Attempt) -> str:
    """Return a commit of what is in an attempt's worktree now, without files of its checks."""
    assert attempt.commit is not None
    state = worktrees.inspect(race.repository, attempt.worktree)
    if state.missing or state.head is None:
        return attempt.commit
    if not git_history.is_ancestor(race.repository, attempt.commit, state.head):
        raise Refused(
            f"The worktree {attempt.worktree} does not contain its recorded commit any more. "
            f"Switch it back (`git switch {attempt.branch}`), or remove it.",
            attempt=attempt.id,
        )
    if worktrees.fingerprint(state) in (None, attempt.checked_tree):
        return state.head
    message = (
        f"{race.name}\n\nUncommitted work of attempt {attempt.number} of round {round.number}, "
        "when it was selected."
    )
    return git_history.commit_all(race.repository, attempt.worktree, message).commit
