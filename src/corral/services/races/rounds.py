"""The start of races and rounds, and changes of a round that is in progress.

Each function commits its change, then advances the race.
"""

from collections.abc import Sequence

import msgspec

from corral import config
from corral.adapters.processes import process
from corral.db.database import Database
from corral.db.tx import Tx
from corral.domain.races import attempts, ops, selection
from corral.domain.races.model import AttemptSpec, Race, RacePlan
from corral.kernel.errors import Invalid
from corral.services.races import validation
from corral.services.races.progress import advance_race, get_race


def start_race(
    database: Database,
    prompt: str,
    plan: RacePlan,
    *,
    agents: str | Sequence[str] | None,
    variations: Sequence[str],
    vary_auto: bool,
    project: str | None,
    base: str | None,
    dirty: validation.DirtyPolicy,
    name: str | None,
    budget_micros: int | None,
) -> Race:
    """Start a race; see `Races.start`."""
    names = validation.parse_agents(agents)
    entries = validation.plan_attempts(names, variations, vary_auto)
    host = process.host()
    _validate(database, entries, plan, host, starting=entries, budget_micros=budget_micros)
    race_project = database.write(lambda tx: validation.resolve_project(tx, project))
    validation.require_default_agent(race_project, entries)
    race_base = validation.resolve_base(race_project, base, dirty)
    race = database.write(
        lambda tx: ops.start(
            tx,
            prompt,
            entries,
            plan,
            race_base,
            project=race_project.id,
            host=host,
            folder=str(config.races_folder()),
            name=name,
            budget_micros=budget_micros,
        )
    )
    return advance_race(database, race.id)


def start_next_round(
    database: Database,
    race_ref: str,
    *,
    prompt: str | None,
    agents: str | Sequence[str] | None,
    variations: Sequence[str],
    vary_auto: bool,
    from_round: int | None,
    budget_micros: int | None,
) -> Race:
    """Start the next round of a race; see `Races.next`."""
    race = get_race(database, race_ref)
    ops.require_repository(race)
    previous = race.latest.attempts
    if agents is None and not variations and not vary_auto:
        entries = [AttemptSpec(attempt.agent, attempt.variation) for attempt in previous]
    else:
        previous_agents = [attempt.agent for attempt in previous if attempt.agent is not None]
        names = validation.parse_agents(agents) if agents is not None else previous_agents
        entries = validation.plan_attempts(names, variations, vary_auto)
    budget = race.budget_micros if budget_micros is None else budget_micros
    _validate(database, entries, race.plan, race.host, starting=entries, budget_micros=budget)
    if budget_micros is not None:
        rounds = max(race.plan.rounds, len(race.rounds) + 1)
        database.write(lambda tx: ops.set_plan_limits(tx, race.id, budget_micros, rounds))
    folder = str(config.races_folder())
    database.write(
        lambda tx: ops.next_round(
            tx, race.id, entries, folder=folder, prompt=prompt, from_round=from_round
        )
    )
    return advance_race(database, race.id)


def request_judge(
    database: Database,
    race_ref: str,
    *,
    judge: str | None,
    samples: int | None,
    rubric: str | None,
) -> Race:
    """Ask an agent to rank the attempts that passed; see `Races.judge`."""
    race = get_race(database, race_ref)
    ops.require_repository(race)
    name = judge or race.plan.judge
    if name is None:
        raise Invalid(f"{race.id} has no judge. Name one with --agent.", id=race.id)
    entries = [AttemptSpec(attempt.agent, None) for attempt in race.latest.ranked]
    plan = msgspec.structs.replace(race.plan, judge=name)
    _validate(database, entries, plan, race.host, starting=(), budget_micros=race.budget_micros)
    database.write(
        lambda tx: selection.request_judge(tx, race.id, name, samples=samples, rubric=rubric)
    )
    return advance_race(database, race.id)


def _validate(
    database: Database,
    entries: Sequence[AttemptSpec],
    plan: RacePlan,
    host: str,
    *,
    starting: Sequence[AttemptSpec],
    budget_micros: int | None,
) -> None:
    def validate(tx: Tx) -> None:
        validation.validate_start(tx, entries, plan, budget_micros)
        if host == process.host():  # programs of another machine cannot be checked here
            validation.require_programs(tx, starting, plan)

    database.read(validate)


def retry_attempt(database: Database, race_ref: str, attempt: str) -> Race:
    """Retry an attempt that did not pass, in a new worktree."""
    ops.require_repository(get_race(database, race_ref))
    folder = str(config.races_folder())
    race = database.write(lambda tx: attempts.retry(tx, race_ref, attempt, folder=folder))
    return advance_race(database, race.id)


def cancel_attempt(database: Database, race_ref: str, attempt: str, *, reason: str | None) -> Race:
    """Cancel an attempt that is in progress."""
    cancelled = database.write(lambda tx: attempts.cancel(tx, race_ref, attempt, reason=reason))
    return advance_race(database, cancelled.race_id)


def abandon(database: Database, race_ref: str, *, round: int | None, reason: str | None) -> Race:
    """Abandon a race, or one round."""
    race = database.write(lambda tx: ops.abandon(tx, race_ref, round=round, reason=reason))
    return advance_race(database, race.id)
