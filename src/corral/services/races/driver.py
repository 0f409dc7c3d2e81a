"""The driver of a round: runs the steps of a race, from the worktrees to the winner.

The steps are in other modules: `preparation` creates worktrees and starts agents, `attempt_checks`
commits and checks their work, `judge` asks for verdicts. Automatic races select their winner here.

`advance` is the only entry point. Any process on the machine that has the worktrees may call it at
any time, any number of times. It does what can be done now, and skips a round that another driver
holds. Its side effects outside the store are repeatable, and each of its transactions leaves the
round consistent.
"""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from corral import config
from corral.adapters.processes import process
from corral.db.database import Database
from corral.db.tx import Tx
from corral.domain.races import ops, queries, round_steps, selection
from corral.domain.races.model import Attempt, AttemptSpec, AttemptState, Race, Round, RoundState
from corral.domain.races.ranking import choose_better_half
from corral.domain.runs.model import Run, RunState
from corral.kernel.errors import Conflict, Held, NotFound, Refused
from corral.services.races import attempt_checks, judge, preparation
from corral.services.races.paths import pin_commit
from corral.services.races.round_context import RoundContext
from corral.services.runs import dispatch
from corral.services.runs.lifecycle import refresh, stop_run
from corral.services.runs.queries import get_run

T = TypeVar("T")

HEARTBEAT_SECONDS = round_steps.LEASE_MS / 3_000
_instances = itertools.count(1)


def advance(database: Database, round_id: str) -> bool:
    """Do what can be done for a round now; returns whether anything was done.

    Returns False when another driver holds the round.
    """
    driver = RoundDriver(database)
    try:
        with driver.hold(round_id) as round:
            return driver.run(round)
    except Held:
        return False


class RoundDriver:
    """Drives rounds. Each instance has its own owner name for leases.

    The name contains the identity of the process, so that another driver can find out whether this
    one is dead (`process.is_dead`).
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.owner = process.identify_self().as_owner("driver", next(_instances))

    @contextmanager
    def hold(self, round_id: str) -> Iterator[Round]:
        """Hold the lease of a round during the block; a thread renews it."""
        before = self._read(lambda tx: round_steps.get_round(tx, round_id))
        dead_owner = before.owner if before.owner and process.is_dead(before.owner) else None
        round = self._write(
            lambda tx: round_steps.acquire_round(tx, round_id, self.owner, dead_owner=dead_owner)
        )
        done = threading.Event()
        heartbeat = threading.Thread(target=self._renew_lease, args=(round, done), daemon=True)
        heartbeat.start()
        try:
            yield round
        finally:
            done.set()
            heartbeat.join()
            self._write(lambda tx: round_steps.release_round(tx, round))

    def _renew_lease(self, round: Round, done: threading.Event) -> None:
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
        """Run the steps repeatedly until no step changes anything.

        Returns whether anything was done.
        """
        changed = False
        while True:
            race = self._read(lambda tx: queries.get(tx, lease.race_id))
            round = next(other for other in race.rounds if other.id == lease.id)
            context = RoundContext(race, round, lease)
            # A list, so that each step runs, whatever an earlier one returned.
            results = [step(context) for step in self._choose_steps(round)]
            if not any(results):
                return changed
            changed = True

    def _choose_steps(self, round: Round) -> Sequence[Callable[[RoundContext], bool]]:
        """Return the steps for the state of a round.

        Each step returns whether the steps must run again.
        """
        if round.state is RoundState.RUNNING:
            return (
                self._cancel_losers,
                self._stop_cancelled,
                self._prepare_attempts,
                self._collect_runs,
                self._check_attempts,
                self._close_round,
            )
        if round.state is RoundState.SELECTING and round.needs_driver:
            return (self._stop_cancelled, self._judge_or_select)
        return (self._stop_cancelled, self._collect_verdicts, self._mark_idle)

    def _close_round(self, context: RoundContext) -> bool:
        after = self._write(lambda tx: round_steps.close_round(tx, context.race, context.lease))
        return after.state is not RoundState.RUNNING

    def _mark_idle(self, context: RoundContext) -> bool:
        if (
            context.round.needs_driver
            and not self._list_runs_to_stop(context.round)
            and not context.round.has_pending_verdict
        ):
            self._write(lambda tx: round_steps.mark_idle(tx, context.race, context.lease))
        return False

    def _collect_verdicts(self, context: RoundContext) -> bool:
        """Record a verdict that arrives after the round was decided."""
        return judge.collect_verdicts(self._database, context)

    def _prepare_attempts(self, context: RoundContext) -> bool:
        return preparation.prepare_attempts(self._database, context)

    def _check_attempts(self, context: RoundContext) -> bool:
        return attempt_checks.check_attempts(self._database, context)

    # -- cancellation ----------------------------------------------------------------------------

    def _cancel_losers(self, context: RoundContext) -> bool:
        """Cancel the open attempts once enough others have passed or the budget is spent."""
        open_attempts = [attempt for attempt in context.round.attempts if attempt.is_open]
        why = _explain_loss(context.race, context.round) if open_attempts else None
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
        for run, why in self._list_runs_to_stop(context.round):
            reason = f"the attempt was cancelled: {why}" if why else "the attempt was cancelled"
            stop_run(self._database, run.id, reason=reason[: round_steps.MAX_REASON])
        return False

    def _list_runs_to_stop(self, round: Round) -> list[tuple[Run, str | None]]:
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

    # -- runs ------------------------------------------------------------------------------------

    def _collect_runs(self, context: RoundContext) -> bool:
        """Record the ends of the runs of running attempts."""
        running = context.list_attempts(AttemptState.RUNNING)
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
                    for attempt in choose_better_half(decided.attempts)
                ],
                folder=str(config.races_folder()),
            )
        except Refused as error:  # the budget is spent
            round_steps.notify_starter(tx, after, decided, "completed", error.message)
            ops.finish(tx, context.race.id, reason=error.message)


def _explain_loss(race: Race, round: Round) -> str | None:
    """Return why the open attempts of a round can no longer win; None when they can."""
    passed = sum(attempt.can_win for attempt in round.attempts)
    if race.plan.stop_after is not None and passed >= race.plan.stop_after:
        return f"the attempt could no longer win: enough other attempts passed ({passed})"
    spent = sum(attempt.cost_micros or 0 for attempt in round.attempts)
    if round.budget_micros is not None and spent >= round.budget_micros > 0:
        return "the budget of the round is spent"
    return None
