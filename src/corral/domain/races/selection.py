"""Choosing winners, grafting onto them, ending what is under way, and trying again."""

from collections.abc import Sequence

from msgspec.structs import replace

from corral.db.transitions import move
from corral.db.tx import Tx
from corral.domain.races import sql
from corral.domain.races.limits import check_plan, share_of
from corral.domain.races.model import (
    Attempt,
    AttemptState,
    Check,
    Graft,
    Race,
    Round,
    RoundState,
    VerdictState,
    Winning,
)
from corral.domain.races.ops import end_attempt, get, locked, whole
from corral.domain.races.ranking import confidence
from corral.domain.races.refs import branch_name, find_attempt, folder_name, round_of
from corral.kernel.errors import Conflict, IllegalMove, Invalid, Refused
from corral.kernel.money import check_micros
from corral.kernel.pagination import check_limit
from corral.kernel.text import check_int, clean_text, encode_json

# -- choosing ----------------------------------------------------------------------------------


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
    """Choose the winner of a round, once: the attempt that is named, else the one that ranks first.

    Only what ended well and passed its gates can be chosen. A person may overrule that, and an
    earlier choice too, with `overrule`; what the ranking had said is kept beside it.
    """
    found = locked(tx, race)
    why = clean_text(reason, "The reason") if reason else None
    chosen = _best(found) if attempt is None else find_attempt(found, attempt)
    round = next(each for each in found.rounds if each.id == chosen.round_id)
    if overrule and tx.actor.startswith("agent:"):
        raise Refused(
            "Only a person overrules gates, judges and choices.",
            id=found.id,
            reason="person_required",
        )
    if chosen.state is not AttemptState.COMPLETED:
        raise Refused(
            f"Attempt {chosen.number} is {chosen.state} and left nothing that can win; retry it "
            f"(`corral race retry {found.id} {chosen.number}`), or choose another.",
            id=found.id,
            attempt=chosen.id,
            state=chosen.state,
            reason="attempt_failed",
        )
    if not chosen.can_win and not overrule:
        raise Refused(
            f"Attempt {chosen.number} did not pass its checks; choose another, or overrule them "
            "with --overrule.",
            id=found.id,
            attempt=chosen.id,
            reason="checks_failed",
        )
    if round.state is RoundState.COMPLETED and not overrule:
        raise IllegalMove(
            f"Round {round.number} of {found.id} has its winner; go on with `corral race next "
            f"{found.id}`, or choose another one with `corral race select {found.id} "
            "ROUND.NUMBER --overrule`.",
            id=round.id,
            verb="select",
            state=round.state,
            allowed=sql.ROUNDS.moves.allowed_from(round.state),
            reason="already_decided",
        )
    kept = commit or chosen.commit
    if kept is None:
        raise Refused(f"Attempt {chosen.number} has no commit; retry it.", attempt=chosen.id)
    verb = "overrule" if overrule else "select"
    who = by or tx.actor
    move(
        tx,
        sql.ROUNDS,
        verb,
        round.id,
        note={"winner": chosen.id, "commit": kept, "by": who, "reason": why},
        winner_id=chosen.id,
        winner_commit=kept,
        reason=why,
        decided_by=who,
        goes_on=_still_judged(round),
        ended_at=tx.now,
    )
    _note_choice(tx, round, verb, chosen.id, kept, who, why)
    return get(tx, found.id)


def _still_judged(round: Round) -> int:
    """Whether a judge is at work on a round: its answer is taken in all the same."""
    return int(any(verdict.state is VerdictState.ASKED for verdict in round.verdicts))


def _best(race: Race) -> Attempt:
    best = race.latest.ranked
    if not best:
        raise Refused(
            f"No attempt of round {race.latest.number} can be chosen: it is {race.latest.state}. "
            f"Look at `corral race show {race.id}`, retry an attempt, or abandon it.",
            id=race.id,
            state=race.latest.state,
            reason="nothing_to_choose",
        )
    return best[0]


def _note_choice(
    tx: Tx, round: Round, verb: str, attempt_id: str, commit: str, by: str, reason: str | None
) -> None:
    first = round.ranked
    tx.run(
        sql.ADD_CHOICE,
        round_id=round.id,
        number=len(round.choices) + 1,
        verb=verb,
        attempt_id=attempt_id,
        commit_id=commit,
        ranked_first_id=first[0].id if first else None,
        by=by,
        reason=reason,
        at=tx.now,
    )


def add_graft(
    tx: Tx,
    race: str,
    round: Round,
    attempt: Attempt,
    files: Sequence[str],
    *,
    commit: str | None,
    checks: Sequence[Check],
    kept: bool,
    reason: str,
) -> Graft:
    """Put down a graft that was tried; one that is kept is the winner's commit from now on.

    Conflict when another commit became the winner's meanwhile.
    """
    found = locked(tx, race)
    now = next(each for each in found.rounds if each.id == round.id)
    if kept and (now.winner_commit != round.winner_commit or now.winner_id != round.winner_id):
        raise Conflict(
            f"Round {round.number} of {found.id} has another winner now; graft onto that.",
            id=found.id,
        )
    if kept:
        assert commit is not None
        assert now.winner_id is not None
        move(
            tx,
            sql.ROUNDS,
            "graft",
            round.id,
            note={"from": attempt.id, "files": list(files)[:20], "commit": commit},
            winner_commit=commit,
        )
        _note_choice(tx, now, "graft", now.winner_id, commit, tx.actor, reason)
    else:
        tx.note(
            "round",
            "refuse_graft",
            round.id,
            project_id=found.project_id,
            data={"from": attempt.id, "files": list(files)[:20], "reason": reason},
        )
    made = tx.one(
        sql.ADD_GRAFT,
        id=tx.new_id("grf"),
        round_id=round.id,
        attempt_id=attempt.id,
        files=encode_json(list(files), "The files"),
        commit_id=commit,
        kept=int(kept),
        checks=encode_json(list(checks), "The checks"),
        reason=reason,
        by=tx.actor,
        at=tx.now,
    )
    assert made is not None
    return made


# -- ending, and trying again --------------------------------------------------------------------


def abandon(tx: Tx, race: str, *, round: int | None = None, reason: str | None = None) -> Race:
    """Give up a round, or the whole race; what was made stays where it is.

    What is still under way of it is cancelled; whoever calls this stops the runs.
    """
    found = locked(tx, race)
    why = clean_text(reason, "The reason") if reason else None
    if round is not None:
        _abandon_round(tx, round_of(found, round), why)
        return get(tx, found.id)
    for each in found.rounds:
        if each.ended_at is None:
            _abandon_round(tx, each, why)
    move(tx, sql.RACES, "abandon", found.id, note={"reason": why}, ended_at=tx.now, reason=why)
    return get(tx, found.id)


def _abandon_round(tx: Tx, round: Round, reason: str | None) -> None:
    # Whoever drives it sees to it that the runs of what is cancelled end.
    under = False
    for attempt in round.attempts:
        if attempt.is_open:
            under = True
            end_attempt(tx, attempt, "cancel", reason or "the round was abandoned")
    move(
        tx,
        sql.ROUNDS,
        "abandon",
        round.id,
        note={"reason": reason},
        reason=reason,
        goes_on=int(under or _still_judged(round)),
        ended_at=tx.now,
    )


def finish(tx: Tx, race: str, *, reason: str | None = None) -> Race:
    """Say that a race is over; its rounds must be decided."""
    found = locked(tx, race)
    if any(each.ended_at is None for each in found.rounds):
        raise Conflict(
            f"Round {found.latest.number} of {found.id} is {found.latest.state}; choose its "
            "winner or abandon it first.",
            id=found.id,
        )
    why = clean_text(reason, "The reason") if reason else None
    move(tx, sql.RACES, "finish", found.id, note={"reason": why}, ended_at=tx.now, reason=why)
    return get(tx, found.id)


def retry(tx: Tx, race: str, attempt: str | int, *, folder: str) -> Race:
    """Try an attempt again that did not pass, in a new worktree from the same base.

    What it left before stays on its old branch and in its old worktree.
    """
    found = locked(tx, race)
    again = find_attempt(found, attempt)
    round = next(each for each in found.rounds if each.id == again.round_id)
    if again.is_open or again.can_win:
        what = "has passed" if again.can_win else f"is {again.state}"
        raise Conflict(
            f"Attempt {again.number} {what}; only what failed is tried again.", attempt=again.id
        )
    if found.budget_micros is not None:
        share_of(found, found.plan.rounds)
    if round.state is not RoundState.RUNNING:
        move(tx, sql.ROUNDS, "retry", round.id, goes_on=1, reason=None)
    tries = again.tries + 1
    move(
        tx,
        sql.ATTEMPTS,
        "retry",
        again.id,
        note={"tries": tries},
        tries=tries,
        branch=branch_name(found, round.number, again.number, tries),
        worktree=folder_name(folder, found, round.number, again.number, tries),
        earlier_micros=again.cost_micros,
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
    return get(tx, found.id)


def cancel(tx: Tx, race: str, attempt: str | int, *, reason: str | None = None) -> Attempt:
    """End an attempt that is under way; whoever calls this stops its run."""
    why = clean_text(reason, "The reason") if reason else "cancelled"
    return end_attempt(tx, find_attempt(locked(tx, race), attempt), "cancel", why)


def set_merged(tx: Tx, race: str, commit: str, into: str) -> Race:
    """Note that the winner's commit was merged into a branch."""
    merged = tx.one(sql.SET_MERGED, id=sql.IDS.resolve(tx, race), merged_commit=commit)
    if merged is None:
        raise sql.IDS.missing(race)
    tx.note(
        "race",
        "merge",
        merged.id,
        project_id=merged.project_id,
        data={"commit": commit, "into": into},
    )
    return whole(tx, merged)


def ask_judge(
    tx: Tx, race: str, judge: str, *, samples: int | None = None, rubric: str | None = None
) -> Race:
    """Have the latest round judged, or judged again, by whoever is named."""
    found = locked(tx, race)
    latest = found.latest
    if latest.state is not RoundState.SELECTING or len(latest.ranked) < 2:
        raise Refused(
            f"Round {latest.number} of {found.id} is {latest.state}, with {len(latest.ranked)} "
            "attempts that passed; a judge chooses between two or more, before somebody has.",
            id=found.id,
            state=latest.state,
        )
    plan = found.plan
    more = plan.samples if samples is None else samples
    ids = {attempt.id for attempt in latest.ranked}
    before = sum({*verdict.labels.values()} == ids for verdict in latest.verdicts)
    plan = replace(plan, judge=judge, samples=more + before, rubric=rubric or plan.rubric)
    check_plan(plan)
    tx.one(
        sql.SET_PLAN,
        id=found.id,
        plan=encode_json(plan, "The plan"),
        budget_micros=found.budget_micros,
    )
    tx.run(sql.SET_GOES_ON, id=latest.id, goes_on=1)
    tx.note("race", "judge", found.id, project_id=found.project_id, data={"judge": judge})
    return get(tx, found.id)


def set_budget(tx: Tx, race: str, budget_micros: int | None, rounds: int) -> Race:
    """Give a race another budget, or other rounds."""
    found = locked(tx, race)
    if budget_micros is not None:
        check_micros(budget_micros, "The budget")
    plan = replace(found.plan, rounds=rounds)
    check_plan(plan)
    tx.one(
        sql.SET_PLAN,
        id=found.id,
        plan=encode_json(plan, "The plan"),
        budget_micros=budget_micros,
    )
    tx.note("race", "change", found.id, project_id=found.project_id)
    return get(tx, found.id)


def set_cleaned(tx: Tx, attempt_ids: Sequence[str]) -> int:
    """Note that the worktrees of attempts are gone."""
    for id in attempt_ids:
        tx.run(sql.SET_CLEANED, id=id, now=tx.now)
        tx.note("attempt", "clean", id)
    return len(attempt_ids)


def in_place(tx: Tx, *, after: str = "", limit: int = 500) -> list[Attempt]:
    """Attempts whose worktrees have not been taken away, by their worktrees."""
    return tx.all(sql.IN_PLACE, after=after, limit=check_limit(limit))


# -- how attempts fare -------------------------------------------------------------------------


def winning(tx: Tx, *, by: str = "agent", since_ms: int | None = None) -> list[Winning]:
    """Which agents, models, providers or variations win in decided rounds, and at what cost.

    Rates come with the bounds between which they lie with 95 % confidence.
    """
    if by not in sql.WINNING:
        raise Invalid(f"{by!r} is none of {', '.join(sql.WINNING)}.", by=by)
    if since_ms is not None and check_int(since_ms, "The time to look back") < 0:
        raise Invalid("Look back into the past: give a duration such as 7d.", since_ms=since_ms)
    since = 0 if since_ms is None else tx.now - since_ms
    return [_rated(row) for row in tx.all(sql.WINNING[by], since=since, limit=200)]


def _rated(row: Winning) -> Winning:
    low, high = confidence(row.wins, row.attempts)
    per_win = None
    if row.wins and row.cost_micros is not None:
        per_win = row.cost_micros // row.wins
    return replace(
        row,
        win_rate=round(row.wins / row.attempts, 4),
        low=round(low, 4),
        high=round(high, 4),
        micros_per_win=per_win,
    )
