"""Runs, compared with a model under random operations: leases, states and reservations."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, initialize, invariant, multiple, rule

from corral.adapters.providers.facts import UsageFact
from corral.domain.runs import outcome
from corral.domain.runs.model import Run, StopKind
from corral.kernel.clock import HOUR, MINUTE, SECOND
from corral.kernel.errors import Conflict, CorralError, Held, IllegalMove, NoRoom, Refused
from corral.kernel.exit_status import ExitStatus
from tests.properties.state_machine import (
    FreshUrl,
    StoreMachine,
    allow_shrinking_time,
    run_machine,
)
from tests.support.run_factories import held, next_queued, run_spec, without_supervisors

LEASE = MINUTE
BUDGET = 100
MAX_RUNS = 3
ACTIVE = ("starting", "running", "stopping")
LIVE = ("queued", *ACTIVE)
ENDS = [ExitStatus(exit_code=0), ExitStatus(exit_code=3), ExitStatus(signal=9), ExitStatus()]
STATE_OF_STOP = {
    outcome.DEFAULT_STOP_REASONS[StopKind.TIMED_OUT]: "timed_out",
    outcome.DEFAULT_STOP_REASONS[StopKind.INTERRUPTED]: "interrupted",
}


@dataclass
class ModelRun:
    """A run of the model."""

    id: str
    budget: int | None
    max_restarts: int
    state: str = "queued"
    fence: int = 0
    """Incremented when the supervisor changes or the run ends; an older value is stale."""
    attempts: int = 0
    due_at: int = 0
    lease_until: int | None = None
    stop_reason: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    ended_at: int | None = None
    spent: int = 0

    @property
    def is_live(self) -> bool:
        return self.state in LIVE

    @property
    def reserved(self) -> int:
        """The rest of the run's budget, reserved from its first start to its end."""
        if self.budget is None or not self.attempts or not self.is_live:
            return 0
        return max(self.budget - self.spent, 0)


@dataclass
class RunClaim:
    """The run as its supervisor last read it, with the fence at that time."""

    run: Run
    fence: int


class RunsMachine(StoreMachine):
    runs = Bundle("runs")
    claims = Bundle("claims")

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.entries: dict[str, ModelRun] = {}
        self.supervisors = 0

    @initialize()
    def begin(self) -> None:
        self.store.settings.set("runs.max_concurrent", MAX_RUNS)
        self.store.budgets.set("all", BUDGET)

    # -- the model's rules ----------------------------------------------------------------------

    def is_stale(self, claim: RunClaim) -> bool:
        return self.entries[claim.run.id].fence != claim.fence

    def claim_error(self, claim: RunClaim, *states: str) -> type[CorralError] | None:
        """Return the error that an operation with this claim raises, if any."""
        if self.is_stale(claim):
            return Held
        return None if self.entries[claim.run.id].state in states else IllegalMove

    def close(self, entry: ModelRun, state: str, end: ExitStatus) -> None:
        entry.state, entry.ended_at = state, self.now
        entry.exit_code, entry.signal = end.exit_code, end.signal
        entry.fence += 1
        entry.lease_until = None

    def end_state(self, entry: ModelRun, end: ExitStatus) -> str:
        if entry.stop_reason is not None:
            return STATE_OF_STOP.get(entry.stop_reason, "cancelled")
        if end.exit_code == 0:
            return "completed"
        return "crashed" if end.exit_code is None else "failed"

    # -- requests -------------------------------------------------------------------------------

    @rule(
        target=runs,
        budget=st.sampled_from([None, None, 30, 60]),
        max_restarts=st.sampled_from([0, 0, 2]),
        delay=st.sampled_from([0, 0, HOUR]),
    )
    def request(self, budget: int | None, max_restarts: int, delay: int) -> str:
        due = self.now + delay
        run = self.store.internal.runs.enqueue(
            run_spec(budget_micros=budget, max_restarts=max_restarts, due_at=due, host=held().host)
        )
        self.entries[run.id] = ModelRun(run.id, budget, max_restarts, due_at=due)
        return run.id

    # -- supervisors ---------------------------------------------------------------------------

    @rule(target=claims, id=runs)
    def start(self, id: str) -> Any:
        entry = self.entries[id]
        self.supervisors += 1

        def call() -> Run:
            return self.store.internal.runs.acquire(id, held(self.supervisors), lease_ms=LEASE)

        if self.is_rejected(self.start_error(entry), call):
            return multiple()
        return self.mark_acquired(entry, call())

    def start_error(self, entry: ModelRun) -> type[CorralError] | None:
        if sum(item.state in ACTIVE for item in self.entries.values()) >= MAX_RUNS:
            return NoRoom
        if entry.state != "queued":
            return IllegalMove
        if entry.budget is None:
            return None  # a plain command without a budget is not limited: its cost is unknown
        reserved = sum(item.reserved for item in self.entries.values() if item is not entry)
        remaining = BUDGET - sum(item.spent for item in self.entries.values()) - reserved
        needed = max((entry.budget or 0) - entry.spent, 0)
        return Refused if remaining <= 0 or needed > remaining else None

    def mark_acquired(self, entry: ModelRun, run: Run) -> RunClaim:
        entry.state, entry.lease_until = "starting", self.now + LEASE
        entry.attempts += 1
        entry.fence += 1
        return RunClaim(run, entry.fence)

    @rule(target=claims)
    def start_next(self) -> Any:
        """Start the next queued run, or expect an error if the budget is too small."""
        next_run = next_queued(self.store, host=held().host)
        due = [item for item in self.entries.values() if item.state == "queued"]
        due = [item for item in due if item.due_at <= self.now]
        assert (next_run is None) == (not due)
        if next_run is None:
            return multiple()
        assert next_run.id == min(item.id for item in due)
        return self.start(next_run.id)

    # Few rules, so that an example uses the same runs repeatedly.
    @rule(
        claim=claims,
        how=st.sampled_from(["launch", "heartbeat", "restart", "park", "spend", "launch"]),
        n=st.integers(0, 40),
    )
    def report(self, claim: RunClaim, how: str, n: int) -> None:
        getattr(self, how)(claim, n)

    def launch(self, claim: RunClaim, _: int) -> None:
        def call() -> Run:
            return self.store.internal.runs.launch(claim.run)

        if not self.is_rejected(self.claim_error(claim, "starting"), call):
            call()
            self.entries[claim.run.id].state = "running"

    def heartbeat(self, claim: RunClaim, n: int) -> None:
        def call() -> Run:
            return self.store.internal.runs.heartbeat(claim.run, output_bytes=n, lease_ms=LEASE)

        error = self.claim_error(claim, *ACTIVE)
        if not self.is_rejected(Conflict if error is IllegalMove else error, call):
            entry = self.entries[claim.run.id]
            run = call()
            assert (run.state, run.stop_reason) == (entry.state, entry.stop_reason)
            entry.lease_until = self.now + LEASE

    def restart(self, claim: RunClaim, n: int) -> None:
        def call() -> Run:
            current = self.store.runs.get(claim.run.id) if not self.is_stale(claim) else claim.run
            return self.store.internal.runs.restart(
                current, held(n), ExitStatus(exit_code=1), quick_failures=n
            )

        if not self.is_rejected(self.claim_error(claim, "starting", "running"), call):
            claim.run = call()
            entry = self.entries[claim.run.id]
            entry.state = "starting"
            entry.attempts += 1
            entry.fence += 1  # claims of the last attempt are stale
            claim.fence = entry.fence

    def park(self, claim: RunClaim, n: int) -> None:
        def call() -> Run:
            return self.store.internal.runs.park(
                claim.run, until=self.now + n * MINUTE, reason="quota"
            )

        if not self.is_rejected(self.claim_error(claim, "starting", "running"), call):
            call()
            entry = self.entries[claim.run.id]
            entry.state, entry.due_at, entry.lease_until = "queued", self.now + n * MINUTE, None
            entry.fence += 1

    def spend(self, claim: RunClaim, n: int) -> None:
        """Charges belong to the run, so a supervisor with a stale claim may add them, too."""
        self.store.charges.add(UsageFact(model="m", output=1, cost_micros=n), run_id=claim.run.id)
        self.entries[claim.run.id].spent += n

    @rule(target=claims, claim=claims)
    def take_over(self, claim: RunClaim) -> Any:
        self.supervisors += 1

        def call() -> Run:
            return self.store.internal.runs.take_over(
                claim.run,
                owner=f"supervisor:{self.supervisors}",
                supervisor_pid=5,
                supervisor_token="5",
            )

        error = self.claim_error(claim, *ACTIVE)
        if self.is_rejected(Conflict if error is IllegalMove else error, call):
            return multiple()
        run = call()
        entry = self.entries[run.id]
        entry.fence += 1
        entry.lease_until = self.now + MINUTE
        return RunClaim(run, entry.fence)

    @rule(claim=claims, how=st.sampled_from(ENDS))
    def end(self, claim: RunClaim, how: ExitStatus) -> None:
        entry = self.entries[claim.run.id]

        def call() -> Run:
            return self.store.internal.runs.record_end(claim.run, how)

        if not entry.is_live:
            run = call()
            assert (run.state, run.exit_code) == (entry.state, entry.exit_code)
        elif not self.is_rejected(Held if self.is_stale(claim) else None, call):
            call()
            self.close(entry, self.end_state(entry, how), how)

    # -- by any caller --------------------------------------------------------------------------

    @rule(id=runs, kind=st.sampled_from(StopKind))
    def stop(self, id: str, kind: StopKind) -> None:
        entry, reason = self.entries[id], outcome.DEFAULT_STOP_REASONS[kind]

        def call() -> Run:
            return self.store.internal.runs.request_stop(id, kind=kind)

        if self.is_rejected(None if entry.is_live else IllegalMove, call):
            return
        call()
        if entry.state == "queued":
            self.close(entry, "cancelled", ExitStatus())
        elif entry.state != "stopping":
            entry.state, entry.stop_reason = "stopping", reason

    @rule(id=runs, code=st.sampled_from([0, 3]))
    def finish(self, id: str, code: int) -> None:
        entry = self.entries[id]

        def call() -> Run:
            return self.store.runs.finish(id, exit_code=code)

        if not entry.is_live:
            assert call().exit_code == entry.exit_code
        elif entry.state == "queued":
            if code == 0:
                self.is_rejected(IllegalMove, call)
        else:
            self.is_rejected(Conflict, call)  # it has a supervisor

    @rule()
    def recover(self) -> None:
        """A run of another node is recovered once its lease has expired, and only once."""
        expired = [
            item
            for item in self.entries.values()
            if item.state in ACTIVE and (item.lease_until or 0) <= self.now
        ]
        recovered = {item.run_id: item.state for item in self.store.runs.recover()}
        assert {*recovered} == {item.id for item in expired}
        for entry in expired:
            if entry.attempts <= entry.max_restarts and entry.state != "stopping":
                entry.state, entry.due_at, entry.lease_until = "queued", self.now, None
                entry.fence += 1
            else:
                state = "interrupted"
                if entry.stop_reason is not None:
                    state = STATE_OF_STOP.get(entry.stop_reason, "cancelled")
                self.close(entry, state, ExitStatus())
            assert recovered[entry.id] == entry.state

    @rule(ms=st.sampled_from([SECOND, 30 * SECOND, 2 * MINUTE, 2 * HOUR]))
    def wait(self, ms: int) -> None:
        self.clock.advance(ms)

    # -- invariants -----------------------------------------------------------------------------

    @invariant()
    def runs_match_the_model(self) -> None:
        runs = {run.id: run for run in self.store.runs.list(limit=1_000).items}
        assert {*runs} == {*self.entries}
        for id, entry in self.entries.items():
            run = runs[id]
            assert (run.state, run.attempts, run.stop_reason) == (
                entry.state,
                entry.attempts,
                entry.stop_reason,
            )
            assert (run.exit_code, run.signal, run.ended_at) == (
                entry.exit_code,
                entry.signal,
                entry.ended_at,
            )
            assert run.lease_until == entry.lease_until
            assert run.due_at == entry.due_at

    @invariant()
    def concurrent_runs_are_limited(self) -> None:
        assert sum(item.state in ACTIVE for item in self.entries.values()) <= MAX_RUNS

    @invariant()
    def reservations_match_the_model(self) -> None:
        budgets = {item.scope: item for item in self.store.budgets.list(limit=1_000).items}
        if "all" in budgets:
            total = budgets.pop("all")
            assert total.spent_micros == sum(item.spent for item in self.entries.values())
            assert total.reserved_micros == sum(item.reserved for item in self.entries.values())
        live_scopes = {
            f"run:{item.id}" for item in self.entries.values() if item.is_live and item.attempts
        }
        assert {*budgets} <= live_scopes


@allow_shrinking_time
def test_runs_match_the_model(fresh_url: FreshUrl, monkeypatch: pytest.MonkeyPatch) -> None:
    without_supervisors(monkeypatch)
    run_machine(RunsMachine, fresh_url, examples=40, steps=40)
