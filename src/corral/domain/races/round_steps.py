"""What the driver of a round records: the start and end of attempts, checks, and verdicts.

A driver holds a lease on its round and passes its fence with every write. Each function is one
transaction that leaves the round consistent, so another driver can continue from there.
"""

from collections.abc import Sequence
from typing import Any

from corral.db.transitions import create, transition
from corral.db.tx import Tx
from corral.domain.mail import ops as mail
from corral.domain.mail.payloads import RaceNotice
from corral.domain.races import sql
from corral.domain.races.attempts import end_attempt
from corral.domain.races.model import (
    Attempt,
    CheckResult,
    JudgeVerdict,
    Race,
    Round,
    RoundState,
    VerdictState,
    add_costs,
)
from corral.domain.races.queries import load_round
from corral.domain.runs.model import Run, RunState
from corral.kernel.clock import DAY, MINUTE
from corral.kernel.errors import Held, IllegalMove
from corral.kernel.lease import lease_expiry, stale_fence_error
from corral.kernel.pagination import check_limit
from corral.kernel.validation import encode_json

LEASE_MS = MINUTE
MAX_REASON = 500
MAX_VERDICT_REASON = 20 * MAX_REASON
LETTER_MS = 30 * DAY


# -- the lease of a round ------------------------------------------------------------------------


def acquire_round(tx: Tx, round_id: str, owner: str, *, dead_owner: str | None = None) -> Round:
    """Acquire the lease of a round, and return the round with its attempts.

    Raises Held while another driver has the lease, unless that driver is `dead_owner`.
    """
    acquired = tx.first(
        sql.ACQUIRE_ROUND,
        id=round_id,
        owner=owner,
        dead_owner=dead_owner or owner,
        now=tx.now,
        until=lease_expiry(tx.now, LEASE_MS),
    )
    if acquired is None:
        current = sql.ROUNDS.get(tx, round_id)
        raise Held(
            f"{current.id} is driven by another process ({current.owner}). Try again later.",
            id=current.id,
            owner=current.owner,
            reason="other_driver",
        )
    return load_round(tx, acquired)


def renew_lease(tx: Tx, round: Round) -> Round:
    """Renew the lease of a round, and return the round without its attempts.

    Raises Held when another driver has acquired the round.
    """
    renewed = tx.first(
        sql.RENEW_LEASE, id=round.id, fence=round.fence, until=lease_expiry(tx.now, LEASE_MS)
    )
    if renewed is None:
        current = sql.ROUNDS.get(tx, round.id)
        raise stale_fence_error(
            current.id, yours=round.fence, current=current.fence, owner=current.owner
        )
    return renewed


def release_round(tx: Tx, round: Round) -> None:
    """Release the lease of a round; does nothing when another driver has it."""
    tx.run(sql.RELEASE_ROUND, id=round.id, fence=round.fence)


def get_round(tx: Tx, round_id: str) -> Round:
    """Return a round without its attempts, by its id or a prefix of it."""
    return sql.ROUNDS.get(tx, sql.ROUND_IDS.resolve(tx, round_id))


def reload_round(tx: Tx, round: Round) -> Round:
    """Return the round as it is now, with its attempts."""
    return load_round(tx, sql.ROUNDS.get(tx, round.id))


def list_active_rounds(tx: Tx, host: str, *, after: str = "", limit: int = 100) -> list[Round]:
    """List the rounds of a machine in which a driver has work to do."""
    return tx.all(sql.ACTIVE_ROUNDS, host=host, after=after, limit=check_limit(limit))


# -- attempts ------------------------------------------------------------------------------------


def mark_started(
    tx: Tx, round: Round, attempt: Attempt, run: Run, *, port: int | None, sandbox: str | None
) -> Attempt:
    """Record the run of a prepared attempt, in the transaction that requests the run."""
    renew_lease(tx, round)
    return transition(
        tx,
        sql.ATTEMPTS,
        "start",
        attempt.id,
        event_data={"race": attempt.race_id, "number": attempt.number, "run": run.id},
        run_id=run.id,
        session_id=run.session_id,
        agent_version=run.agent_version,
        provider=run.provider,
        model=run.model,
        port=port,
        sandbox=sandbox,
        started_at=tx.now,
    )


_VERB_OF_END = {RunState.TIMED_OUT: "time_out", RunState.CANCELLED: "cancel"}


def record_run_end(tx: Tx, run: Run) -> Attempt | None:
    """Move the attempt of an ended run to checking or to its end; None when there is none.

    Idempotent and safe to call concurrently: the supervisor and the driver both call it.
    """
    attempt = tx.first(sql.RUNNING_IN_RUN, run_id=run.id)
    if attempt is None or run.is_live:
        return None
    try:
        return _record_run_end(tx, attempt, run)
    except IllegalMove:  # the other caller was faster
        return sql.ATTEMPTS.get(tx, attempt.id)


def _record_run_end(tx: Tx, attempt: Attempt, run: Run) -> Attempt:
    if run.state is RunState.COMPLETED:
        return transition(
            tx,
            sql.ATTEMPTS,
            "finish",
            attempt.id,
            event_data={"race": attempt.race_id, "number": attempt.number},
            cost_micros=add_costs(attempt.previous_cost_micros, run.cost_micros),
            model=run.model,
        )
    code = f" with {run.exit_code}" if run.exit_code else ""
    reason = f"its run {run.id} ended ({run.state}{code})"
    reason += f": {run.reason}" if run.reason else ""
    reason = tx.shorten_for_storage(reason, MAX_REASON)
    return end_attempt(tx, attempt, _VERB_OF_END.get(run.state, "fail"), reason)


def mark_run_deleted(tx: Tx, round: Round, attempt: Attempt) -> Attempt:
    """Fail an attempt whose run was deleted."""
    renew_lease(tx, round)
    return end_attempt(tx, attempt, "fail", f"its run {attempt.run_id} was deleted")


def record_commit(
    tx: Tx, round: Round, attempt: Attempt, commit: str, *, files: int, added: int, removed: int
) -> None:
    """Record the commit with the work of an attempt, and the size of its diff."""
    renew_lease(tx, round)
    tx.run(
        sql.SET_COMMIT,
        id=attempt.id,
        commit_id=commit,
        files=files,
        insertions=added,
        deletions=removed,
    )


def mark_failed(tx: Tx, round: Round, attempt: Attempt, reason: str) -> Attempt:
    """Fail an attempt that could not be prepared, or whose work could not be committed."""
    renew_lease(tx, round)
    return end_attempt(tx, attempt, "fail", tx.shorten_for_storage(reason, MAX_REASON))


def mark_cancelled(tx: Tx, round: Round, attempt: Attempt, reason: str) -> Attempt:
    """Cancel an attempt that can no longer win."""
    renew_lease(tx, round)
    return end_attempt(tx, attempt, "cancel", tx.shorten_for_storage(reason, MAX_REASON))


def record_checks(
    tx: Tx,
    round: Round,
    attempt: Attempt,
    checks: Sequence[CheckResult],
    *,
    passed: bool | None,
    tree: str | None,
) -> Attempt:
    """Complete an attempt with the results of its checks; `passed` is None without checks."""
    renew_lease(tx, round)
    failed = next((check for check in checks if check.exit_code != 0), None)
    reason = None
    if failed is not None:
        reason = f"its check `{failed.command[:200]}` exited with {failed.exit_code}"
    return end_attempt(
        tx,
        attempt,
        "complete",
        reason,
        passed=None if passed is None else int(passed),
        checks=encode_json(list(checks), "The checks"),
        checked_tree=tree,
    )


# -- the round -----------------------------------------------------------------------------------


def close_round(tx: Tx, race: Race, round: Round) -> Round:
    """Once all attempts have ended, open the round for selection or fail it.

    Notifies the starter of the race once. Does nothing while an attempt is open.
    """
    renew_lease(tx, round)
    current = reload_round(tx, round)
    if current.state is not RoundState.RUNNING or any(
        attempt.is_open for attempt in current.attempts
    ):
        return current
    candidates = [attempt for attempt in current.attempts if attempt.can_win]
    if not candidates:
        return _fail_round(tx, race, current)
    return _open_selection(tx, race, current, candidates)


def _fail_round(tx: Tx, race: Race, round: Round) -> Round:
    reason = "no attempt passed; retry one, or abandon the round"
    after = transition(
        tx,
        sql.ROUNDS,
        "fail",
        round.id,
        reason=reason,
        needs_driver=0,
        event_data={"reason": reason},
    )
    failed = load_round(tx, after)
    notify_starter(tx, race, failed, "failed", reason)
    return failed


def _open_selection(tx: Tx, race: Race, round: Round, candidates: Sequence[Attempt]) -> Round:
    needs_driver = race.plan.auto or (race.plan.judge is not None and len(candidates) > 1)
    after = transition(
        tx,
        sql.ROUNDS,
        "begin_selection",
        round.id,
        event_data={"can_win": [attempt.number for attempt in candidates]},
        needs_driver=int(needs_driver),
    )
    selecting = load_round(tx, after)
    if not needs_driver:
        notify_starter(tx, race, selecting, "selecting")
    return selecting


def mark_idle(tx: Tx, race: Race, round: Round) -> Round:
    """Record that the driver has nothing left to do.

    Notifies the starter of the race when the round waits for a selection.
    """
    renew_lease(tx, round)
    tx.run(sql.SET_NEEDS_DRIVER, id=round.id, needs_driver=0)
    current = reload_round(tx, round)
    if current.state is RoundState.SELECTING:
        notify_starter(tx, race, current, "selecting")
    return current


def notify_starter(tx: Tx, race: Race, round: Round, event: str, reason: str | None = None) -> None:
    """Notify the starter of a race about a round, once for each state and set of tries."""
    mailbox = race.created_by
    if not mailbox.startswith(("user:", "agent:")):
        return
    mail.put(
        tx,
        mailbox,
        RaceNotice(
            event=event,
            race=race.id,
            name=race.name,
            round=round.number,
            state=round.state,
            reason=reason,
        ),
        # A retry changes the sum, so the round can notify again.
        key=f"{round.id}:{event}:{sum(attempt.try_number for attempt in round.attempts)}",
        project=race.project_id,
        expires_at=tx.now + LETTER_MS,
    )


# -- verdicts ------------------------------------------------------------------------------------


def add_verdict(
    tx: Tx,
    round: Round,
    run: Run | None,
    *,
    judge: str,
    labels: dict[str, str],
    prompt_hash: str,
    truncated: bool,
) -> JudgeVerdict:
    """Create the verdict of a judge, in the transaction that requests its run."""
    renew_lease(tx, round)
    number = len(tx.all(sql.VERDICTS_OF_ROUND, round_id=round.id)) + 1
    return create(
        tx,
        sql.VERDICTS,
        {
            "id": tx.new_id("vdt"),
            "race_id": round.race_id,
            "round_id": round.id,
            "project_id": round.project_id,
            "number": number,
            "judge": judge,
            "model": run.model if run else None,
            "run_id": run.id if run else None,
            "labels": encode_json(labels, "The labels"),
            "prompt_hash": prompt_hash,
            "truncated": int(truncated),
            "created_at": tx.now,
        },
        event_data={"round": round.id, "judge": judge},
    )


def record_verdict(
    tx: Tx,
    round: Round,
    verdict: JudgeVerdict,
    run: Run | None,
    ranking: list[list[str]] | None,
    reason: str,
) -> JudgeVerdict:
    """Record the answer of a judge; without a ranking the verdict fails.

    Idempotent: the first answer counts.
    """
    renew_lease(tx, round)
    current = sql.VERDICTS.get(tx, verdict.id)
    if current.state is not VerdictState.PENDING:
        return current
    columns: dict[str, Any] = {
        "reason": tx.shorten_for_storage(reason, MAX_VERDICT_REASON),
        "cost_micros": run.cost_micros if run else None,
        "model": (run.model if run else None) or verdict.model,
        "ended_at": tx.now,
    }
    if ranking is None:
        return transition(tx, sql.VERDICTS, "fail", verdict.id, **columns)
    return transition(
        tx,
        sql.VERDICTS,
        "give",
        verdict.id,
        ranking=encode_json(ranking, "The ranking"),
        **columns,
    )
