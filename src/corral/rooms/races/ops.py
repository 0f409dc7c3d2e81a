"""Starting races, looking at them, choosing winners, and going on from these."""

import re
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from corral.db.moves import create, encode_rows, move
from corral.db.tx import Tx
from corral.kernel.clock import DAY
from corral.kernel.errors import Conflict, Invalid, NotFound, Refused
from corral.kernel.money import check_micros, format_usd
from corral.kernel.page import Page, check_limit, decode_cursor, page_of
from corral.kernel.text import MAX_NAME, check_int, clean_text, encode_json
from corral.rooms.mail import ops as mail
from corral.rooms.projects import ops as projects
from corral.rooms.races import sql
from corral.rooms.races.model import (
    OPEN,
    Attempt,
    AttemptState,
    Check,
    Choice,
    Entry,
    Graft,
    Plan,
    Race,
    RaceState,
    Round,
    RoundState,
    Verdict,
    Winning,
)
from corral.rooms.races.ranking import confidence, ranked
from corral.rooms.races.variations import prompt_of
from corral.rooms.runs import ops as runs
from corral.rooms.settings import ops as settings

MAX_CHECKS = 20
MAX_PROMPT = 1 << 20
LETTER_MS = 30 * DAY
_LATEST = re.compile(r"(?:(?P<round>\d{1,6})[.:/])?(?P<number>\d{1,6})")


# -- starting ----------------------------------------------------------------------------------


def start(
    tx: Tx,
    prompt: str,
    entries: Sequence[Entry],
    plan: Plan,
    *,
    project: str,
    repository: str,
    private: bool,
    branch: str | None,
    base_commit: str,
    host: str,
    folder: str,
    name: str | None = None,
    budget_micros: int | None = None,
) -> Race:
    """Put down a race and its first round; nothing of it is prepared yet."""
    text = clean_text(prompt, "The prompt", most=MAX_PROMPT)
    _check_plan(plan)
    if budget_micros is not None:
        check_micros(budget_micros, "The budget")
    project_id = projects.get(tx, project).id
    race = create(
        tx,
        sql.RACES,
        {
            "id": tx.new_id("rac"),
            "project_id": project_id,
            "name": _title(name or text),
            "prompt": text,
            "repository": repository,
            "private": int(private),
            "branch": branch,
            "base_commit": base_commit,
            "host": host,
            "plan": encode_json(plan, "The plan"),
            "budget_micros": budget_micros,
            "created_at": tx.now,
            "created_by": tx.actor,
        },
        note={"attempts": len(entries), "base": base_commit},
    )
    assert race is not None
    _begin_round(tx, race, 1, entries, text, base_commit=base_commit, folder=folder)
    return whole(tx, race)


def next_round(
    tx: Tx,
    race: str,
    entries: Sequence[Entry],
    *,
    folder: str,
    prompt: str | None = None,
    from_round: int | None = None,
    by_fence: Round | None = None,
) -> Race:
    """Begin another round from the winner of the last one, or of an earlier one.

    Refused while a round is not decided, and when the money is spent.
    """
    found = locked(tx, race)
    parent = _parent(found, from_round)
    if by_fence is not None and parent.number != found.latest.number:
        return found  # somebody has begun the next one already
    if found.state is not RaceState.ACTIVE:
        move(tx, sql.RACES, "reopen", found.id, ended_at=None, reason=None)
    text = found.latest.prompt if prompt is None else prompt
    text = clean_text(text, "The prompt", most=MAX_PROMPT)
    assert parent.winner_commit is not None
    number = len(found.rounds) + 1
    _begin_round(
        tx,
        found,
        number,
        entries,
        text,
        base_commit=parent.winner_commit,
        parent=parent,
        folder=folder,
    )
    return get(tx, found.id)


def _parent(race: Race, from_round: int | None) -> Round:
    for each in race.rounds:
        if each.state in (RoundState.RUNNING, RoundState.SELECTING, RoundState.FAILED):
            raise Conflict(
                f"Round {each.number} of {race.id} is {each.state}; choose its winner "
                f"(`corral race select {race.id}`), or abandon it.",
                id=race.id,
                round=each.number,
                state=each.state,
            )
    decided = [each for each in race.rounds if each.state is RoundState.COMPLETED]
    if from_round is not None:
        decided = [each for each in decided if each.number == from_round]
    if not decided:
        which = f"Round {from_round}" if from_round is not None else "No round"
        raise Refused(
            f"{which} of {race.id} has a winner to go on from; `corral race show {race.id}` "
            "shows its rounds.".replace(
                "has a winner", "has no winner" if from_round is not None else "has a winner"
            ),
            id=race.id,
        )
    return decided[-1]


def _begin_round(
    tx: Tx,
    race: Race,
    number: int,
    entries: Sequence[Entry],
    prompt: str,
    *,
    base_commit: str,
    folder: str,
    parent: Round | None = None,
) -> None:
    _check_count(tx, race, len(entries))
    round = create(
        tx,
        sql.ROUNDS,
        {
            "id": tx.new_id("rnd"),
            "race_id": race.id,
            "project_id": race.project_id,
            "number": number,
            "parent_id": parent.id if parent else None,
            "base_attempt_id": parent.winner_id if parent else None,
            "base_commit": base_commit,
            "prompt": prompt,
            "budget_micros": _share(race, number),
            "goes_on": 1,
            "host": race.host,
            "fence": 0,
            "created_at": tx.now,
        },
        note={"race": race.id, "number": number, "attempts": len(entries), "base": base_commit},
    )
    assert round is not None
    for place, entry in enumerate(entries, 1):
        create(
            tx,
            sql.ATTEMPTS,
            {
                "id": tx.new_id("att"),
                "race_id": race.id,
                "round_id": round.id,
                "project_id": race.project_id,
                "number": place,
                "agent": clean_text(entry.agent, "The agent", most=MAX_NAME)
                if entry.agent
                else None,
                "variation": entry.variation,
                "prompt": prompt_of(prompt, entry.variation),
                "branch": branch_name(race, number, place, 1),
                "worktree": _folder_name(folder, race, number, place, 1),
                "tries": 1,
                "checks": "[]",
                "created_at": tx.now,
            },
            note={"race": race.id, "round": number, "number": place, "agent": entry.agent},
        )


def _check_count(tx: Tx, race: Race, count: int) -> None:
    if not count:
        raise Invalid("A round needs an attempt; name agents, as in --agents claude:2,codex:2.")
    most = int(settings.value(tx, "races.max_attempts", project=race.project_id))
    if count > most:
        raise Refused(
            f"{count} attempts are more than the {most} that a round may have; take fewer, or "
            f"raise it with `corral setting set races.max_attempts {count}`.",
            attempts=count,
            limit=most,
        )


def _share(race: Race, number: int) -> int | None:
    """What a round may cost: an even share of what is left for the rounds that are still planned."""
    if race.budget_micros is None:
        return None
    left = race.budget_micros - (race.spent_micros or 0)
    if left <= 0:
        raise Refused(
            f"{race.id} has spent {format_usd(race.spent_micros)} of its "
            f"{format_usd(race.budget_micros)}; give it more with --budget.",
            id=race.id,
            spent_micros=race.spent_micros,
            budget_micros=race.budget_micros,
        )
    return left // max(1, race.plan.rounds - number + 1)


def _check_plan(plan: Plan) -> None:
    if len(plan.checks) > MAX_CHECKS:
        raise Invalid(f"A race has up to {MAX_CHECKS} checks, not {len(plan.checks)}.")
    for command in (*plan.checks, *([plan.setup] if plan.setup is not None else [])):
        clean_text(command, "A check or set-up command")
    for name, value, low, high in (
        ("The number of rounds", plan.rounds, 1, 100),
        ("The number of samples", plan.samples, 1, 20),
        ("Enough", plan.enough if plan.enough is not None else 1, 1, 1_000),
    ):
        if not low <= check_int(value, name) <= high:
            raise Invalid(f"{name} goes from {low} to {high}, not {value}.", value=value)


def _title(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "race")[:60]


def branch_name(race: Race, round: int, number: int, tries: int) -> str:
    """A branch for an attempt: git takes the name, and no other attempt has it."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", race.name).strip("-")[:40] or "race"
    again = f"-{tries}" if tries > 1 else ""
    return f"corral/{plain}-{race.id[-6:]}/round-{round}-{number}{again}"


def _folder_name(folder: str, race: Race, round: int, number: int, tries: int) -> str:
    again = f"-{tries}" if tries > 1 else ""
    return f"{folder}/{race.id}/round-{round}-{number}{again}"


# -- looking -----------------------------------------------------------------------------------


def get(tx: Tx, id: str) -> Race:
    """A race with its rounds, attempts, verdicts and choices; the id may be shortened."""
    return whole(tx, sql.RACES.get(tx, sql.IDS.resolve(tx, id)))


def list_races(
    tx: Tx,
    *,
    project: str | None = None,
    state: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Page[Race]:
    """Races, newest first: all, those of a project, or those in a state; without their rounds."""
    if project is not None and state is not None:
        raise Invalid("Ask for the races of a project, or for those in a state, not for both.")
    if state is not None and state not in RaceState._value2member_map_:
        raise Invalid(f"{state!r} is none of {', '.join(RaceState)}.", state=state)
    (before,) = decode_cursor(after, "~")
    given: dict[str, Any] = {}
    if project is not None:
        given["project"] = projects.get(tx, project).id
    if state is not None:
        given["state"] = state
    rows = tx.all(sql.LISTS[tuple(given)], before=before, limit=check_limit(limit) + 1, **given)
    return page_of(rows, limit, lambda race: (race.id,))


def latest_of(tx: Tx, project: str) -> Race | None:
    """The race of a project that was started last."""
    id = tx.value(sql.LATEST_OF_PROJECT, project=projects.get(tx, project).id)
    return None if id is None else get(tx, id)


def whole(tx: Tx, race: Race) -> Race:
    """A race with all that belongs to it."""
    rounds = tx.all(sql.ROUNDS_OF_RACE, race_id=race.id)
    attempts = [_now(tx, each) for each in tx.all(sql.ATTEMPTS_OF_RACE, race_id=race.id)]
    verdicts = tx.all(sql.VERDICTS_OF_RACE, race_id=race.id)
    keys = encode_rows([each.id for each in rounds])
    choices = tx.all(sql.CHOICES, keys_=keys)
    grafts = tx.all(sql.GRAFTS, keys_=keys)
    made = [_fill(each, attempts, verdicts, choices, grafts) for each in rounds]
    costs = [each.cost_micros for each in (*attempts, *verdicts) if each.cost_micros is not None]
    return replace(race, rounds=made, spent_micros=sum(costs) if costs else None)


def whole_round(tx: Tx, round: Round) -> Round:
    """A round with its attempts, ranked, and its verdicts."""
    attempts = [_now(tx, each) for each in tx.all(sql.ATTEMPTS_OF_ROUND, round_id=round.id)]
    verdicts = tx.all(sql.VERDICTS_OF_ROUND, round_id=round.id)
    return _fill(round, attempts, verdicts, [], [])


def _fill(
    round: Round,
    attempts: Sequence[Attempt],
    verdicts: Sequence[Verdict],
    choices: Sequence[Choice],
    grafts: Sequence[Graft],
) -> Round:
    own = sorted(
        (each for each in attempts if each.round_id == round.id), key=lambda each: each.number
    )
    said = [each for each in verdicts if each.round_id == round.id]
    return replace(
        round,
        attempts=[
            replace(each, is_winner=each.id == round.winner_id) for each in ranked(own, said)
        ],
        verdicts=said,
        choices=[each for each in choices if each.round_id == round.id],
        grafts=[each for each in grafts if each.round_id == round.id],
    )


def _now(tx: Tx, attempt: Attempt) -> Attempt:
    """An attempt that is under way, with what its run has cost so far."""
    if attempt.state is not AttemptState.RUNNING or attempt.run_id is None:
        return attempt
    try:
        run = runs.get(tx, attempt.run_id)
    except NotFound:
        return attempt
    return replace(
        attempt,
        cost_micros=summed(attempt.earlier_micros, run.cost_micros),
        model=run.model or attempt.model,
    )


def summed(one: int | None, other: int | None) -> int | None:
    """Two costs together; what is not known counts for nothing unless both are."""
    return None if one is None is other else (one or 0) + (other or 0)


def find_attempt(race: Race, typed: str | int) -> Attempt:
    """An attempt of a race: by its id, the beginning of that, its number in the latest round, or
    as ROUND.NUMBER."""
    text = str(typed)
    match = _LATEST.fullmatch(text)
    if match:
        number = int(match["round"]) if match["round"] else race.latest.number
        found = [
            attempt
            for round in race.rounds
            if round.number == number
            for attempt in round.attempts
            if attempt.number == int(match["number"])
        ]
    else:
        all_of_it = [attempt for round in race.rounds for attempt in round.attempts]
        found = [attempt for attempt in all_of_it if attempt.id.startswith(text)]
    if len(found) != 1 or len(text) > MAX_NAME:
        many = "several attempts" if len(found) > 1 else "no attempt"
        raise NotFound(
            f"{text[:MAX_NAME]!r} names {many} of {race.id}; name one by its number, as 2 or as "
            "ROUND.NUMBER, or by its id.",
            id=race.id,
            attempt=text[:MAX_NAME],
        )
    return found[0]


def attempt_of(tx: Tx, id: str) -> Attempt:
    """An attempt by its id, which may be shortened."""
    return _now(tx, sql.ATTEMPTS.get(tx, sql.ATTEMPT_IDS.resolve(tx, id)))


def round_of(race: Race, number: int | None) -> Round:
    """A round of a race by its number; the latest when none is named."""
    found = [each for each in race.rounds if number is None or each.number == number]
    if not found:
        raise NotFound(
            f"{race.id} has no round {number}; it has {len(race.rounds)}.", id=race.id, round=number
        )
    return found[-1]


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
        raise Refused("Only a person overrules gates, judges and choices.", id=found.id)
    if chosen.state is not AttemptState.COMPLETED:
        raise Refused(
            f"Attempt {chosen.number} is {chosen.state} and left nothing that can win; retry it "
            f"(`corral race retry {found.id} {chosen.number}`), or choose another.",
            id=found.id,
            attempt=chosen.id,
            state=chosen.state,
        )
    if not chosen.can_win and not overrule:
        raise Refused(
            f"Attempt {chosen.number} did not pass its checks; choose another, or overrule them "
            "with --overrule.",
            id=found.id,
            attempt=chosen.id,
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
        goes_on=0,
        ended_at=tx.now,
    )
    _note_choice(tx, round, verb, chosen.id, kept, who, why)
    return get(tx, found.id)


def _best(race: Race) -> Attempt:
    best = race.latest.ranked
    if not best:
        raise Refused(
            f"No attempt of round {race.latest.number} can be chosen: it is {race.latest.state}. "
            f"Look at `corral race show {race.id}`, retry an attempt, or abandon it.",
            id=race.id,
            state=race.latest.state,
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
    for attempt in round.attempts:
        if attempt.is_open:
            end_attempt(tx, attempt, "cancel", reason or "the round was abandoned")
    move(
        tx,
        sql.ROUNDS,
        "abandon",
        round.id,
        note={"reason": reason},
        reason=reason,
        goes_on=0,
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
        _share(found, found.plan.rounds)
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
        worktree=_folder_name(folder, found, round.number, again.number, tries),
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


def end_attempt(tx: Tx, attempt: Attempt, verb: str, reason: str | None, **columns: Any) -> Attempt:
    """Take an attempt to its end, with what its run cost."""
    now = _now(tx, attempt)
    return move(
        tx,
        sql.ATTEMPTS,
        verb,
        attempt.id,
        note={"race": attempt.race_id, "number": attempt.number}
        | ({"reason": reason} if reason else {}),
        reason=reason,
        cost_micros=now.cost_micros,
        model=now.model,
        ended_at=tx.now,
        **columns,
    )


def set_merged(tx: Tx, race: str, commit: str, into: str) -> Race:
    """Note that the winner's commit was merged into a branch."""
    merged = tx.one(sql.SET_MERGED, id=sql.IDS.resolve(tx, race), merged_commit=commit)
    if merged is None:
        raise sql.IDS.missing(race)
    tx.note(
        "race", "merge", merged.id, project_id=merged.project_id, data={"commit": commit, "into": into}
    )
    return whole(tx, merged)


def set_budget(tx: Tx, race: str, budget_micros: int | None, rounds: int) -> Race:
    """Give a race another budget, or other rounds."""
    found = locked(tx, race)
    if budget_micros is not None:
        check_micros(budget_micros, "The budget")
    plan = replace(found.plan, rounds=rounds)
    _check_plan(plan)
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


# -- what the verbs share ------------------------------------------------------------------------


def locked(tx: Tx, race: str) -> Race:
    """A race, whole, for a change that looks at several of its rows."""
    id = sql.IDS.resolve(tx, race)
    tx.serialize(f"race:{id}")
    return get(tx, id)


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


def under_way(round: Round) -> list[Attempt]:
    """The attempts of a round that are not over."""
    return [attempt for attempt in round.attempts if attempt.state in OPEN]
