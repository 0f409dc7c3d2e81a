"""Preparation of attempts: create the worktree, reserve a port, run the set-up, start the agent.

An attempt that cannot be prepared fails with the reason; the other attempts go on.
"""

from typing import NamedTuple

from corral import config
from corral.adapters.processes import ports
from corral.adapters.redaction import redact_value
from corral.adapters.sandbox.checks import run_check
from corral.adapters.sandbox.sandbox import SandboxKind
from corral.adapters.worktrees import worktrees
from corral.db.database import Database
from corral.db.tx import Tx
from corral.domain.races import queries, round_steps
from corral.domain.races.model import Attempt, AttemptState, Race, Round
from corral.domain.sessions import context as conversations
from corral.kernel.errors import Conflict, Held, Invalid, NotFound, Refused
from corral.services.identity import check_environment
from corral.services.races.checks import (
    build_attempt_env,
    choose_agent_sandbox,
    choose_command_sandbox,
    get_check_timeout_ms,
    get_project_dir,
    get_sandbox_permissions,
)
from corral.services.races.paths import create_race_folder, get_pool, ports_folder
from corral.services.races.round_context import RoundContext, fail_attempt, run_parallel
from corral.services.runs import dispatch
from corral.services.runs.request import RunRequest, request_run


class PreparedAttempt(NamedTuple):
    """An attempt whose agent can be started, and the port that it may use."""

    attempt: Attempt
    port: int


def prepare_attempts(database: Database, context: RoundContext) -> bool:
    """Prepare the new attempts of a round and start their agents; returns whether there were any.

    Worktrees are created one after the other, set-up commands run in parallel.
    """
    waiting = context.list_attempts(AttemptState.PREPARING)
    if not waiting:
        return False
    try:
        create_race_folder(database, context.race)
        config.make_private_folder(ports_folder())
    except OSError as error:
        reason = f"the directory for the worktree cannot be created: {error}"
        for attempt in waiting:
            fail_attempt(database, context, attempt, reason)
        return True
    created = [attempt for attempt in waiting if _create_worktree(database, context, attempt)]
    results = run_parallel(
        database, context.race, created, lambda attempt: _set_up(database, context, attempt)
    )
    for prepared in results:
        if prepared is not None:
            _start_agent(database, context, prepared)
    dispatch.start_queued(database)
    return True


def _create_worktree(database: Database, context: RoundContext, attempt: Attempt) -> bool:
    """Create the worktree of an attempt; returns False when the attempt failed."""
    try:
        worktrees.create(
            context.race.repository,
            attempt.worktree,
            attempt.branch,
            base=context.round.base_commit,
            pool=get_pool(database, context.race),
        )
    except (Refused, Invalid, OSError) as error:
        reason = f"the worktree could not be created: {error}"
        fail_attempt(database, context, attempt, reason)
        return False
    return True


def _set_up(database: Database, context: RoundContext, attempt: Attempt) -> PreparedAttempt | None:
    """Reserve a port and run the set-up command; returns None when the attempt failed."""
    try:
        (port,) = ports.allocate_ports(ports_folder(), attempt.worktree)
    except (Refused, OSError) as error:
        fail_attempt(database, context, attempt, f"no port could be reserved: {error}")
        return None
    failure = _run_setup(database, context.race, attempt, port)
    if failure is not None:
        fail_attempt(database, context, attempt, failure)
        return None
    return PreparedAttempt(attempt, port)


def _run_setup(database: Database, race: Race, attempt: Attempt, port: int) -> str | None:
    """Run the set-up command of a race, if it has one; returns why it failed, else None."""
    if race.plan.setup is None:
        return None
    try:
        ended = run_check(
            race.plan.setup,
            get_project_dir(race, attempt.worktree),
            timeout_ms=get_check_timeout_ms(database, race),
            environment=build_attempt_env(race, attempt, port) | check_environment(database),
            worktree=attempt.worktree,
            sandbox=choose_command_sandbox(race, attempt),
            repository=race.repository,
            permissions=get_sandbox_permissions(database, race),
        )
    except (Refused, OSError) as error:
        return f"the set-up could not be run: {error}"
    if ended.exit_code == 0:
        return None
    last_line = redact_value(ended.output.strip().rpartition("\n")[2])[:200]
    return f"the set-up exited with {ended.exit_code}: {last_line}"


def _start_agent(database: Database, context: RoundContext, prepared: PreparedAttempt) -> None:
    """Request the run of an attempt and record it, in one transaction."""
    attempt, port = prepared
    sandbox = choose_agent_sandbox(context.race)

    def start(tx: Tx) -> Attempt:
        run = request_run(tx, _build_request(tx, context, prepared, sandbox))
        return round_steps.mark_started(tx, context.lease, attempt, run, port=port, sandbox=sandbox)

    try:
        database.write(start)
    except Held:
        raise
    except (Refused, Invalid, NotFound, Conflict) as error:
        fail_attempt(database, context, attempt, f"the agent could not be started: {error}")


def _build_request(
    tx: Tx, context: RoundContext, prepared: PreparedAttempt, sandbox: SandboxKind
) -> RunRequest:
    race, round = context.race, context.round
    attempt, port = prepared
    budget = None
    if round.budget_micros is not None:
        budget = round.budget_micros // len(round.attempts)
    return RunRequest(
        prompt=attempt.prompt,
        agent=attempt.agent,
        project=race.project_id,
        dir=get_project_dir(race, attempt.worktree),
        session=_fork_conversation(tx, race, round),
        env=build_attempt_env(race, attempt, port) | race.plan.env,
        secrets=race.plan.secrets,
        approvals=race.plan.approvals,
        sandbox=None if sandbox is SandboxKind.NONE else sandbox,
        timeout_ms=race.plan.timeout_ms,
        budget_micros=budget,
    )


def _fork_conversation(tx: Tx, race: Race, round: Round) -> str | None:
    """Fork the previous winner's conversation if the race continues it; returns the session."""
    if not race.plan.continue_session or round.base_attempt_id is None:
        return None
    winner = queries.get_attempt(tx, round.base_attempt_id)
    if winner.session_id is None:
        return None
    return conversations.fork(tx, winner.session_id).id
