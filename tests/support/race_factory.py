"""Races in the state that their drivers leave: real commits and records, no processes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from corral.adapters.processes import process
from corral.api import Corral
from corral.db.statement import Statement
from corral.domain.races import ops, queries, round_steps, selection
from corral.domain.races.model import (
    Attempt,
    AttemptSpec,
    CheckResult,
    CheckTally,
    Race,
    RaceBase,
    RacePlan,
    Round,
)
from tests.support.git_repositories import commit, git, new_repository
from tests.support.run_factories import add_launch, add_run

GOOD = CheckResult("pytest -q", 0, 2_300, CheckTally(12, 12, 0), "12 passed in 2.1s")
BAD = CheckResult("pytest -q", 1, 1_900, CheckTally(12, 9, 3), "3 failed, 9 passed in 1.8s")


class RaceFactory:
    def __init__(
        self,
        store: Corral,
        folder: Path,
        files: dict[str, str | bytes] | None = None,
        *,
        host: str | None = None,
        worktrees: Path | None = None,
    ) -> None:
        self.store = store
        self._host = host or process.host()
        self.repository = new_repository(folder / "raced", files)
        self._scratch = folder / "scratch"
        self._worktrees = str(worktrees or self._scratch / "worktrees")
        self.project = store.projects.register(self.repository).id

    def start(
        self,
        *agents: str,
        prompt: str = "Make it faster",
        host: str | None = None,
        variations: Sequence[str | None] = (None,),
        budget_micros: int | None = None,
        name: str | None = None,
        **plan: Any,
    ) -> Race:
        with self.store.transaction() as tx:
            return ops.start(
                tx,
                prompt,
                [
                    AttemptSpec(agent, variations[n % len(variations)])
                    for n, agent in enumerate(agents)
                ],
                RacePlan(**{"checks": ["pytest -q"]} | plan),
                RaceBase(
                    repository=str(self.repository),
                    subdirectory="",
                    managed_repository=False,
                    branch="main",
                    commit=git(self.repository, "rev-parse", "main"),
                ),
                project=self.project,
                host=host or self._host,
                folder=self._worktrees,
                budget_micros=budget_micros,
                name=name,
            )

    def next(self, race: Race, *agents: str, from_round: int | None = None, **options: Any) -> Race:
        with self.store.transaction() as tx:
            return ops.next_round(
                tx,
                race.id,
                [AttemptSpec(agent) for agent in agents],
                folder=self._worktrees,
                from_round=from_round,
                **options,
            )

    def begin(self, race: Race, number: int, **columns: Any) -> Attempt:
        """Start an attempt's run on another node, so that no recovery looks for its process."""
        round, attempt = self._get_latest(race, number)
        run = self._run(
            "running",
            project_id=self.project,
            host="elsewhere",
            **{"lease_until": self.store.now() + 3_600_000, "model": f"model-{number}"} | columns,
        )
        with self.store.transaction() as tx:
            held = round_steps.acquire_round(tx, round.id, "tests")
            result = round_steps.mark_started(
                tx, held, attempt, self.store.runs.get(run), port=None, sandbox="none"
            )
            round_steps.release_round(tx, held)
        return result

    def end(
        self,
        race: Race,
        number: int,
        files: dict[str, str | bytes] | None = None,
        *,
        checks: Sequence[CheckResult] = (GOOD,),
        took: int = 60_000,
        cost_micros: int | None = 120_000,
        state: str = "completed",
        **columns: Any,
    ) -> None:
        """Finish an attempt: its result is committed and checked."""
        round, attempt = self._get_latest(race, number)
        run = self._run(
            state,
            self.store.now() - took,
            project_id=self.project,
            ended_at=self.store.now(),
            cost_micros=cost_micros,
            **{"model": f"model-{number}"} | columns,
        )
        with self.store.transaction() as tx:
            held = round_steps.acquire_round(tx, round.id, "tests")
            result = self.store.runs.get(run)
            round_steps.mark_started(tx, held, attempt, result, port=None, sandbox="none")
            checking = round_steps.record_run_end(tx, result)
            assert checking is not None
            if state == "completed":
                values: dict[str, str | bytes] = {"made": f"in round {round.number} by {number}\n"}
                commit = self.commit(files or values, round.base_commit)
                round_steps.record_commit(
                    tx, held, checking, commit, files=len(files or "1"), added=3, removed=1
                )
                passed = all(check.exit_code == 0 for check in checks) if checks else None
                round_steps.record_checks(tx, held, checking, checks, passed=passed, tree=None)
            round_steps.release_round(tx, held)

    def settle(self, race: Race) -> Race:
        """End the round: it waits for a selection, or no attempt passed."""
        with self.store.transaction() as tx:
            current = queries.get(tx, race.id)
            held = round_steps.acquire_round(tx, current.latest.id, "tests")
            round_steps.close_round(tx, current, held)
            round_steps.mark_idle(tx, current, held)
            round_steps.release_round(tx, held)
        return self.store.races.get(race.id)

    def judge(self, race: Race, ranking: list[list[int]] | None, reason: str) -> None:
        """Record a judge's verdict; None: the judge gave no valid ranking."""
        round = self.store.races.get(race.id).latest
        ids = {attempt.number: attempt.id for attempt in round.attempts}
        run = self._run("completed", cost_micros=30_000, model="judge-model")
        with self.store.transaction() as tx:
            held = round_steps.acquire_round(tx, round.id, "tests")
            verdict = round_steps.add_verdict(
                tx,
                held,
                self.store.runs.get(run),
                judge="solomon",
                labels={chr(64 + number): id for number, id in ids.items()},
                prompt_hash="0",
                truncated=True,
            )
            value = [[ids[number] for number in group] for group in ranking] if ranking else None
            round_steps.record_verdict(tx, held, verdict, self.store.runs.get(run), value, reason)
            round_steps.release_round(tx, held)

    def select(self, race: Race, attempt: str, **options: Any) -> Race:
        """Select the winner, also for a race of another node."""
        with self.store.transaction() as tx:
            return selection.select(tx, race.id, attempt, **options)

    def move_to_node(self, race: Race, host: str) -> None:
        """Move the race to another node, whose driver has released it."""
        with self.store.transaction() as tx:
            tx.run(Statement("UPDATE races SET host = :host WHERE id = :id"), host=host, id=race.id)
            tx.run(
                Statement("UPDATE rounds SET host = :host WHERE race_id = :id"),
                host=host,
                id=race.id,
            )

    def commit(self, files: dict[str, str | bytes], base: str = "main") -> str:
        """Commit on top of a base, on no branch."""
        git(self.repository, "worktree", "add", "-q", "--detach", str(self._scratch / "w"), base)
        result = commit(self._scratch / "w", files, "what an attempt left")
        git(self.repository, "worktree", "remove", "--force", str(self._scratch / "w"))
        return result

    def _run(self, state: str, at: int | None = None, **columns: Any) -> str:
        result = add_run(self.store, state, at, **columns)
        add_launch(self.store, result)
        return result

    def _get_latest(self, race: Race, number: int) -> tuple[Round, Attempt]:
        round = self.store.races.get(race.id).latest
        return round, next(attempt for attempt in round.attempts if attempt.number == number)
