"""Starting races, looking at them, choosing winners, and going on from these."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from corral.db.bulk_transitions import encode_rows
from corral.db.transitions import create, move
from corral.db.tx import Tx
from corral.domain.projects import ops as projects
from corral.domain.races import sql
from corral.domain.races.limits import check_plan, share_of, summed
from corral.domain.races.model import (
    Attempt,
    AttemptState,
    Choice,
    Entry,
    Graft,
    Plan,
    Race,
    RaceState,
    Round,
    RoundState,
    Verdict,
)
from corral.domain.races.ranking import ranked
from corral.domain.races.refs import branch_name, folder_name, to_be_decided
from corral.domain.races.variations import prompt_of
from corral.domain.runs import ops as runs
from corral.domain.settings import ops as settings
from corral.kernel.errors import Conflict, Invalid, NotFound, Refused
from corral.kernel.money import check_micros
from corral.kernel.pagination import LAST_ID, Page, check_limit, decode_cursor, page_of
from corral.kernel.text import MAX_NAME, clean_text, encode_json

MAX_PROMPT = 1 << 20


# -- starting ----------------------------------------------------------------------------------


def start(
    tx: Tx,
    prompt: str,
    entries: Sequence[Entry],
    plan: Plan,
    *,
    project: str,
    repository: str,
    inside: str,
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
    check_plan(plan)
    if budget_micros is not None:
        check_micros(budget_micros, "The budget")
    project_id = projects.get(tx, project).id
    race = create(
        tx,
        sql.RACES,
        {
            "id": tx.new_id("rac"),
            "project_id": project_id,
            "name": _title(name or tx.without_secrets(text)),
            "prompt": text,
            "repository": repository,
            "inside": inside,
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
    check_repository(found)
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


def check_repository(race: Race) -> None:
    """Raise Refused for an imported race: it has no commits to continue from."""
    if not race.repository:
        raise Refused(
            f"{race.id} was imported from another tool and has no repository. Start a new race "
            "with `corral race start`.",
            id=race.id,
            reason="imported",
        )


def _parent(race: Race, from_round: int | None) -> Round:
    for each in race.rounds:
        if each.state in (RoundState.RUNNING, RoundState.SELECTING, RoundState.FAILED):
            raise Conflict(
                f"Round {each.number} of {race.id} is {each.state}; {to_be_decided(race, each)}.",
                id=race.id,
                round=each.number,
                state=each.state,
                reason="round_open",
            )
    decided = [each for each in race.rounds if each.state is RoundState.COMPLETED]
    if from_round is not None:
        decided = [each for each in decided if each.number == from_round]
    if not decided:
        which = "a winner" if from_round is None else f"a round {from_round} with a winner"
        raise Refused(
            f"{race.id} has not {which} to go on from; `corral race show {race.id}` shows its "
            "rounds.",
            id=race.id,
            reason="no_winner",
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
            "budget_micros": share_of(race, number),
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
                "worktree": folder_name(folder, race, number, place, 1),
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
            reason="too_many_attempts",
        )


def _title(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "race")[:60]


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
        raise Invalid(
            "Ask for the races of a project, or for those in a state, not for both.",
            reason="project_or_state",
        )
    if state is not None and state not in RaceState._value2member_map_:
        raise Invalid(
            f"{state!r} is none of {', '.join(RaceState)}.", state=state, reason="unknown_state"
        )
    (before,) = decode_cursor(after, LAST_ID)
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
    costs = [each.cost_micros for each in attempts] + [each.cost_micros for each in verdicts]
    known = [cost for cost in costs if cost is not None]
    return replace(race, rounds=made, spent_micros=sum(known) if known else None)


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


def attempt_of(tx: Tx, id: str) -> Attempt:
    """An attempt by its id, which may be shortened."""
    return _now(tx, sql.ATTEMPTS.get(tx, sql.ATTEMPT_IDS.resolve(tx, id)))


# -- what the verbs share ------------------------------------------------------------------------


def locked(tx: Tx, race: str) -> Race:
    """A race, whole, for a change that looks at several of its rows."""
    id = sql.IDS.resolve(tx, race)
    tx.serialize(f"race:{id}")
    return get(tx, id)


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
