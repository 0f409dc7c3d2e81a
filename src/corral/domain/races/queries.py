"""Reading races: one with everything that belongs to it, lists, and win rates."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from corral.db.statement import encode_rows
from corral.db.tx import Tx
from corral.domain.projects import ops as projects
from corral.domain.races import sql
from corral.domain.races.model import (
    Attempt,
    AttemptState,
    Graft,
    JudgeVerdict,
    Race,
    RaceState,
    Round,
    Selection,
    WinRate,
    add_costs,
)
from corral.domain.races.ranking import compute_wilson_interval, rank_attempts
from corral.domain.runs import ops as runs
from corral.kernel.errors import Invalid, NotFound
from corral.kernel.pagination import Page, check_limit
from corral.kernel.validation import check_choice, check_int


def get(tx: Tx, id: str) -> Race:
    """Return a race by its id or a prefix of it, with its rounds and all that belongs to them."""
    return load_race(tx, sql.RACES.get(tx, sql.IDS.resolve(tx, id)))


def lock_race(tx: Tx, race: str) -> Race:
    """Serialize changes to a race, and return it as it is now."""
    id = sql.IDS.resolve(tx, race)
    tx.serialize(f"race:{id}")
    return get(tx, id)


def list_races(
    tx: Tx,
    *,
    project: str | None = None,
    state: str | None = None,
    after: str | None = None,
    limit: int = 50,
) -> Page[Race]:
    """List races without their rounds, newest first: all, of a project, or in a state."""
    if project is not None and state is not None:
        raise Invalid(
            "Filter races by project or by state, not by both.", reason="project_or_state"
        )
    filters: dict[str, Any] = {}
    if project is not None:
        filters["project"] = projects.get(tx, project).id
    if state is not None:
        filters["state"] = check_choice(state, RaceState, "The race state")
    return sql.LISTS[tuple(filters)].page(tx, after=after, limit=limit, **filters)


def find_latest(tx: Tx, project: str) -> Race | None:
    """Return the race of a project that was started last, or None."""
    id = tx.value(sql.LATEST_OF_PROJECT, project=projects.get(tx, project).id)
    return None if id is None else get(tx, id)


def get_attempt(tx: Tx, id: str) -> Attempt:
    """Return an attempt by its id or a prefix of it."""
    return with_current_cost(tx, sql.ATTEMPTS.get(tx, sql.ATTEMPT_IDS.resolve(tx, id)))


def list_with_worktree(tx: Tx, *, after: str = "", limit: int = 500) -> list[Attempt]:
    """List attempts whose worktrees have not been removed, ordered by worktree."""
    return tx.all(sql.WITH_WORKTREE, after=after, limit=check_limit(limit))


def win_rates(tx: Tx, *, by: str = "agent", since_ms: int | None = None) -> list[WinRate]:
    """Return how often agents, models, providers or variations win decided rounds, and the cost.

    Each rate comes with its 95 % confidence interval.
    """
    if by not in sql.WIN_RATES:
        raise Invalid(f"Cannot group by {by!r}. Use one of {', '.join(sql.WIN_RATES)}.", by=by)
    if since_ms is not None and check_int(since_ms, "The time to look back") < 0:
        raise Invalid(
            "The time to look back must not be negative. Give a duration such as 7d.",
            since_ms=since_ms,
        )
    since = 0 if since_ms is None else tx.now - since_ms
    return [_with_rates(row) for row in tx.all(sql.WIN_RATES[by], since=since, limit=200)]


def _with_rates(row: WinRate) -> WinRate:
    low, high = compute_wilson_interval(row.wins, row.attempts)
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


# -- loading -------------------------------------------------------------------------------------


def load_race(tx: Tx, race: Race) -> Race:
    """Return the race with its rounds and everything that belongs to them."""
    rounds = tx.all(sql.ROUNDS_OF_RACE, race_id=race.id)
    attempts = [
        with_current_cost(tx, attempt) for attempt in tx.all(sql.ATTEMPTS_OF_RACE, race_id=race.id)
    ]
    verdicts = tx.all(sql.VERDICTS_OF_RACE, race_id=race.id)
    keys = encode_rows([round.id for round in rounds])
    selections = tx.all(sql.SELECTIONS, keys_=keys)
    grafts = tx.all(sql.GRAFTS, keys_=keys)
    loaded = [_assemble_round(round, attempts, verdicts, selections, grafts) for round in rounds]
    costs = [attempt.cost_micros for attempt in attempts]
    costs += [verdict.cost_micros for verdict in verdicts]
    known_costs = [cost for cost in costs if cost is not None]
    return replace(race, rounds=loaded, spent_micros=sum(known_costs) if known_costs else None)


def load_round(tx: Tx, round: Round) -> Round:
    """Return the round with its ranked attempts and its verdicts."""
    attempts = [
        with_current_cost(tx, attempt)
        for attempt in tx.all(sql.ATTEMPTS_OF_ROUND, round_id=round.id)
    ]
    verdicts = tx.all(sql.VERDICTS_OF_ROUND, round_id=round.id)
    return _assemble_round(round, attempts, verdicts, [], [])


def _assemble_round(
    round: Round,
    attempts: Sequence[Attempt],
    verdicts: Sequence[JudgeVerdict],
    selections: Sequence[Selection],
    grafts: Sequence[Graft],
) -> Round:
    """Return the round with those of the rows that belong to it."""
    own_attempts = sorted(
        (attempt for attempt in attempts if attempt.round_id == round.id),
        key=lambda attempt: attempt.number,
    )
    own_verdicts = [verdict for verdict in verdicts if verdict.round_id == round.id]
    return replace(
        round,
        attempts=[
            replace(attempt, is_winner=attempt.id == round.winner_id)
            for attempt in rank_attempts(own_attempts, own_verdicts)
        ],
        verdicts=own_verdicts,
        selections=[selection for selection in selections if selection.round_id == round.id],
        grafts=[graft for graft in grafts if graft.round_id == round.id],
    )


def with_current_cost(tx: Tx, attempt: Attempt) -> Attempt:
    """Return a running attempt with the cost and the model of its run so far."""
    if attempt.state is not AttemptState.RUNNING or attempt.run_id is None:
        return attempt
    try:
        run = runs.get(tx, attempt.run_id)
    except NotFound:
        return attempt
    return replace(
        attempt,
        cost_micros=add_costs(attempt.previous_cost_micros, run.cost_micros),
        model=run.model or attempt.model,
    )
