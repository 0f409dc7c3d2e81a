"""Ending attempts, and trying one again."""

from typing import Any

from corral.db.transitions import transition
from corral.db.tx import Tx
from corral.domain.races import sql
from corral.domain.races.limits import compute_round_budget
from corral.domain.races.model import Attempt, Race, RoundState
from corral.domain.races.queries import get, lock_race, with_current_cost
from corral.domain.races.refs import find_attempt, make_branch_name, make_worktree_path
from corral.kernel.errors import Conflict
from corral.kernel.validation import check_optional_text


def retry(tx: Tx, race: str, attempt: str | int, *, folder: str) -> Race:
    """Retry an attempt that did not pass, in a new worktree from the same base commit.

    The earlier try keeps its branch and its worktree. Raises Conflict for an attempt that is open
    or has passed, and Refused when the budget of the race is spent.
    """
    locked = lock_race(tx, race)
    failed = find_attempt(locked, attempt)
    round = next(other for other in locked.rounds if other.id == failed.round_id)
    if failed.is_open or failed.can_win:
        status = "has passed" if failed.can_win else f"is {failed.state}"
        raise Conflict(
            f"Attempt {failed.number} {status}. Only attempts that did not pass can be retried.",
            attempt=failed.id,
        )
    if locked.budget_micros is not None:
        compute_round_budget(locked, locked.plan.rounds)
    if round.state is not RoundState.RUNNING:
        transition(tx, sql.ROUNDS, "retry", round.id, needs_driver=1, reason=None)
    try_number = failed.try_number + 1
    transition(
        tx,
        sql.ATTEMPTS,
        "retry",
        failed.id,
        event_data={"try_number": try_number},
        try_number=try_number,
        branch=make_branch_name(locked, round.number, failed.number, try_number),
        worktree=make_worktree_path(folder, locked, round.number, failed.number, try_number),
        previous_cost_micros=failed.cost_micros,
        run_id=None,
        session_id=None,
        commit_id=None,
        checked_tree=None,
        passed=None,
        checks="[]",
        files=None,
        insertions=None,
        deletions=None,
        reason=None,
        started_at=None,
        ended_at=None,
        cleaned_at=None,
    )
    return get(tx, locked.id)


def cancel(tx: Tx, race: str, attempt: str | int, *, reason: str | None = None) -> Attempt:
    """Cancel an open attempt. The caller has to stop its run."""
    reason = check_optional_text(reason, "The reason") or "cancelled"
    return end_attempt(tx, find_attempt(lock_race(tx, race), attempt), "cancel", reason)


def end_attempt(tx: Tx, attempt: Attempt, verb: str, reason: str | None, **columns: Any) -> Attempt:
    """End an attempt and record the cost of its run."""
    current = with_current_cost(tx, attempt)
    return transition(
        tx,
        sql.ATTEMPTS,
        verb,
        attempt.id,
        event_data={"race": attempt.race_id, "number": attempt.number}
        | ({"reason": reason} if reason else {}),
        reason=reason,
        cost_micros=current.cost_micros,
        model=current.model,
        ended_at=tx.now,
        **columns,
    )
