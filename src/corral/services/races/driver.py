"""The driver of a round: prepares attempts, starts agents, commits and checks their work, asks the
judge, and in automatic races selects the winner.

`advance` is the only entry point. Any process on the machine that has the worktrees may call it at
any time, any number of times: it does what can be done now, and leaves a round that another driver
holds alone. Its side effects outside the store are repeatable, and each of its transactions leaves
the round consistent.
"""

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import NamedTuple, TypeVar

from corral import config
from corral.adapters import git_history, ports, private_git, process, worktrees
from corral.adapters.checks import run_check
from corral.adapters.redaction import redact_value
from corral.adapters.sandbox import SandboxKind
from corral.adapters.worktree_registry import find_checkout
from corral.db.database import Database
from corral.db.tx import Tx
from corral.domain.races import ops, queries, round_steps, selection
from corral.domain.races.model import Attempt, AttemptSpec, AttemptState, Race, Round, RoundState
from corral.domain.races.ranking import better_half
from corral.domain.runs.model import Run, RunState
from corral.domain.sessions import context as conversations
from corral.domain.settings import ops as settings
from corral.kernel.errors import Conflict, Held, Invalid, NotFound, Refused
from corral.services.identity import check_environment
from corral.services.races import judge
from corral.services.races.checks import (
    agent_sandbox,
    attempt_env,
    check_timeout_ms,
    command_sandbox,
    project_dir,
    run_checks,
    sandbox_permissions,
)
from corral.services.races.paths import (
    create_race_folder,
    pin_commit,
    pool_of,
    ports_folder,
    races_folder,
)
from corral.services.races.round_context import RoundContext
from corral.services.runs import dispatch, request
from corral.services.runs.lifecycle import refresh, stop_run
from corral.services.runs.recovery import get_run

T = TypeVar("T")

HEARTBEAT_SECONDS = round_steps.LEASE_MS / 3_000
_instances = itertools.count(1)


def advance(database: Database, round_id: str) -> bool:
    """Do what can be done for a round now; returns whether anything was done.

    Returns False when another driver holds the round.
    """
    driver = RoundDriver(database)
    try:
        with driver.holding(round_id) as round:
            return driver.run(round)
    except Held:
        return False


class _Prepared(NamedTuple):
    attempt: Attempt
    port: int


class RoundDriver:
    """Drives rounds. Each instance has its own owner name for leases.

    The name contains the identity of the process, so that another driver can find out whether this
    one is dead (`process.is_dead`).
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.owner = process.identify_self().as_owner("driver", next(_instances))

    @contextmanager
    def holding(self, round_id: str) -> Iterator[Round]:
        """Hold the lease of a round during the block; a thread renews it."""
        before = self._read(lambda tx: round_steps.get_round(tx, round_id))
        dead_owner = before.owner if before.owner and process.is_dead(before.owner) else None
        round = self._write(
            lambda tx: round_steps.acquire_round(tx, round_id, self.owner, dead_owner=dead_owner)
        )
        done = threading.Event()
        heartbeat = threading.Thread(target=self._renew, args=(round, done), daemon=True)
        heartbeat.start()
        try:
            yield round
        finally:
            done.set()
            heartbeat.join()
            self._write(lambda tx: round_steps.release_round(tx, round))

    def _renew(self, round: Round, done: threading.Event) -> None:
        """Renew the lease while a check runs.

        Errors are ignored: a driver that has lost its lease is rejected by its next write.
        """
        while not done.wait(HEARTBEAT_SECONDS):
            with suppress(Exception):
                self._write(lambda tx: round_steps.renew_lease(tx, round))

    def _read(self, read: Callable[[Tx], T]) -> T:
        return self._database.read(read)

    def _write(self, write: Callable[[Tx], T]) -> T:
        return self._database.write(write)

    # -- the round -------------------------------------------------------------------------------

    def run(self, lease: Round) -> bool:
        """Run all steps again and again until none has anything to do.

        Returns whether anything was done.
        """
        changed = False
        while True:
            race = self._read(lambda tx: queries.get(tx, lease.race_id))
            round = next(other for other in race.rounds if other.id == lease.id)
            context = RoundContext(race, round, lease)
            # A list, so that each step runs, whether or not an earlier one did anything.
            results = [step(context) for step in self._steps(round)]
            if not any(results):
                return changed
            changed = True

    def _steps(self, round: Round) -> Sequence[Callable[[RoundContext], bool]]:
        """Return the steps for the state of a round; each returns whether it did anything."""
        if round.state is RoundState.RUNNING:
            return (
                self._cancel_losers,
                self._stop_cancelled,
                self._prepare,
                self._collect_runs,
                self._check,
                self._close,
            )
        if round.state is RoundState.SELECTING and round.needs_driver:
            return (self._stop_cancelled, self._judge_or_select)
        return (self._stop_cancelled, self._collect_verdicts, self._mark_idle)

    def _close(self, context: RoundContext) -> bool:
        after = self._write(lambda tx: round_steps.close_round(tx, context.race, context.lease))
        return after.state is not RoundState.RUNNING

    def _mark_idle(self, context: RoundContext) -> bool:
        if (
            context.round.needs_driver
            and not self._runs_to_stop(context.round)
            and not context.round.has_pending_verdict
        ):
            self._write(lambda tx: round_steps.mark_idle(tx, context.race, context.lease))
        return False

    def _collect_verdicts(self, context: RoundContext) -> bool:
        """Record a verdict that arrives after the round was decided."""
        return judge.collect_verdicts(self._database, context.round)

    # -- cancellation ----------------------------------------------------------------------------

    def _cancel_losers(self, context: RoundContext) -> bool:
        """Cancel the open attempts once enough others have passed or the budget is spent."""
        open_attempts = [attempt for attempt in context.round.attempts if attempt.is_open]
        why = _why_lost(context.race, context.round) if open_attempts else None
        if why is None:
            return False
        for attempt in open_attempts:
            self._cancel(context, attempt, why)
        return True

    def _cancel(self, context: RoundContext, attempt: Attempt, why: str) -> None:
        with suppress(Conflict):  # it has ended meanwhile
            self._write(lambda tx: round_steps.mark_cancelled(tx, context.lease, attempt, why))

    def _stop_cancelled(self, context: RoundContext) -> bool:
        """Stop the runs of cancelled attempts, with the reason of the attempt. Idempotent."""
        for run, why in self._runs_to_stop(context.round):
            reason = f"the attempt was cancelled: {why}" if why else "the attempt was cancelled"
            stop_run(self._database, run.id, reason=reason[: round_steps.MAX_REASON])
        return False

    def _runs_to_stop(self, round: Round) -> list[tuple[Run, str | None]]:
        """Return the live runs of cancelled attempts that were not asked to stop yet.

        Each comes with the reason of its attempt.
        """
        runs: list[tuple[Run, str | None]] = []
        for attempt in round.attempts:
            if attempt.state is AttemptState.CANCELLED and attempt.run_id is not None:
                with suppress(NotFound):
                    run = get_run(self._database, attempt.run_id)
                    if run.is_live and run.stop_kind is None:
                        runs.append((run, attempt.reason))
        return runs

    # -- preparation -----------------------------------------------------------------------------

    def _prepare(self, context: RoundContext) -> bool:
        """Create the worktrees of new attempts, run their set-up, and start their agents."""
        waiting = [
            attempt for attempt in context.round.attempts if attempt.state is AttemptState.PREPARING
        ]
        if not waiting:
            return False
        try:
            create_race_folder(self._database, context.race)
            config.make_private_folder(ports_folder())
        except OSError as error:
            for attempt in waiting:
                self._fail(
                    context, attempt, f"the folder for the worktree cannot be created: {error}"
                )
            return True
        created = [attempt for attempt in waiting if self._create_worktree(context, attempt)]
        results = self._run_parallel(
            context.race, created, lambda attempt: self._set_up(context, attempt)
        )
        for prepared in results:
            if prepared is not None:
                self._start(context, prepared)
        dispatch.start_queued(self._database)
        return True

    def _create_worktree(self, context: RoundContext, attempt: Attempt) -> bool:
        try:
            worktrees.create(
                context.race.repository,
                attempt.worktree,
                attempt.branch,
                base=context.round.base_commit,
                pool=pool_of(self._database, context.race),
            )
        except (Refused, Invalid, OSError) as error:
            self._fail(context, attempt, f"the worktree could not be created: {error}")
            return False
        return True

    def _set_up(self, context: RoundContext, attempt: Attempt) -> _Prepared | None:
        """Reserve a port and run the set-up command; None when the attempt failed."""
        try:
            (port,) = ports.allocate_ports(ports_folder(), attempt.worktree)
        except (Refused, OSError) as error:
            self._fail(context, attempt, f"no port could be reserved: {error}")
            return None
        if context.race.plan.setup is not None:
            try:
                ended = run_check(
                    context.race.plan.setup,
                    project_dir(context.race, attempt.worktree),
                    timeout_ms=check_timeout_ms(self._database, context.race),
                    environment=attempt_env(context.race, attempt, port)
                    | check_environment(self._database),
                    kept_in=attempt.worktree,
                    by=command_sandbox(context.race, attempt),
                    repository=context.race.repository,
                    confined=sandbox_permissions(self._database, context.race),
                )
            except (Refused, OSError) as error:
                self._fail(context, attempt, f"the set-up could not be run: {error}")
                return None
            if ended.exit_code != 0:
                last_line = redact_value(ended.output.strip().rpartition("\n")[2])[:200]
                why = f"the set-up exited with {ended.exit_code}: {last_line}"
                self._fail(context, attempt, why)
                return None
        return _Prepared(attempt, port)

    def _start(self, context: RoundContext, prepared: _Prepared) -> None:
        """Request the run of an attempt and record it, in one transaction."""
        attempt, port = prepared
        sandbox = agent_sandbox(context.race)

        def start(tx: Tx) -> Attempt:
            run = request.request_run(tx, self._run_request(tx, context, prepared, sandbox))
            return round_steps.mark_started(
                tx, context.lease, attempt, run, port=port, sandbox=sandbox
            )

        try:
            self._write(start)
        except Held:
            raise
        except (Refused, Invalid, NotFound, Conflict) as error:
            self._fail(context, attempt, f"the agent could not be started: {error}")

    def _run_request(
        self, tx: Tx, context: RoundContext, prepared: _Prepared, sandbox: SandboxKind
    ) -> request.RunRequest:
        attempt, port = prepared
        budget = None
        if context.round.budget_micros is not None:
            budget = context.round.budget_micros // len(context.round.attempts)
        return request.RunRequest(
            prompt=attempt.prompt,
            agent=attempt.agent,
            project=context.race.project_id,
            dir=project_dir(context.race, attempt.worktree),
            session=_fork_conversation(tx, context.race, context.round),
            env=attempt_env(context.race, attempt, port) | context.race.plan.env,
            secrets=context.race.plan.secrets,
            approvals=context.race.plan.approvals,
            sandbox=None if sandbox is SandboxKind.NONE else sandbox,
            timeout_ms=context.race.plan.timeout_ms,
            budget_micros=budget,
        )

    def _fail(self, context: RoundContext, attempt: Attempt, why: str) -> None:
        with suppress(Conflict):  # it has ended meanwhile
            self._write(lambda tx: round_steps.mark_failed(tx, context.lease, attempt, why))

    # -- runs ------------------------------------------------------------------------------------

    def _collect_runs(self, context: RoundContext) -> bool:
        """Record the ends of the runs of running attempts."""
        running = [
            attempt for attempt in context.round.attempts if attempt.state is AttemptState.RUNNING
        ]
        return any([self._collect_run(context, attempt) for attempt in running])

    def _collect_run(self, context: RoundContext, attempt: Attempt) -> bool:
        """Record the end of an attempt's run; returns whether it has ended.

        A run that is still queued is started: the process that claimed it may have crashed.
        """
        assert attempt.run_id is not None
        try:
            run = refresh(self._database, get_run(self._database, attempt.run_id))
        except NotFound:
            self._write(lambda tx: round_steps.mark_run_deleted(tx, context.lease, attempt))
            return True
        if run.state is RunState.QUEUED and run.due_at <= self._database.clock.now():
            dispatch.start_queued(self._database)
        if run.is_live:
            return False
        return self._write(lambda tx: round_steps.record_run_end(tx, run)) is not None

    # -- checks ----------------------------------------------------------------------------------

    def _check(self, context: RoundContext) -> bool:
        waiting = [
            attempt for attempt in context.round.attempts if attempt.state is AttemptState.CHECKING
        ]
        self._run_parallel(
            context.race, waiting, lambda attempt: self._check_attempt(context, attempt)
        )
        return bool(waiting)

    def _check_attempt(self, context: RoundContext, attempt: Attempt) -> None:
        """Commit the work of an attempt and run the checks on it."""
        try:
            self._commit(context, attempt)
            checks = run_checks(self._database, context.race, attempt.worktree, attempt)
            tree = worktrees.fingerprint(
                worktrees.inspect(context.race.repository, attempt.worktree)
            )
        except Held:
            raise
        except (Refused, Conflict, OSError) as error:
            self._fail(context, attempt, f"the work could not be committed or checked: {error}")
            return
        passed = all(check.exit_code == 0 for check in checks) if checks else None
        with suppress(Conflict):
            self._write(
                lambda tx: round_steps.record_checks(
                    tx, context.lease, attempt, checks, passed=passed, tree=tree
                )
            )

    def _commit(self, context: RoundContext, attempt: Attempt) -> None:
        """Commit what is uncommitted in the worktree, and record the commit.

        Skipped when an earlier driver recorded a commit before it died: what is in the worktree
        since then was left by the checks.
        """
        if attempt.commit is not None:
            return
        if not os.path.isdir(attempt.worktree):
            raise Refused(f"the worktree {attempt.worktree} no longer exists")
        self._import_commits(context.race, attempt)
        race, round = context.race, context.round
        message = f"{race.name}\n\nAttempt {attempt.number} of round {round.number} of {race.id}."
        saved = git_history.commit_all(context.race.repository, attempt.worktree, message)
        size = git_history.diff_stat(
            context.race.repository, context.round.base_commit, saved.commit
        )
        self._write(
            lambda tx: round_steps.record_commit(
                tx,
                context.lease,
                attempt,
                saved.commit,
                files=size.files,
                added=size.added,
                removed=size.removed,
            )
        )

    def _import_commits(self, race: Race, attempt: Attempt) -> None:
        """Import the commits of a sandboxed attempt whose supervisor died before it did so.

        Commits that fail the validation are dropped; the files in the worktree are committed as
        they are.
        """
        folder = str(config.run_folder(attempt.run_id) / "git") if attempt.run_id else ""
        checkout = find_checkout(race.repository, attempt.worktree)
        if checkout is not None and os.path.isdir(folder):
            with suppress(Refused, Conflict):
                private_git.import_commits(checkout, folder)
            private_git.discard(checkout, folder)

    def _run_parallel(
        self, race: Race, attempts: Sequence[Attempt], action: Callable[[Attempt], T]
    ) -> list[T]:
        if not attempts:
            return []
        limit = self._read(
            lambda tx: int(
                settings.get_value(tx, "races.max_concurrent_checks", project=race.project_id)
            )
        )
        with ThreadPoolExecutor(min(limit, len(attempts))) as pool:
            return list(pool.map(action, attempts))

    # -- selection -------------------------------------------------------------------------------

    def _judge_or_select(self, context: RoundContext) -> bool:
        """Ask the judge; once it is done, select the winner of an automatic race."""
        status = judge.advance(self._database, context)
        if status is not judge.JudgingStatus.DONE:
            return status is judge.JudgingStatus.CHANGED
        if not context.race.plan.auto:
            self._write(lambda tx: round_steps.mark_idle(tx, context.race, context.lease))
            return False
        best = context.round.ranked[0]
        judged = any(verdict.ranking for verdict in context.round.verdicts)
        decided_by = "the judge" if judged else "the ranking"
        pin_commit(
            self._database, context.race, f"{context.round.number}-{best.number}", best.commit or ""
        )
        self._write(lambda tx: self._select(tx, context, best, decided_by))
        return False

    def _select(self, tx: Tx, context: RoundContext, best: Attempt, decided_by: str) -> None:
        """Select the winner, and start the next round with the better half or finish the race."""
        round_steps.renew_lease(tx, context.lease)
        why = f"first by {decided_by}, with a score of {best.score}"
        after = selection.select(
            tx, context.race.id, best.id, reason=why, by=f"auto ({decided_by})"
        )
        decided = next(other for other in after.rounds if other.id == context.lease.id)
        if decided.number >= context.race.plan.rounds:
            round_steps.notify_starter(tx, after, decided, "completed", why)
            ops.finish(tx, context.race.id, reason="all rounds are decided")
            return
        try:
            ops.next_round(
                tx,
                context.race.id,
                [
                    AttemptSpec(attempt.agent, attempt.variation)
                    for attempt in better_half(decided.attempts)
                ],
                folder=str(races_folder()),
            )
        except Refused as error:  # the budget is spent
            round_steps.notify_starter(tx, after, decided, "completed", error.message)
            ops.finish(tx, context.race.id, reason=error.message)


def _why_lost(race: Race, round: Round) -> str | None:
    """Return why the open attempts of a round cannot win any more; None when they can."""
    passed = sum(attempt.can_win for attempt in round.attempts)
    if race.plan.stop_after is not None and passed >= race.plan.stop_after:
        return f"the attempt could no longer win: enough other attempts passed ({passed})"
    spent = sum(attempt.cost_micros or 0 for attempt in round.attempts)
    if round.budget_micros is not None and spent >= round.budget_micros > 0:
        return "the budget of the round is spent"
    return None


def _fork_conversation(tx: Tx, race: Race, round: Round) -> str | None:
    """Return a fork of the previous winner's conversation, if the race continues it."""
    if not race.plan.continue_session or round.base_attempt_id is None:
        return None
    winner = queries.get_attempt(tx, round.base_attempt_id)
    if winner.session_id is None:
        return None
    return conversations.fork(tx, winner.session_id).id
