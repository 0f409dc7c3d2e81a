"""Operations of `store.races`."""

from collections.abc import Mapping, Sequence

from corral.adapters.exports import ExportManifest
from corral.adapters.git.git_history import FileChange, FileDiff
from corral.adapters.git.merges import MergeResult
from corral.api import agent_rules as rules
from corral.api.operation import Resource, operation, read, write
from corral.api.policy import USES_FILES, Location
from corral.domain.races import ops, queries
from corral.domain.races.model import Graft, Race, RacePlan
from corral.services.races import cleanup, progress, validation, winner
from corral.services.races import diff as races_diff
from corral.services.races import rounds as race_rounds
from corral.services.races import selection as race_selection


class Races(Resource):
    """Races: several agents attempt the same work, round by round, and the winner continues.

    Each attempt has its own git worktree, starting from the same base commit.
    """

    noun = "race"
    subjects = ("race", "id")

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
        return race_rounds.start_race(
            self._database,
            prompt,
            plan,
            agents=agents,
            variations=variations,
            vary_auto=vary_auto,
            project=project,
            base=base,
            dirty=dirty,
            name=name,
            budget_micros=budget_micros,
        )

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
        return race_rounds.start_next_round(
            self._database,
            race,
            prompt=prompt,
            agents=agents,
            variations=variations,
            vary_auto=vary_auto,
            from_round=from_round,
            budget_micros=budget_micros,
        )

    @operation(slow=True)
    def advance(self, race: str) -> Race:
        """Do everything that can be done for a race now: prepare, start, commit, check, judge.

        Works only on the machine that has the worktrees; elsewhere it just returns the race. Any
        process may call it at any time.
        """
        return progress.advance_race(self._database, race)

    @operation(local="the daemon drives races that were started over HTTP")
    def hand_over(self, race: str) -> bool:
        """Hand a race to the daemon of this machine, or to a new process if there is none.

        Returns whether a process was started.
        """
        return progress.hand_over(self._database, race)

    @operation(waits="timeout_ms")
    def wait(self, race: str, *, timeout_ms: int | None = None) -> Race:
        """Drive a race until it has ended or a person has to choose.

        Raises NotYet after `timeout_ms`.
        """
        return progress.wait_for_race(self._database, race, timeout_ms=timeout_ms)

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
        return race_selection.select_winner(
            self._database, race, attempt, reason=reason, overrule=overrule
        )

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

        The order of the attempts is shuffled for each sample. `judge` defaults to the judge of the
        race. Raises Invalid when the race has none. Does not wait for the verdicts.
        """
        return race_rounds.request_judge(
            self._database, race, judge=judge, samples=samples, rubric=rubric
        )

    @operation(slow=True)
    def retry(self, race: str, attempt: str) -> Race:
        """Retry an attempt that did not pass, in a new worktree. The old worktree is kept."""
        return race_rounds.retry_attempt(self._database, race, attempt)

    @operation(slow=True)
    def cancel(self, race: str, attempt: str, *, reason: str | None = None) -> Race:
        """Cancel an attempt that is in progress. Its worktree is kept."""
        return race_rounds.cancel_attempt(self._database, race, attempt, reason=reason)

    @operation(slow=True)
    def abandon(self, race: str, *, round: int | None = None, reason: str | None = None) -> Race:
        """Abandon a race, or one round: cancel attempts in progress and keep all worktrees."""
        return race_rounds.abandon(self._database, race, round=round, reason=reason)

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
        """Return a race whose worktrees are on this machine; raises Refused otherwise."""
        return validation.require_this_host(self.get(race))
