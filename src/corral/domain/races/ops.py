"""Starting races and rounds, and ending them."""

from collections.abc import Sequence

from msgspec.structs import replace

from corral.db.transitions import create, transition
from corral.db.tx import Tx
from corral.domain.projects import ops as projects
from corral.domain.races import sql
from corral.domain.races.attempts import end_attempt
from corral.domain.races.limits import compute_round_budget, validate_plan
from corral.domain.races.model import (
    AttemptSpec,
    Race,
    RaceBase,
    RacePlan,
    RaceState,
    Round,
    RoundState,
)
from corral.domain.races.queries import get, load_race, lock_race
from corral.domain.races.refs import (
    find_round,
    make_branch_name,
    make_worktree_path,
    suggest_next_step,
)
from corral.domain.races.variations import vary_prompt
from corral.domain.settings import ops as settings
from corral.kernel.errors import Conflict, Invalid, Refused
from corral.kernel.money import check_micros
from corral.kernel.validation import MAX_NAME, check_optional_text, check_text, encode_json

MAX_PROMPT = 1 << 20


# -- start ---------------------------------------------------------------------------------------


def start(
    tx: Tx,
    prompt: str,
    entries: Sequence[AttemptSpec],
    plan: RacePlan,
    base: RaceBase,
    *,
    project: str,
    host: str,
    folder: str,
    name: str | None = None,
    budget_micros: int | None = None,
) -> Race:
    """Create a race and its first round; a driver on `host` prepares the attempts later.

    Their worktrees are created below `folder`.
    """
    text = check_text(prompt, "The prompt", max_bytes=MAX_PROMPT)
    validate_plan(plan)
    if budget_micros is not None:
        check_micros(budget_micros, "The budget")
    project_id = projects.get(tx, project).id
    race = create(
        tx,
        sql.RACES,
        {
            "id": tx.new_id("rac"),
            "project_id": project_id,
            "name": _choose_name(tx, name, text),
            "prompt": text,
            "repository": base.repository,
            "subdirectory": base.subdirectory,
            "managed_repository": int(base.managed_repository),
            "branch": base.branch,
            "base_commit": base.commit,
            "host": host,
            "plan": encode_json(plan, "The plan"),
            "budget_micros": budget_micros,
            "created_at": tx.now,
            "created_by": tx.actor,
        },
        event_data={"attempts": len(entries), "base": base.commit},
    )
    _create_round(tx, race, 1, entries, text, base_commit=base.commit, folder=folder)
    return load_race(tx, race)


def next_round(
    tx: Tx,
    race: str,
    entries: Sequence[AttemptSpec],
    *,
    folder: str,
    prompt: str | None = None,
    from_round: int | None = None,
) -> Race:
    """Start another round from the winner of the last round, or of `from_round`.

    Reopens a race that has ended. Raises Conflict while a round is undecided, and Refused when
    there is no winner or the budget is spent.
    """
    locked = lock_race(tx, race)
    require_repository(locked)
    parent = _find_parent(locked, from_round)
    if locked.state is not RaceState.ACTIVE:
        transition(tx, sql.RACES, "reopen", locked.id, ended_at=None, reason=None)
    text = locked.latest.prompt if prompt is None else prompt
    text = check_text(text, "The prompt", max_bytes=MAX_PROMPT)
    assert parent.winner_commit is not None
    number = len(locked.rounds) + 1
    _create_round(
        tx,
        locked,
        number,
        entries,
        text,
        base_commit=parent.winner_commit,
        parent=parent,
        folder=folder,
    )
    return get(tx, locked.id)


def require_repository(race: Race) -> None:
    """Raise Refused for an imported race: it has no commits to continue from."""
    if not race.repository:
        raise Refused(
            f"{race.id} was imported from another tool and has no repository. Start a new race "
            "with `corral race start`.",
            id=race.id,
            reason="imported",
        )


def _find_parent(race: Race, from_round: int | None) -> Round:
    """Return the round with a winner from which the next round starts."""
    for round in race.rounds:
        if round.state in (RoundState.RUNNING, RoundState.SELECTING, RoundState.FAILED):
            raise Conflict(
                f"Round {round.number} of {race.id} is {round.state}. "
                f"{suggest_next_step(race, round)}.",
                id=race.id,
                round=round.number,
                state=round.state,
                reason="round_open",
            )
    decided = [round for round in race.rounds if round.state is RoundState.COMPLETED]
    if from_round is not None:
        decided = [round for round in decided if round.number == from_round]
    if not decided:
        problem = "no round has a winner"
        if from_round is not None:
            problem = f"it has no round {from_round} with a winner"
        raise Refused(
            f"Cannot start another round of {race.id}: {problem}. Show its rounds with "
            f"`corral race show {race.id}`.",
            id=race.id,
            reason="no_winner",
        )
    return decided[-1]


def _create_round(
    tx: Tx,
    race: Race,
    number: int,
    entries: Sequence[AttemptSpec],
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
            "budget_micros": compute_round_budget(race, number),
            "needs_driver": 1,
            "host": race.host,
            "fence": 0,
            "created_at": tx.now,
        },
        event_data={
            "race": race.id,
            "number": number,
            "attempts": len(entries),
            "base": base_commit,
        },
    )
    for position, entry in enumerate(entries, 1):
        _create_attempt(tx, race, round, position, entry, folder)


def _create_attempt(
    tx: Tx, race: Race, round: Round, number: int, entry: AttemptSpec, folder: str
) -> None:
    create(
        tx,
        sql.ATTEMPTS,
        {
            "id": tx.new_id("att"),
            "race_id": race.id,
            "round_id": round.id,
            "project_id": race.project_id,
            "number": number,
            "agent": check_optional_text(entry.agent, "The agent", max_bytes=MAX_NAME),
            "variation": entry.variation,
            "prompt": vary_prompt(round.prompt, entry.variation),
            "branch": make_branch_name(race, round.number, number, 1),
            "worktree": make_worktree_path(folder, race, round.number, number, 1),
            "try_number": 1,
            "checks": "[]",
            "created_at": tx.now,
        },
        event_data={
            "race": race.id,
            "round": round.number,
            "number": number,
            "agent": entry.agent,
        },
    )


def _check_count(tx: Tx, race: Race, count: int) -> None:
    if not count:
        raise Invalid("A round needs at least one attempt. Name agents: --agents claude:2,codex:2.")
    limit = int(settings.get_value(tx, "races.max_attempts", project=race.project_id))
    if count > limit:
        raise Refused(
            f"A round may have at most {limit} attempts, not {count}. Request fewer, or raise the "
            f"limit with `corral setting set races.max_attempts {count}`.",
            attempts=count,
            limit=limit,
            reason="too_many_attempts",
        )


def _choose_name(tx: Tx, name: str | None, prompt: str) -> str:
    """Return the given name, or the beginning of the prompt's first line."""
    text = name or tx.without_secrets(prompt)
    line = next((line.strip() for line in text.splitlines() if line.strip()), "race")
    # A given name is not cut: its column rejects secrets, and recognizes only whole ones.
    return check_text(line, "The name", max_bytes=MAX_NAME) if name else line[:60]


# -- end -----------------------------------------------------------------------------------------


def abandon(tx: Tx, race: str, *, round: int | None = None, reason: str | None = None) -> Race:
    """Give up a race, or one round of it; commits and worktrees are kept.

    Open attempts are cancelled. The driver stops their runs.
    """
    locked = lock_race(tx, race)
    reason = check_optional_text(reason, "The reason")
    if round is not None:
        _abandon_round(tx, find_round(locked, round), reason)
        return get(tx, locked.id)
    for open_round in locked.rounds:
        if open_round.ended_at is None:
            _abandon_round(tx, open_round, reason)
    transition(
        tx,
        sql.RACES,
        "abandon",
        locked.id,
        event_data={"reason": reason},
        ended_at=tx.now,
        reason=reason,
    )
    return get(tx, locked.id)


def _abandon_round(tx: Tx, round: Round, reason: str | None) -> None:
    # needs_driver stays set while runs have to be stopped or a judge is running: the driver stops
    # the runs and records the verdict.
    has_open = False
    for attempt in round.attempts:
        if attempt.is_open:
            has_open = True
            end_attempt(tx, attempt, "cancel", reason or "the round was abandoned")
    transition(
        tx,
        sql.ROUNDS,
        "abandon",
        round.id,
        event_data={"reason": reason},
        reason=reason,
        needs_driver=int(has_open or round.has_pending_verdict),
        ended_at=tx.now,
    )


def finish(tx: Tx, race: str, *, reason: str | None = None) -> Race:
    """Complete a race. Raises Conflict while a round is undecided."""
    locked = lock_race(tx, race)
    if any(round.ended_at is None for round in locked.rounds):
        raise Conflict(
            f"Round {locked.latest.number} of {locked.id} is {locked.latest.state}. Select its "
            "winner or abandon it first.",
            id=locked.id,
        )
    reason = check_optional_text(reason, "The reason")
    transition(
        tx,
        sql.RACES,
        "finish",
        locked.id,
        event_data={"reason": reason},
        ended_at=tx.now,
        reason=reason,
    )
    return get(tx, locked.id)


# -- updates -------------------------------------------------------------------------------------


def set_plan_limits(tx: Tx, race: str, budget_micros: int | None, rounds: int) -> Race:
    """Change the budget and the planned number of rounds of a race."""
    locked = lock_race(tx, race)
    if budget_micros is not None:
        check_micros(budget_micros, "The budget")
    plan = replace(locked.plan, rounds=rounds)
    validate_plan(plan)
    tx.one(
        sql.SET_PLAN,
        id=locked.id,
        plan=encode_json(plan, "The plan"),
        budget_micros=budget_micros,
    )
    tx.emit("race", "change", locked.id, project_id=locked.project_id)
    return get(tx, locked.id)


def mark_merged(tx: Tx, race: str, commit: str, into: str) -> Race:
    """Record that the winner's commit was merged into a branch."""
    merged = tx.first(sql.SET_MERGED, id=sql.IDS.resolve(tx, race), merged_commit=commit)
    if merged is None:
        raise sql.IDS.not_found(race)
    tx.emit(
        "race",
        "merge",
        merged.id,
        project_id=merged.project_id,
        data={"commit": commit, "into": into},
    )
    return load_race(tx, merged)


def mark_cleaned(tx: Tx, attempt_ids: Sequence[str]) -> int:
    """Record that the worktrees of attempts were removed."""
    for id in attempt_ids:
        tx.run(sql.SET_CLEANED, id=id, now=tx.now)
        tx.emit("attempt", "clean", id)
    return len(attempt_ids)
