"""What whoever drives a round says of it: what was started, how it ended, what the checks found.

A driver holds its round by a lease with a fence, and shows the fence with all it says. Each step is
one transaction that leaves the round as it was or whole, so another driver goes on from there.
"""

from collections.abc import Sequence
from typing import Any

from corral.db.transitions import create, move
from corral.db.tx import Tx
from corral.domain.mail import ops as mail
from corral.domain.races import sql
from corral.domain.races.limits import summed
from corral.domain.races.model import Attempt, Check, Race, Round, RoundState, Verdict, VerdictState
from corral.domain.races.ops import end_attempt, get, whole_round
from corral.domain.runs.model import Run, RunState
from corral.kernel.clock import DAY, MINUTE
from corral.kernel.errors import Held, IllegalMove
from corral.kernel.lease import lease_end, taken_over
from corral.kernel.pagination import check_limit
from corral.kernel.text import encode_json

LEASE_MS = MINUTE
MAX_REASON = 500
LETTER_MS = 30 * DAY


# -- holding a round -----------------------------------------------------------------------------


def take(tx: Tx, round_id: str, owner: str, *, gone: str | None = None) -> Round:
    """Take a round to drive it; `gone` is a driver that is known to be dead. Held by another?
    Then so long as its lease lasts it is refused."""
    taken = tx.one(
        sql.TAKE,
        id=round_id,
        owner=owner,
        gone=gone or owner,
        now=tx.now,
        until=lease_end(tx.now, LEASE_MS),
    )
    if taken is None:
        found = sql.ROUNDS.get(tx, round_id)
        raise Held(
            f"{found.id} is driven by {found.owner}.",
            id=found.id,
            owner=found.owner,
            reason="other_driver",
        )
    return whole_round(tx, taken)


def hold(tx: Tx, round: Round) -> Round:
    """The round as it is now, held for another term; Held when another took it."""
    renewed = tx.one(sql.RENEW, id=round.id, fence=round.fence, until=lease_end(tx.now, LEASE_MS))
    if renewed is None:
        found = sql.ROUNDS.get(tx, round.id)
        raise taken_over(found.id, yours=round.fence, found=found.fence, owner=found.owner)
    return renewed


def give_back(tx: Tx, round: Round) -> None:
    """Hold it no longer; no harm when another has it."""
    tx.run(sql.GIVE_BACK, id=round.id, fence=round.fence)


def find(tx: Tx, round_id: str) -> Round:
    """A round by its id, which may be shortened; without its attempts."""
    return sql.ROUNDS.get(tx, sql.ROUND_IDS.resolve(tx, round_id))


def look(tx: Tx, round: Round) -> Round:
    """The round as it is now, with its attempts."""
    return whole_round(tx, sql.ROUNDS.get(tx, round.id))


def open_rounds(tx: Tx, host: str, *, after: str = "", limit: int = 100) -> list[Round]:
    """The rounds of a machine in which something happens by itself."""
    return tx.all(sql.OPEN_ROUNDS, host=host, after=after, limit=check_limit(limit))


# -- attempts ------------------------------------------------------------------------------------


def started(
    tx: Tx, round: Round, attempt: Attempt, run: Run, *, port: int | None, sandbox: str | None
) -> Attempt:
    """An attempt is prepared, and its run was asked for, in the same transaction."""
    hold(tx, round)
    return move(
        tx,
        sql.ATTEMPTS,
        "start",
        attempt.id,
        note={"race": attempt.race_id, "number": attempt.number, "run": run.id},
        run_id=run.id,
        session_id=run.session_id,
        agent_version=run.agent_version,
        provider=run.provider,
        model=run.model,
        port=port,
        sandbox=sandbox,
        started_at=tx.now,
    )


_ENDS = {RunState.TIMED_OUT: "time_out", RunState.CANCELLED: "cancel"}


def end_of_run(tx: Tx, run: Run) -> Attempt | None:
    """A run is over: its attempt is to be checked, or has failed. Saying it twice does no harm,
    not even at the same moment: a keeper and a driver both do."""
    attempt = tx.one(sql.OF_RUN, run_id=run.id)
    if attempt is None or run.is_live:
        return None
    try:
        return _ended(tx, attempt, run)
    except IllegalMove:
        return sql.ATTEMPTS.get(tx, attempt.id)


def _ended(tx: Tx, attempt: Attempt, run: Run) -> Attempt:
    if run.state is RunState.COMPLETED:
        return move(
            tx,
            sql.ATTEMPTS,
            "finish",
            attempt.id,
            note={"race": attempt.race_id, "number": attempt.number},
            cost_micros=summed(attempt.earlier_micros, run.cost_micros),
            model=run.model,
        )
    code = f" with {run.exit_code}" if run.exit_code else ""
    why = f"its run {run.id} ended ({run.state}{code})"
    why += f": {run.reason}" if run.reason else ""
    return end_attempt(tx, attempt, _ENDS.get(run.state, "fail"), why[:MAX_REASON])


def lost_run(tx: Tx, round: Round, attempt: Attempt) -> Attempt:
    """The run of an attempt was deleted while it was waited for."""
    hold(tx, round)
    return end_attempt(tx, attempt, "fail", f"its run {attempt.run_id} is gone")


def committed(
    tx: Tx, round: Round, attempt: Attempt, commit: str, *, files: int, added: int, removed: int
) -> None:
    """What an attempt left is in a commit."""
    hold(tx, round)
    tx.run(
        sql.SET_TREE,
        id=attempt.id,
        commit_id=commit,
        files=files,
        insertions=added,
        deletions=removed,
    )


def failed(tx: Tx, round: Round, attempt: Attempt, reason: str) -> Attempt:
    """An attempt could not be prepared, or what it left could not be kept."""
    hold(tx, round)
    return end_attempt(tx, attempt, "fail", reason[:MAX_REASON])


def cancelled(tx: Tx, round: Round, attempt: Attempt, reason: str) -> Attempt:
    """An attempt has lost before its end."""
    hold(tx, round)
    return end_attempt(tx, attempt, "cancel", reason[:MAX_REASON])


def checked(
    tx: Tx,
    round: Round,
    attempt: Attempt,
    checks: Sequence[Check],
    *,
    passed: bool | None,
    tree: str | None,
) -> Attempt:
    """The gates of an attempt have been run; with none there is nothing that it failed."""
    hold(tx, round)
    bad = next((check for check in checks if check.exit_code != 0), None)
    reason = None
    if bad is not None:
        reason = f"its check `{bad.command[:200]}` ended with {bad.exit_code}"
    return end_attempt(
        tx,
        attempt,
        "complete",
        reason,
        passed=None if passed is None else int(passed),
        checks=encode_json(list(checks), "The checks"),
        checked_tree=tree,
    )


def settle(tx: Tx, race: Race, round: Round) -> Round:
    """When all attempts are over: one can be chosen, or the round has failed. Told once."""
    hold(tx, round)
    now = look(tx, round)
    if now.state is not RoundState.RUNNING or any(each.is_open for each in now.attempts):
        return now
    can_win = [each for each in now.attempts if each.can_win]
    if not can_win:
        why = "no attempt passed; retry one, or abandon the round"
        after = move(tx, sql.ROUNDS, "fail", now.id, reason=why, goes_on=0, note={"reason": why})
        tell(tx, race, whole_round(tx, after), "failed", why)
        return whole_round(tx, after)
    goes_on = race.plan.auto or (race.plan.judge is not None and len(can_win) > 1)
    after = move(
        tx,
        sql.ROUNDS,
        "settle",
        now.id,
        note={"can_win": [each.number for each in can_win]},
        goes_on=int(goes_on),
    )
    settled = whole_round(tx, after)
    if not goes_on:
        tell(tx, race, settled, "selecting")
    return settled


def rest(tx: Tx, race: Race, round: Round) -> Round:
    """Nothing of a round happens by itself any more: a person is waited for, and told."""
    hold(tx, round)
    tx.run(sql.SET_GOES_ON, id=round.id, goes_on=0)
    now = look(tx, round)
    if now.state is RoundState.SELECTING:
        tell(tx, race, now, "selecting")
    return now


# -- verdicts ------------------------------------------------------------------------------------


def ask_judge(
    tx: Tx,
    round: Round,
    run: Run | None,
    *,
    judge: str,
    labels: dict[str, str],
    prompt_hash: str,
    truncated: bool,
) -> Verdict:
    """A judge is asked, in the transaction that asks for its run."""
    number = len(tx.all(sql.VERDICTS_OF_ROUND, round_id=round.id)) + 1
    made = create(
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
        note={"round": round.id, "judge": judge},
    )
    assert made is not None
    return made


def given(
    tx: Tx, verdict: Verdict, run: Run | None, ranking: list[list[str]] | None, reason: str
) -> Verdict:
    """A judge has answered; None: with nothing that ranks the candidates. The first answer
    stands."""
    now = sql.VERDICTS.get(tx, verdict.id)
    if now.state is not VerdictState.ASKED:
        return now
    told: dict[str, Any] = {
        "reason": reason[: 20 * MAX_REASON],
        "cost_micros": run.cost_micros if run else None,
        "model": (run.model if run else None) or verdict.model,
        "ended_at": tx.now,
    }
    if ranking is None:
        return move(tx, sql.VERDICTS, "fail", verdict.id, **told)
    return move(
        tx,
        sql.VERDICTS,
        "give",
        verdict.id,
        ranking=encode_json(ranking, "The ranking"),
        **told,
    )


def race_of(tx: Tx, round: Round) -> Race:
    """The race of a round, with the round as it is now."""
    return get(tx, round.race_id)


def tell(tx: Tx, race: Race, round: Round, what: str, reason: str | None = None) -> None:
    """Tell whoever started a race, once, how a round of it stands."""
    mailbox = race.created_by
    if not mailbox.startswith(("user:", "agent:")):
        return
    mail.put(
        tx,
        mailbox,
        {
            "kind": "race",
            "what": what,
            "race": race.id,
            "name": race.name,
            "round": round.number,
            "state": round.state,
            "reason": reason,
        },
        key=f"{round.id}:{what}:{sum(each.tries for each in round.attempts)}",
        project=race.project_id,
        expires_at=tx.now + LETTER_MS,
    )
