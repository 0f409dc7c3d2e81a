"""Runs beside a plain model: who may speak for a run, and what becomes of it and its money."""

from dataclasses import dataclass, field
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
    run_machine,
    while_it_is_made_short,
)
from tests.support.run_factories import held, next_queued, run_spec, without_supervisors

LEASE = MINUTE
BUDGET = 100
MOST = 3
ACTIVE = ("starting", "running", "stopping")
LIVE = ("queued", *ACTIVE)
ENDS = [ExitStatus(exit_code=0), ExitStatus(exit_code=3), ExitStatus(signal=9), ExitStatus()]
STATE_OF_STOP = {
    outcome.DEFAULT_STOP_REASONS[StopKind.TIMED_OUT]: "timed_out",
    outcome.DEFAULT_STOP_REASONS[StopKind.INTERRUPTED]: "interrupted",
}


@dataclass
class Paper:
    """A run as the model sees it."""

    id: str
    budget: int | None
    max_restarts: int
    state: str = "queued"
    takings: int = 0
    """How often somebody took it, or took it away: whoever knows an older number is late."""
    attempts: int = 0
    due_at: int = 0
    lease_until: int | None = None
    stop_reason: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    ended_at: int | None = None
    spent: int = 0
    told: list[str] = field(default_factory=list)

    @property
    def is_live(self) -> bool:
        return self.state in LIVE

    @property
    def reserved(self) -> int:
        """What is promised to it: from its first start to its end, less what it spent."""
        if self.budget is None or not self.attempts or not self.is_live:
            return 0
        return max(self.budget - self.spent, 0)


@dataclass
class Claim:
    """What a supervisor has in hand: a run as it was when the supervisor last heard of it."""

    run: Run
    takings: int


class RunsMachine(StoreMachine):
    runs = Bundle("runs")
    claims = Bundle("claims")

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.papers: dict[str, Paper] = {}
        self.supervisors = 0

    @initialize()
    def begin(self) -> None:
        self.store.settings.set("runs.max_concurrent", MOST)
        self.store.budgets.set("all", BUDGET)

    # -- the model's rules ----------------------------------------------------------------------

    def late(self, claim: Claim) -> bool:
        return self.papers[claim.run.id].takings != claim.takings

    def refusal(self, claim: Claim, *states: str) -> type[CorralError] | None:
        """Why the holder of a claim is turned away, if it is."""
        if self.late(claim):
            return Held
        return None if self.papers[claim.run.id].state in states else IllegalMove

    def close(self, paper: Paper, state: str, end: ExitStatus) -> None:
        paper.state, paper.ended_at = state, self.now
        paper.exit_code, paper.signal = end.exit_code, end.signal
        paper.takings += 1
        paper.lease_until = None

    def end_state(self, paper: Paper, end: ExitStatus) -> str:
        if paper.stop_reason is not None:
            return STATE_OF_STOP.get(paper.stop_reason, "cancelled")
        if end.exit_code == 0:
            return "completed"
        return "crashed" if end.exit_code is None else "failed"

    # -- asking ---------------------------------------------------------------------------------

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
        self.papers[run.id] = Paper(run.id, budget, max_restarts, due_at=due)
        return run.id

    # -- supervisors ---------------------------------------------------------------------------

    @rule(target=claims, id=runs)
    def start(self, id: str) -> Any:
        paper = self.papers[id]
        self.supervisors += 1

        def call() -> Run:
            return self.store.internal.runs.acquire(id, held(self.supervisors), lease_ms=LEASE)

        if self.refused(self.why_not_start(paper), call):
            return multiple()
        return self.taken(paper, call())

    def why_not_start(self, paper: Paper) -> type[CorralError] | None:
        if sum(one.state in ACTIVE for one in self.papers.values()) >= MOST:
            return NoRoom
        if paper.state != "queued":
            return IllegalMove
        promised = sum(one.reserved for one in self.papers.values() if one is not paper)
        left = BUDGET - sum(one.spent for one in self.papers.values()) - promised
        wanted = max((paper.budget or 0) - paper.spent, 0)
        return Refused if left <= 0 or wanted > left else None

    def taken(self, paper: Paper, run: Run) -> Claim:
        paper.state, paper.lease_until = "starting", self.now + LEASE
        paper.attempts += 1
        paper.takings += 1
        return Claim(run, paper.takings)

    @rule(target=claims)
    def start_next(self) -> Any:
        """Whoever is told to be next may be started, or the money is missing."""
        told = next_queued(self.store, host=held().host)
        due = [one for one in self.papers.values() if one.state == "queued"]
        due = [one for one in due if one.due_at <= self.now]
        assert (told is None) == (not due)
        if told is None:
            return multiple()
        assert told.id == min(one.id for one in due)
        return self.start(told.id)

    # Few rules, so that a story comes back to the same runs again and again.
    @rule(
        claim=claims,
        how=st.sampled_from(["launch", "heartbeat", "restart", "park", "spend", "launch"]),
        n=st.integers(0, 40),
    )
    def say(self, claim: Claim, how: str, n: int) -> None:
        getattr(self, how)(claim, n)

    def launch(self, claim: Claim, _: int) -> None:
        def call() -> Run:
            return self.store.internal.runs.launch(claim.run)

        if not self.refused(self.refusal(claim, "starting"), call):
            call()
            self.papers[claim.run.id].state = "running"

    def heartbeat(self, claim: Claim, n: int) -> None:
        def call() -> Run:
            return self.store.internal.runs.heartbeat(claim.run, output_bytes=n, lease_ms=LEASE)

        refusal = self.refusal(claim, *ACTIVE)
        if not self.refused(Conflict if refusal is IllegalMove else refusal, call):
            paper = self.papers[claim.run.id]
            heard = call()
            assert (heard.state, heard.stop_reason) == (paper.state, paper.stop_reason)
            paper.lease_until = self.now + LEASE

    def restart(self, claim: Claim, n: int) -> None:
        def call() -> Run:
            now = self.store.runs.get(claim.run.id) if not self.late(claim) else claim.run
            return self.store.internal.runs.restart(
                now, held(n), ExitStatus(exit_code=1), quick_failures=n
            )

        if not self.refused(self.refusal(claim, "starting", "running"), call):
            claim.run = call()
            paper = self.papers[claim.run.id]
            paper.state = "starting"
            paper.attempts += 1
            paper.takings += 1  # whoever thinks of the last attempt is late
            claim.takings = paper.takings

    def park(self, claim: Claim, n: int) -> None:
        def call() -> Run:
            return self.store.internal.runs.park(
                claim.run, until=self.now + n * MINUTE, reason="quota"
            )

        if not self.refused(self.refusal(claim, "starting", "running"), call):
            call()
            paper = self.papers[claim.run.id]
            paper.state, paper.due_at, paper.lease_until = "queued", self.now + n * MINUTE, None
            paper.takings += 1

    def spend(self, claim: Claim, n: int) -> None:
        """Charges are of the run and not of a supervisor: a stream may be read by any of them."""
        self.store.charges.add(UsageFact(model="m", output=1, cost_micros=n), run_id=claim.run.id)
        self.papers[claim.run.id].spent += n

    @rule(target=claims, claim=claims)
    def take_over(self, claim: Claim) -> Any:
        self.supervisors += 1

        def call() -> Run:
            return self.store.internal.runs.take_over(
                claim.run,
                owner=f"supervisor:{self.supervisors}",
                supervisor_pid=5,
                supervisor_token="5",
            )

        refusal = self.refusal(claim, *ACTIVE)
        if self.refused(Conflict if refusal is IllegalMove else refusal, call):
            return multiple()
        run = call()
        paper = self.papers[run.id]
        paper.takings += 1
        paper.lease_until = self.now + MINUTE
        return Claim(run, paper.takings)

    @rule(claim=claims, how=st.sampled_from(ENDS))
    def end(self, claim: Claim, how: ExitStatus) -> None:
        paper = self.papers[claim.run.id]

        def call() -> Run:
            return self.store.internal.runs.end(claim.run, how)

        if not paper.is_live:
            over = call()
            assert (over.state, over.exit_code) == (paper.state, paper.exit_code)
        elif not self.refused(Held if self.late(claim) else None, call):
            call()
            self.close(paper, self.end_state(paper, how), how)

    # -- by anybody -----------------------------------------------------------------------------

    @rule(id=runs, kind=st.sampled_from(StopKind))
    def stop(self, id: str, kind: StopKind) -> None:
        paper, reason = self.papers[id], outcome.DEFAULT_STOP_REASONS[kind]

        def call() -> Run:
            return self.store.internal.runs.request_stop(id, kind=kind)

        if self.refused(None if paper.is_live else IllegalMove, call):
            return
        call()
        if paper.state == "queued":
            self.close(paper, "cancelled", ExitStatus())
        elif paper.state != "stopping":
            paper.state, paper.stop_reason = "stopping", reason

    @rule(id=runs, code=st.sampled_from([0, 3]))
    def finish(self, id: str, code: int) -> None:
        paper = self.papers[id]

        def call() -> Run:
            return self.store.runs.finish(id, exit_code=code)

        if not paper.is_live:
            assert call().exit_code == paper.exit_code
        elif paper.state == "queued":
            if code == 0:
                self.refused(IllegalMove, call)
        else:
            call()
            end = ExitStatus(exit_code=code)
            self.close(paper, self.end_state(paper, end), end)

    @rule()
    def recover(self) -> None:
        """Other machines' runs are judged by their lease alone, each once."""
        silent = [
            one
            for one in self.papers.values()
            if one.state in ACTIVE and (one.lease_until or 0) <= self.now
        ]
        found = {one.run_id: one.state for one in self.store.runs.recover()}
        assert {*found} == {one.id for one in silent}
        for paper in silent:
            if paper.attempts <= paper.max_restarts and paper.state != "stopping":
                paper.state, paper.due_at, paper.lease_until = "queued", self.now, None
                paper.takings += 1
            else:
                state = "interrupted"
                if paper.stop_reason is not None:
                    state = STATE_OF_STOP.get(paper.stop_reason, "cancelled")
                self.close(paper, state, ExitStatus())
            assert found[paper.id] == paper.state

    @rule(ms=st.sampled_from([SECOND, 30 * SECOND, 2 * MINUTE, 2 * HOUR]))
    def wait(self, ms: int) -> None:
        self.clock.advance(ms)

    # -- always ---------------------------------------------------------------------------------

    @invariant()
    def every_run_is_as_the_model_has_it(self) -> None:
        found = {run.id: run for run in self.store.runs.list(limit=1_000).items}
        assert {*found} == {*self.papers}
        for id, paper in self.papers.items():
            run = found[id]
            assert (run.state, run.attempts, run.stop_reason) == (
                paper.state,
                paper.attempts,
                paper.stop_reason,
            )
            assert (run.exit_code, run.signal, run.ended_at) == (
                paper.exit_code,
                paper.signal,
                paper.ended_at,
            )
            assert run.lease_until == paper.lease_until
            assert run.due_at == paper.due_at

    @invariant()
    def no_more_go_at_once_than_may(self) -> None:
        assert sum(one.state in ACTIVE for one in self.papers.values()) <= MOST

    @invariant()
    def what_is_reserved_is_what_those_who_go_on_may_still_spend(self) -> None:
        budgets = {one.scope: one for one in self.store.budgets.list(limit=1_000).items}
        if "all" in budgets:
            everything = budgets.pop("all")
            assert everything.spent_micros == sum(one.spent for one in self.papers.values())
            assert everything.reserved_micros == sum(one.reserved for one in self.papers.values())
        going = {f"run:{one.id}" for one in self.papers.values() if one.is_live and one.attempts}
        assert {*budgets} <= going


@while_it_is_made_short
def test_runs_match_the_model(fresh_url: FreshUrl, monkeypatch: pytest.MonkeyPatch) -> None:
    without_supervisors(monkeypatch)
    run_machine(RunsMachine, fresh_url, stories=40, steps=40)
