"""Operations of `store.races`."""

import time
from collections.abc import Mapping, Sequence

import msgspec

from corral.adapters import git_history, process, worktrees
from corral.adapters.exports import ExportManifest
from corral.adapters.git_history import FileChange, FileDiff
from corral.adapters.merges import MergeResult
from corral.api import agent_rules as rules
from corral.api.operation import Resource, operation, read, write
from corral.api.policy import USES_FILES, Location
from corral.db.tx import Tx
from corral.domain.races import attempts, ops, queries, refs, selection
from corral.domain.races.model import Attempt, AttemptSpec, Graft, Race, RacePlan, Round, RoundState
from corral.kernel.errors import Invalid, NotYet, Refused
from corral.services.races import cleanup, driver, validation, winner
from corral.services.races import diff as races_diff
from corral.services.races.paths import pin_commit, races_folder

MAX_SLEEP = 1.0  # seconds; bounds the wait when a wake-up is missed
MIN_INTERVAL = 0.25  # seconds between two advances of a race that is waited for


class Races(Resource):
    """Races: several agents attempt the same work, round by round, and the winner continues.

    Each attempt has its own git worktree, starting from the same base commit.
    """

    noun = "race"
    subjects = ("race", "id")

    _start = write(ops.start)
    _next = write(ops.next_round)
    _select = write(selection.select)
    _abandon = write(ops.abandon)
    _retry = write(attempts.retry)
    _cancel = write(attempts.cancel)
    _ask_judge = write(selection.request_judge)
    _set_budget = write(ops.set_budget)

    get = read(queries.get, agent=rules.allow)
    latest = read(queries.find_latest)
    list = read(queries.list_races, agent=rules.allow)
    finish = write(ops.finish)
    win_rates = read(queries.win_rates, mode="one")

    # -- rounds ----------------------------------------------------------------------------------

    @operation(location=Location("project"), slow=True)
    def start(
        self,
        prompt: str,
        *,
        agents: str | Sequence[str] | None = None,
        variations: Sequence[str] = (),
        vary_auto: bool = False,
        checks: Sequence[str] = (),
        reports: Sequence[str] = (),
        setup: str | None = None,
        rounds: int = 1,
        budget_micros: int | None = None,
        judge: str | None = None,
        samples: int = 2,
        rubric: str | None = None,
        auto: bool = False,
        stop_after: int | None = None,
        project: str | None = None,
        base: str | None = None,
        dirty: validation.DirtyPolicy = "refuse",
        name: str | None = None,
        timeout_ms: int | None = None,
        check_timeout_ms: int | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        approvals: Sequence[str] = ("edit",),
        sandbox: str = "none",
        unsandboxed_commands: bool = False,
        continue_session: bool = False,
    ) -> Race:
        """Start a race: several attempts, each with an agent and a variation of the prompt.

        `agents` are names, or a text such as `claude:2,codex:2`. `dirty` decides about uncommitted
        changes: refuse the race, include them, or ignore them. `wait` drives the race; otherwise a
        daemon does. Raises Refused when an agent, its program or the sandbox is missing, or the
        repository does not allow a race.
        """
        names = validation.parse_agents(agents)
        entries = validation.plan_attempts(names, variations, vary_auto)
        plan = RacePlan(
            checks=[*checks],
            reports=[*reports],
            setup=setup,
            rounds=rounds,
            auto=auto,
            stop_after=stop_after,
            judge=judge,
            samples=samples,
            rubric=rubric,
            timeout_ms=timeout_ms,
            check_timeout_ms=check_timeout_ms,
            env={**(env or {})},
            secrets={**(secrets or {})},
            approvals=[*approvals],
            sandbox=sandbox,
            unsandboxed_commands=unsandboxed_commands,
            continue_session=continue_session,
        )
        self._check(entries, plan, process.host(), starting=entries, budget_micros=budget_micros)
        place = self._database.write(lambda tx: validation.resolve_project(tx, project))
        validation.require_default_agent(place, entries)
        race = self._start(
            prompt,
            entries,
            plan,
            validation.resolve_base(place, base, dirty),
            project=place.id,
            host=process.host(),
            folder=str(races_folder()),
            name=name,
            budget_micros=budget_micros,
        )
        return self.advance(race.id)

    def _check(
        self,
        entries: Sequence[AttemptSpec],
        plan: RacePlan,
        host: str,
        *,
        starting: Sequence[AttemptSpec],
        budget_micros: int | None,
    ) -> None:
        def check(tx: Tx) -> None:
            validation.validate_start(tx, entries, plan, budget_micros)
            if host == process.host():  # programs of another machine cannot be checked here
                validation.require_programs(tx, starting, plan)

        self._database.read(check)

    @operation(slow=True)
    def next(
        self,
        race: str,
        *,
        prompt: str | None = None,
        agents: str | Sequence[str] | None = None,
        variations: Sequence[str] = (),
        vary_auto: bool = False,
        from_round: int | None = None,
        budget_micros: int | None = None,
    ) -> Race:
        """Start the next round from the winner of the last round, or of `from_round`.

        Agents and variations are those of the last round unless they are given.
        """
        current = self.get(race)
        ops.require_repository(current)
        before = current.latest.attempts
        if agents is None and not variations and not vary_auto:
            entries = [AttemptSpec(attempt.agent, attempt.variation) for attempt in before]
        else:
            previous = [attempt.agent for attempt in before if attempt.agent is not None]
            names = validation.parse_agents(agents) if agents is not None else previous
            entries = validation.plan_attempts(names, variations, vary_auto)
        self._check(
            entries,
            current.plan,
            current.host,
            starting=entries,
            budget_micros=current.budget_micros if budget_micros is None else budget_micros,
        )
        if budget_micros is not None:
            rounds = max(current.plan.rounds, len(current.rounds) + 1)
            self._set_budget(current.id, budget_micros, rounds)
        after = self._next(
            current.id,
            entries,
            folder=str(races_folder()),
            prompt=prompt,
            from_round=from_round,
        )
        return self.advance(after.id)

    @operation(slow=True)
    def advance(self, race: str) -> Race:
        """Do everything that can be done for a race now: prepare, start, commit, check, judge.

        Works only on the machine that has the worktrees; elsewhere it just returns the race. Any
        process may call it at any time.
        """
        current = self.get(race)
        if current.host == process.host():
            while any(
                [self._drive(round) for round in self.get(current.id).rounds if round.needs_driver]
            ):
                pass
        return self.get(current.id)

    def _drive(self, round: Round) -> bool:
        return driver.advance(self._database, round.id)

    @operation(local="the daemon drives races that were started over HTTP")
    def hand_over(self, race: str) -> bool:
        """Hand a race to the daemon of this machine, or to a new process if there is none.

        Returns whether a process was started.
        """
        from corral.adapters import daemon_process, race_processes

        current = self.get(race)
        active = current.host == process.host() and any(
            round.needs_driver for round in current.rounds
        )
        if not active or daemon_process.find_daemon(self._database.url) is not None:
            return False
        race_processes.start_driver(self._database.address, current.id)
        return True

    @operation(waits="timeout_ms")
    def wait(self, race: str, *, timeout_ms: int | None = None) -> Race:
        """Drive a race until it has ended or a person has to choose.

        Raises NotYet after `timeout_ms`.
        """
        deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1_000
        with self._database.listener() as listener:
            while True:
                began = time.monotonic()
                current = self.advance(race)
                if not any(round.needs_driver for round in current.rounds):
                    return current
                left = MAX_SLEEP if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    latest = current.latest
                    raise NotYet(
                        f"Round {latest.number} of {current.id} is still {latest.state}.",
                        id=current.id,
                        state=latest.state,
                    )
                listener.wait(min(left, MAX_SLEEP))
                # `advance` commits and wakes this listener too: without a pause the loop spins.
                time.sleep(max(0.0, began + MIN_INTERVAL - time.monotonic()))

    # -- selection -------------------------------------------------------------------------------

    @operation(slow=True)
    def select(
        self,
        race: str,
        attempt: str | None = None,
        *,
        reason: str | None = None,
        overrule: bool = False,
    ) -> Race:
        """Select the winner of a round: the named attempt, otherwise the first in the ranking.

        Uncommitted changes in its worktree are committed first. Name an attempt by its number, by
        ROUND.NUMBER, or by its id. A winner can be selected once; with `overrule`, a person may
        select again, or select an attempt that failed its checks.
        """
        current = self.get(race)
        ops.require_repository(current)
        best = current.latest.ranked
        if attempt is None and not best:
            return self._select(current.id, None, reason=reason, overrule=overrule)
        chosen = best[0] if attempt is None else refs.find_attempt(current, attempt)
        round = next(round for round in current.rounds if round.id == chosen.round_id)
        commit = None
        allowed = overrule or (round.state is RoundState.SELECTING and chosen.can_win)
        # The store refuses any other attempt before anything is committed.
        if chosen.commit is not None and allowed:
            self._require_here(current)
            commit = self._commit_of(current, round, chosen)
            pin_commit(self._database, current, f"{round.number}-{chosen.number}", commit)
        return self._select(current.id, chosen.id, commit=commit, reason=reason, overrule=overrule)

    def _commit_of(self, race: Race, round: Round, attempt: Attempt) -> str:
        """Return a commit of what is in an attempt's worktree now, without files of its checks."""
        assert attempt.commit is not None
        state = worktrees.inspect(race.repository, attempt.worktree)
        if state.missing or state.head is None:
            return attempt.commit
        if not git_history.is_ancestor(race.repository, attempt.commit, state.head):
            raise Refused(
                f"The worktree {attempt.worktree} does not contain its recorded commit any more. "
                f"Switch it back (`git switch {attempt.branch}`), or remove it.",
                attempt=attempt.id,
            )
        if worktrees.fingerprint(state) in (None, attempt.checked_tree):
            return state.head
        message = f"{race.name}\n\nAs it was chosen: {attempt.number} of round {round.number}."
        return git_history.commit_all(race.repository, attempt.worktree, message).commit

    @operation(slow=True)
    def judge(
        self,
        race: str,
        *,
        judge: str | None = None,
        samples: int | None = None,
        rubric: str | None = None,
    ) -> Race:
        """Ask an agent to rank the attempts that passed, without knowing their authors.

        The order of the attempts is shuffled for each sample. `wait` waits for the verdicts.
        Default: the judge of the race. Raises Invalid when the race has none.
        """
        current = self.get(race)
        ops.require_repository(current)
        name = judge or current.plan.judge
        if name is None:
            raise Invalid(f"{current.id} has no judge. Name one with --agent.", id=current.id)
        entries = [AttemptSpec(attempt.agent, None) for attempt in current.latest.ranked]
        plan = msgspec.structs.replace(current.plan, judge=name)
        self._check(entries, plan, current.host, starting=(), budget_micros=current.budget_micros)
        self._ask_judge(current.id, name, samples=samples, rubric=rubric)
        return self.advance(current.id)

    @operation(slow=True)
    def retry(self, race: str, attempt: str) -> Race:
        """Retry an attempt that did not pass, in a new worktree. The old worktree is kept."""
        ops.require_repository(self.get(race))
        again = self._retry(race, attempt, folder=str(races_folder()))
        return self.advance(again.id)

    @operation(slow=True)
    def cancel(self, race: str, attempt: str, *, reason: str | None = None) -> Race:
        """Cancel an attempt that is in progress. Its worktree is kept."""
        ended = self._cancel(race, attempt, reason=reason)
        return self.advance(ended.race_id)

    @operation(slow=True)
    def abandon(self, race: str, *, round: int | None = None, reason: str | None = None) -> Race:
        """Abandon a race, or one round: cancel attempts in progress and keep all worktrees."""
        given_up = self._abandon(race, round=round, reason=reason)
        return self.advance(given_up.id)

    # -- inspection ------------------------------------------------------------------------------

    @operation(reads=True, slow=True)
    def attempt_progress(self, race: str) -> Sequence[races_diff.AttemptProgress]:
        """Return the progress of each attempt of the latest round: time, cost, changed lines."""
        return races_diff.list_progress(self.get(race), self._database.clock.now())

    @operation(reads=True, slow=True)
    def changes(self, race: str, one: str, other: str | None = None) -> Sequence[FileChange]:
        """List the files that an attempt changed, or that differ between two attempts."""
        return races_diff.list_changes(self._here(race), one, other)

    @operation(reads=True, slow=True)
    def diff(self, race: str, one: str, file: str, *, other: str | None = None) -> FileDiff:
        """Return the diff of one file: of an attempt, or between two attempts."""
        return races_diff.diff(self._here(race), one, other, file)

    # -- results ---------------------------------------------------------------------------------

    @operation(local=USES_FILES)
    def export(
        self, race: str, target: str, *, round: int | None = None, replace: bool = False
    ) -> ExportManifest:
        """Write the winners' files (`round-N-winner/`) and all outputs (`logs/`) into a folder.

        Adds a manifest of hashes. The folder appears complete, or not at all.
        """
        return winner.export(self._database, self._here(race), target, round=round, replace=replace)

    @operation(slow=True)
    def merge(self, race: str, *, into: str | None = None, round: int | None = None) -> MergeResult:
        """Merge the winner into a branch (default: the branch that the race started from).

        On conflicts, merges nothing and returns the conflicting files.
        """
        return winner.merge(self._database, self._here(race), into=into, round=round)

    @operation(slow=True)
    def graft(
        self,
        race: str,
        attempt: str,
        *,
        files: Sequence[str] = (),
        hunks: Mapping[str, Sequence[int]] | None = None,
    ) -> Graft:
        """Apply files or hunks of another attempt to the winner, and run the checks again.

        Keeps the result only if it is not worse.
        """
        return winner.graft(
            self._database, self._here(race), attempt, files=files, hunks=hunks or {}
        )

    @operation(slow=True)
    def clean(
        self,
        race: str | None = None,
        *,
        confirm: bool = False,
        unmerged: bool = False,
        orphans: bool = False,
        pooled: bool = False,
    ) -> Sequence[cleanup.AttemptLeftover]:
        """List the worktrees of ended attempts, and remove those that are safe to remove.

        Without `confirm`, removes nothing and returns what would be done, with reasons. Worktrees
        with uncommitted changes are never removed. Those with unmerged commits are removed only
        with `unmerged`, and their branch is kept. `orphans` includes worktrees without an attempt,
        `pooled` the files that are kept for the next attempts.
        """
        selected_race = self.get(race) if race is not None else None
        return cleanup.clean(
            self._database,
            selected_race,
            confirm=confirm,
            unmerged=unmerged,
            orphans=orphans,
            pooled=pooled,
        )

    @operation(slow=True)
    def reclaim(self) -> Sequence[cleanup.AttemptLeftover]:
        """Remove orphaned worktrees and pooled files that were unused for a long time.

        The time is `races.worktree_retention_ms`. Removes only worktrees of this machine without
        uncommitted or unmerged work, and returns them.
        """
        return cleanup.reclaim(self._database)

    def _here(self, race: str) -> Race:
        return self._require_here(self.get(race))

    def _require_here(self, race: Race) -> Race:
        ops.require_repository(race)
        if race.host != process.host():
            raise Refused(
                f"The worktrees of {race.id} are on {race.host}. Run the command there.",
                id=race.id,
                host=race.host,
                reason="other_host",
            )
        return race
