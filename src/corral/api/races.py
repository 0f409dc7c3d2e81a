import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from corral.adapters import history, process, worktrees
from corral.adapters.exports import Manifest
from corral.adapters.history import Change, FileDiff
from corral.adapters.merges import Merge
from corral.api.operation import Room, read, write
from corral.db.tx import Tx
from corral.domain.races import driver as races_driver
from corral.domain.races import ops, refs, selection
from corral.domain.races.model import Attempt, Entry, Graft, Plan, Race, Round, RoundState
from corral.kernel.errors import Invalid, Refused
from corral.services.races import cleanup, driver, validate, winner
from corral.services.races import diff as races_diff
from corral.services.races.folders import keep_commit, races_folder

LONGEST_SLEEP = 1.0
REST = 0.25  # seconds at least between two looks at a race that is waited for
MOST_AT_ONCE = 4


class Races(Room):
    """Several attempts at one piece of work, round by round, and the winner goes on."""

    noun = "race"

    _start = write(ops.start)
    _next = write(ops.next_round)
    _select = write(selection.select)
    _abandon = write(selection.abandon)
    _retry = write(selection.retry)
    _cancel = write(selection.cancel)
    _ask_judge = write(selection.ask_judge)
    _set_budget = write(selection.set_budget)
    _open_rounds = read(races_driver.open_rounds, mode="one")

    get = read(ops.get)
    latest = read(ops.latest_of)
    list = read(ops.list_races)
    finish = write(selection.finish)
    winning = read(selection.winning, mode="one")

    # -- rounds ----------------------------------------------------------------------------------

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
        enough: int | None = None,
        project: str | None = None,
        base: str | None = None,
        dirty: validate.Dirty = "refuse",
        name: str | None = None,
        timeout_ms: int | None = None,
        check_timeout_ms: int | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        approvals: Sequence[str] = ("edit",),
        sandbox: str = "none",
        commands_outside: bool = False,
        goes_on: bool = False,
    ) -> Race:
        """Start a race: attempts in worktrees of their own, from one base commit, each with an
        agent and a variation of the prompt.

        `agents` are names, or a text such as `claude:2,codex:2`. What begins can be waited for with
        `wait`, which drives it, or is left to a daemon. `dirty` says what becomes of changes that
        are in no commit yet: the race is refused, or they are included, or ignored.
        """
        who = validate.agents_of(agents)
        entries = validate.entries_of(who, variations, vary_auto)
        plan = Plan(
            checks=[*checks],
            reports=[*reports],
            setup=setup,
            rounds=rounds,
            auto=auto,
            enough=enough,
            judge=judge,
            samples=samples,
            rubric=rubric,
            timeout_ms=timeout_ms,
            check_timeout_ms=check_timeout_ms,
            env={**(env or {})},
            secrets={**(secrets or {})},
            approvals=[*approvals],
            sandbox=sandbox,
            commands_outside=commands_outside,
            goes_on=goes_on,
        )
        self._check(entries, plan, process.host(), starting=entries, budget_micros=budget_micros)
        place = self._database.write(lambda tx: validate.project_of(tx, project))
        validate.check_own_agent(place, entries)
        where = validate.repository_of(place, base, dirty)
        race = self._start(
            prompt,
            entries,
            plan,
            project=place.id,
            repository=where.repository,
            inside=where.inside,
            private=where.private,
            branch=where.branch,
            base_commit=where.commit,
            host=process.host(),
            folder=str(races_folder()),
            name=name,
            budget_micros=budget_micros,
        )
        return self.advance(race.id)

    def _check(
        self,
        entries: Sequence[Entry],
        plan: Plan,
        host: str,
        *,
        starting: Sequence[Entry],
        budget_micros: int | None,
    ) -> None:
        def check(tx: Tx) -> None:
            validate.check_start(tx, entries, plan, budget_micros)
            if host == process.host():  # what another machine has is not known
                validate.check_programs(tx, starting, plan)

        self._database.read(check)

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
        """Begin the next round from the winner of the last one, or of an earlier one.

        Who tries, and in which ways, is as in the round before unless it is said anew.
        """
        found = self.get(race)
        ops.check_repository(found)
        before = found.latest.attempts
        if agents is None and not variations and not vary_auto:
            entries = [Entry(each.agent, each.variation) for each in before]
        else:
            named = [each.agent for each in before if each.agent is not None]
            who = validate.agents_of(agents) if agents is not None else named
            entries = validate.entries_of(who, variations, vary_auto)
        self._check(
            entries,
            found.plan,
            found.host,
            starting=entries,
            budget_micros=found.budget_micros if budget_micros is None else budget_micros,
        )
        if budget_micros is not None:
            rounds = max(found.plan.rounds, len(found.rounds) + 1)
            self._set_budget(found.id, budget_micros, rounds)
        after = self._next(
            found.id,
            entries,
            folder=str(races_folder()),
            prompt=prompt,
            from_round=from_round,
        )
        return self.advance(after.id)

    def advance(self, race: str) -> Race:
        """Do what can be done for a race now, on the machine that has its worktrees: prepare,
        start, commit, check, judge. Anybody may call it at any time."""
        found = self.get(race)
        if found.host == process.host():
            while any([self._drive(each) for each in self.get(found.id).rounds if each.goes_on]):
                pass
        return self.get(found.id)

    def _drive(self, round: Round) -> bool:
        return driver.advance(self._database, round.id)

    def advance_open(self) -> int:
        """Do the same for every race of this machine; gives back for how many something was."""
        found = self._open_rounds(process.host())
        if not found:
            return 0
        with ThreadPoolExecutor(min(MOST_AT_ONCE, len(found))) as pool:
            return sum(pool.map(self._drive, found))

    def leave(self, race: str) -> bool:
        """Leave a race to itself: to the daemon that serves the store here, else to a process of
        its own; whether one was started for it."""
        from corral.adapters import daemon_process, race_processes

        found = self.get(race)
        going = found.host == process.host() and any(each.goes_on for each in found.rounds)
        if not going or daemon_process.find(self._database.url) is not None:
            return False
        race_processes.start(self._database.address, found.id)
        return True

    def wait(self, race: str, *, timeout_ms: int | None = None) -> Race:
        """Drive a race until nothing of it happens by itself any more: somebody has to choose, or
        it is over. Refused when it is not within the time."""
        deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1_000
        with self._database.listening() as listener:
            while True:
                began = time.monotonic()
                found = self.advance(race)
                if not any(each.goes_on for each in found.rounds):
                    return found
                left = LONGEST_SLEEP if deadline is None else deadline - time.monotonic()
                if left <= 0:
                    latest = found.latest
                    raise Refused(
                        f"Round {latest.number} of {found.id} is still {latest.state}.",
                        id=found.id,
                        state=latest.state,
                    )
                listener.wait(min(left, LONGEST_SLEEP))
                # `advance` commits, which wakes this listener too: without a rest the loop spins.
                time.sleep(max(0.0, began + REST - time.monotonic()))

    # -- choosing --------------------------------------------------------------------------------

    def select(
        self,
        race: str,
        attempt: str | None = None,
        *,
        reason: str | None = None,
        overrule: bool = False,
    ) -> Race:
        """Choose the winner of a round, once: the attempt that is named, else the one that ranks
        first. What is not committed in its worktree is committed first.

        An attempt is named by its number, as ROUND.NUMBER, or by its id. With `overrule` a person
        may choose what did not pass its checks, and choose anew what was chosen before.
        """
        found = self.get(race)
        ops.check_repository(found)
        best = found.latest.ranked
        if attempt is None and not best:
            return self._select(found.id, None, reason=reason, overrule=overrule)
        chosen = best[0] if attempt is None else refs.find_attempt(found, attempt)
        round = next(each for each in found.rounds if each.id == chosen.round_id)
        commit = None
        may = overrule or (round.state is RoundState.SELECTING and chosen.can_win)
        # Others are refused by the store, in its words, before anything is committed.
        if chosen.commit is not None and may:
            self._require_here(found)
            commit = self._commit_of(found, round, chosen)
            keep_commit(self._database, found, f"{round.number}-{chosen.number}", commit)
        return self._select(found.id, chosen.id, commit=commit, reason=reason, overrule=overrule)

    def _commit_of(self, race: Race, round: Round, attempt: Attempt) -> str:
        """What is in an attempt's worktree now; what only its checks left there is not meant."""
        assert attempt.commit is not None
        state = worktrees.state(race.repository, attempt.worktree)
        if state.missing or state.head is None:
            return attempt.commit
        if not history.is_ancestor(race.repository, attempt.commit, state.head):
            raise Refused(
                f"The worktree {attempt.worktree} is not behind its own commit any more; put it "
                f"back (`git switch {attempt.branch}`), or remove it.",
                attempt=attempt.id,
            )
        if driver.fingerprint(state) in (None, attempt.checked_tree):
            return state.head
        message = f"{race.name}\n\nAs it was chosen: {attempt.number} of round {round.number}."
        return history.commit_all(race.repository, attempt.worktree, message).commit

    def judge(
        self,
        race: str,
        *,
        judge: str | None = None,
        samples: int | None = None,
        rubric: str | None = None,
    ) -> Race:
        """Have the attempts that passed judged, blind and in shuffled orders; `wait` waits for the
        verdicts. Without a name the race's own judge is asked (again)."""
        found = self.get(race)
        ops.check_repository(found)
        name = judge or found.plan.judge
        if name is None:
            raise Invalid(f"{found.id} has no judge; name one with --agent.", id=found.id)
        entries = [Entry(each.agent, None) for each in found.latest.ranked]
        plan = msgspec.structs.replace(found.plan, judge=name)
        self._check(entries, plan, found.host, starting=(), budget_micros=found.budget_micros)
        self._ask_judge(found.id, name, samples=samples, rubric=rubric)
        return self.advance(found.id)

    def retry(self, race: str, attempt: str) -> Race:
        """Try an attempt again that did not pass, in a new worktree; what it left stays."""
        ops.check_repository(self.get(race))
        again = self._retry(race, attempt, folder=str(races_folder()))
        return self.advance(again.id)

    def cancel(self, race: str, attempt: str, *, reason: str | None = None) -> Race:
        """End an attempt that is under way; what it left stays."""
        ended = self._cancel(race, attempt, reason=reason)
        return self.advance(ended.race_id)

    def abandon(self, race: str, *, round: int | None = None, reason: str | None = None) -> Race:
        """Give up a race, or one round of it; what is under way ends, and what was made stays."""
        given_up = self._abandon(race, round=round, reason=reason)
        return self.advance(given_up.id)

    # -- looking ---------------------------------------------------------------------------------

    def so_far(self, race: str) -> Sequence[races_diff.SoFar]:
        """How far the attempts of the latest round are: time, cost, and lines that they changed."""
        return races_diff.so_far(self.get(race), self._database.clock.now())

    def changes(self, race: str, one: str, other: str | None = None) -> Sequence[Change]:
        """Which files an attempt changed, or in which two attempts differ."""
        return races_diff.changes(self._here(race), one, other)

    def diff(self, race: str, one: str, file: str, *, other: str | None = None) -> FileDiff:
        """How an attempt changed a file, or how two attempts differ in it, line by line."""
        return races_diff.diff(self._here(race), one, other, file)

    # -- the winner's way ------------------------------------------------------------------------

    def export(
        self, race: str, target: str, *, round: int | None = None, replace: bool = False
    ) -> Manifest:
        """Write the winners' files (`round-N-winner/`) and what all attempts printed (`logs/`) into
        a folder, whole or not at all, with a manifest of hashes."""
        return winner.export(self._database, self._here(race), target, round=round, replace=replace)

    def merge(self, race: str, *, into: str | None = None, round: int | None = None) -> Merge:
        """Merge the winner into a branch, that of the race's start by default; conflicts are told
        by file, and nothing is done then."""
        return winner.merge(self._database, self._here(race), into=into, round=round)

    def graft(
        self,
        race: str,
        attempt: str,
        *,
        files: Sequence[str] = (),
        hunks: Mapping[str, Sequence[int]] | None = None,
    ) -> Graft:
        """Put files or hunks of another attempt onto the winner, run the checks again, and keep
        that only if it is not worse."""
        return winner.graft(
            self._database, self._here(race), attempt, files=files, hunks=hunks or {}
        )

    def clean(
        self,
        race: str | None = None,
        *,
        confirm: bool = False,
        unmerged: bool = False,
        orphans: bool = False,
        pooled: bool = False,
    ) -> Sequence[cleanup.AttemptLeftover]:
        """What may be cleared away: worktrees of attempts that are over, with what each holds and
        why it stays. Only with `confirm` is anything done.

        What is not committed is never removed; what no other branch has only with `unmerged`, and
        then its branch stays. `orphans` are worktrees in which no attempt works; `pooled` are files
        that are kept for the next attempts.
        """
        wanted = self.get(race) if race is not None else None
        return cleanup.clean(
            self._database,
            wanted,
            confirm=confirm,
            unmerged=unmerged,
            orphans=orphans,
            pooled=pooled,
        )

    def reclaim(self) -> Sequence[cleanup.AttemptLeftover]:
        """Remove worktrees of this machine in which no attempt works and of which all is elsewhere
        too, and files in the pool, once nobody has touched them for as long as `races.unused_ms`
        says; gives these."""
        return cleanup.reclaim(self._database)

    def _here(self, race: str) -> Race:
        return self._require_here(self.get(race))

    def _require_here(self, race: Race) -> Race:
        ops.check_repository(race)
        if race.host != process.host():
            raise Refused(
                f"The worktrees of {race.id} are on {race.host}; do it there.",
                id=race.id,
                host=race.host,
                reason="other_host",
            )
        return race
