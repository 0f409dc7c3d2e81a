"""Selecting the winner of a round, grafting files onto it, and asking for a judge."""

from msgspec.structs import replace

from corral.db.transitions import transition
from corral.db.tx import Tx
from corral.domain.mail.model import is_person
from corral.domain.races import sql
from corral.domain.races.limits import validate_plan
from corral.domain.races.model import (
    Attempt,
    AttemptState,
    Graft,
    GraftTrial,
    Race,
    Round,
    RoundState,
)
from corral.domain.races.queries import get, lock_race
from corral.domain.races.refs import find_attempt
from corral.kernel.errors import Conflict, IllegalMove, Refused
from corral.kernel.validation import check_optional_text, encode_json


def select(
    tx: Tx,
    race: str,
    attempt: str | int | None,
    *,
    commit: str | None = None,
    reason: str | None = None,
    overrule: bool = False,
    by: str | None = None,
) -> Race:
    """Select the winner of a round: the given attempt, or else the one that ranks first.

    Only a completed attempt that failed no check can be selected, and only once for each round.
    With `overrule`, a person can ignore failed checks and replace an earlier selection; the
    selection records which attempt ranked first.
    """
    locked = lock_race(tx, race)
    reason = check_optional_text(reason, "The reason")
    winner = _get_first_ranked(locked) if attempt is None else find_attempt(locked, attempt)
    round = next(other for other in locked.rounds if other.id == winner.round_id)
    _check_selection(tx, locked, round, winner, overrule=overrule)
    winner_commit = commit or winner.commit
    if winner_commit is None:
        raise Refused(
            f"Attempt {winner.number} has no commit. Retry it, or select another.",
            attempt=winner.id,
        )
    verb = "overrule" if overrule else "select"
    selected_by = by or tx.actor
    transition(
        tx,
        sql.ROUNDS,
        verb,
        round.id,
        event_data={
            "winner": winner.id,
            "commit": winner_commit,
            "by": selected_by,
            "reason": reason,
        },
        winner_id=winner.id,
        winner_commit=winner_commit,
        reason=reason,
        decided_by=selected_by,
        # A judge that is still running is recorded all the same.
        needs_driver=int(round.has_pending_verdict),
        ended_at=tx.now,
    )
    _record_selection(tx, round, verb, winner.id, winner_commit, selected_by, reason)
    return get(tx, locked.id)


def _check_selection(tx: Tx, race: Race, round: Round, winner: Attempt, *, overrule: bool) -> None:
    """Raise Refused for an attempt that cannot win, IllegalMove for a round that has a winner."""
    if overrule and not is_person(tx.actor):
        raise Refused(
            "Only a person can overrule checks, judges and selections.",
            id=race.id,
            reason="person_required",
        )
    if winner.state is not AttemptState.COMPLETED:
        raise Refused(
            f"Attempt {winner.number} is {winner.state} and cannot win. Retry it (`corral race "
            f"retry {race.id} {winner.number}`), or select another.",
            id=race.id,
            attempt=winner.id,
            state=winner.state,
            reason="attempt_failed",
        )
    if not winner.can_win and not overrule:
        raise Refused(
            f"Attempt {winner.number} did not pass its checks. Select another, or overrule the "
            "checks with --overrule.",
            id=race.id,
            attempt=winner.id,
            reason="checks_failed",
        )
    if round.state is RoundState.COMPLETED and not overrule:
        raise IllegalMove(
            f"Round {round.number} of {race.id} already has a winner. Start the next round with "
            f"`corral race next {race.id}`, or replace the winner with `corral race select "
            f"{race.id} ROUND.NUMBER --overrule`.",
            id=round.id,
            verb="select",
            state=round.state,
            allowed=sql.ROUNDS.transitions.allowed_from(round.state),
            reason="already_decided",
        )


def _get_first_ranked(race: Race) -> Attempt:
    ranked = race.latest.ranked
    if not ranked:
        raise Refused(
            f"No attempt of round {race.latest.number} can be selected; the round is "
            f"{race.latest.state}. Show it with `corral race show {race.id}`, retry an attempt, or "
            "abandon the round.",
            id=race.id,
            state=race.latest.state,
            reason="no_candidate",
        )
    return ranked[0]


def _record_selection(
    tx: Tx,
    round: Round,
    verb: str,
    attempt_id: str,
    commit: str,
    selected_by: str,
    reason: str | None,
) -> None:
    ranked = round.ranked
    tx.run(
        sql.ADD_SELECTION,
        round_id=round.id,
        number=len(round.selections) + 1,
        verb=verb,
        attempt_id=attempt_id,
        commit_id=commit,
        ranked_first_id=ranked[0].id if ranked else None,
        selected_by=selected_by,
        reason=reason,
        now=tx.now,
    )


def record_graft(tx: Tx, race: str, round: Round, trial: GraftTrial) -> Graft:
    """Record a graft that was tried onto the winner of `round`.

    The commit of a kept graft becomes the winner's commit. Raises Conflict when the winner has
    changed since the graft was started.
    """
    locked = lock_race(tx, race)
    current = next(other for other in locked.rounds if other.id == round.id)
    if trial.kept and (
        current.winner_commit != round.winner_commit or current.winner_id != round.winner_id
    ):
        raise Conflict(
            f"The winner of round {round.number} of {locked.id} has changed. Graft onto the new "
            "winner.",
            id=locked.id,
        )
    source = {"from": trial.attempt_id, "files": trial.files[:20]}
    if trial.kept:
        assert trial.commit is not None
        assert current.winner_id is not None
        transition(
            tx,
            sql.ROUNDS,
            "graft",
            round.id,
            event_data={**source, "commit": trial.commit},
            winner_commit=trial.commit,
        )
        _record_selection(
            tx, current, "graft", current.winner_id, trial.commit, tx.actor, trial.reason
        )
    else:
        tx.emit(
            "round",
            "reject_graft",
            round.id,
            project_id=locked.project_id,
            data={**source, "reason": trial.reason},
        )
    return tx.one(
        sql.ADD_GRAFT,
        id=tx.new_id("grf"),
        round_id=round.id,
        attempt_id=trial.attempt_id,
        files=encode_json(trial.files, "The files"),
        commit_id=trial.commit,
        kept=int(trial.kept),
        checks=encode_json(trial.checks, "The checks"),
        reason=trial.reason,
        created_by=tx.actor,
        now=tx.now,
    )


def request_judge(
    tx: Tx, race: str, judge: str, *, samples: int | None = None, rubric: str | None = None
) -> Race:
    """Ask a judge to rank the latest round, or to rank it again.

    A driver starts the judge. Raises Refused unless the round is undecided and at least two
    attempts passed.
    """
    locked = lock_race(tx, race)
    latest = locked.latest
    if latest.state is not RoundState.SELECTING or len(latest.ranked) < 2:
        raise Refused(
            f"Round {latest.number} of {locked.id} cannot be judged: it is {latest.state} and "
            f"{len(latest.ranked)} attempts passed. A judge needs an undecided round with at least "
            "two attempts that passed.",
            id=locked.id,
            state=latest.state,
        )
    plan = locked.plan
    more = plan.samples if samples is None else samples
    ids = {attempt.id for attempt in latest.ranked}
    earlier = sum({*verdict.labels.values()} == ids for verdict in latest.verdicts)
    plan = replace(plan, judge=judge, samples=more + earlier, rubric=rubric or plan.rubric)
    validate_plan(plan)
    tx.one(
        sql.SET_PLAN,
        id=locked.id,
        plan=encode_json(plan, "The plan"),
        budget_micros=locked.budget_micros,
    )
    tx.run(sql.SET_NEEDS_DRIVER, id=latest.id, needs_driver=1)
    tx.emit("race", "judge", locked.id, project_id=locked.project_id, data={"judge": judge})
    return get(tx, locked.id)
