"""Driving a round: worktrees are made, agents started, what they left is committed and checked, the
judge is asked, and where nobody is waited for, the best goes on.

`advance` is the one mechanism. Anybody may call it, again and again, from anywhere on the machine
that has the worktrees: it does what can be done now, and what another one does at the moment is
left to that one. Outside of the store it only does what may be done twice; each of its transactions
leaves the round as it was or whole.
"""

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import NamedTuple, TypeVar

from corral import config
from corral.adapters import history, ports, private_git, process, worktrees
from corral.adapters.checkouts import checkout_of
from corral.adapters.checks import run_check
from corral.adapters.process import Identity, Standing
from corral.adapters.redaction import clean_of_secrets
from corral.adapters.sandbox import Kind
from corral.api.runs import Runs
from corral.db.database import Database
from corral.db.tx import Tx
from corral.domain.races import driver as races_driver
from corral.domain.races import ops, selection
from corral.domain.races.model import Attempt, AttemptState, Entry, Race, Round, RoundState
from corral.domain.races.ranking import survivors
from corral.domain.runs.model import Run, RunState
from corral.domain.sessions import context as conversations
from corral.domain.settings import ops as settings
from corral.kernel.errors import Conflict, Held, Invalid, NotFound, Refused
from corral.services.identity import check_mark
from corral.services.races import judge
from corral.services.races.checks import (
    check_ms,
    confined_to,
    environment,
    keeper_of,
    place_in,
    run_gates,
    sandbox_of,
)
from corral.services.races.folders import (
    keep_commit,
    make_folder,
    pool_of,
    ports_folder,
    races_folder,
)
from corral.services.runs import request

T = TypeVar("T")

BEAT_SECONDS = races_driver.LEASE_MS / 3_000
_numbers = itertools.count(1)


def advance(database: Database, round_id: str) -> bool:
    """Do what can be done for a round now; whether anything was. False too when another drives
    it."""
    driver = Driver(database)
    try:
        with driver.holding(round_id) as round:
            return driver.go(round)
    except Held:
        return False


def fingerprint(state: worktrees.State) -> str | None:
    """What a worktree holds that is in no commit; None: nothing. Two that are equal mean that
    nobody has touched it in between."""
    if not state.dirty:
        return None
    told = sha256()
    for name in sorted(state.changed):
        told.update(os.fsencode(name) + b"\0")
        with suppress(OSError):
            found = os.lstat(os.path.join(state.folder, name))
            told.update(f"{found.st_size} {found.st_mtime_ns} {found.st_mode}\0".encode())
    return told.hexdigest()


class _Prepared(NamedTuple):
    attempt: Attempt
    port: int


class Driver:
    """One who drives rounds; each has a name of its own."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._runs = Runs(database)
        me = process.identify(os.getpid())
        assert me is not None
        number = next(_numbers)
        self.owner = f"driver:{number}:{me.pid}:{me.start_token}:{me.boot_id}:{me.host}"

    @contextmanager
    def holding(self, round_id: str) -> Iterator[Round]:
        """The round, held by this driver for as long as it works on it."""
        before = self._read(lambda tx: races_driver.find(tx, round_id))
        gone = before.owner if before.owner and _is_gone(before.owner) else None
        round = self._write(lambda tx: races_driver.take(tx, round_id, self.owner, gone=gone))
        over = threading.Event()
        heart = threading.Thread(target=self._beat, args=(round, over), daemon=True)
        heart.start()
        try:
            yield round
        finally:
            over.set()
            heart.join()
            self._write(lambda tx: races_driver.give_back(tx, round))

    def _beat(self, round: Round, over: threading.Event) -> None:
        """Keep a round while a check takes its time. Whoever lost it learns so by its next word."""
        while not over.wait(BEAT_SECONDS):
            with suppress(Exception):
                self._write(lambda tx: races_driver.hold(tx, round))

    def _read(self, look: Callable[[Tx], T]) -> T:
        return self._database.read(look)

    def _write(self, act: Callable[[Tx], T]) -> T:
        return self._database.write(act)

    # -- the round -------------------------------------------------------------------------------

    def go(self, held: Round) -> bool:
        """All that can be done now, step after step, until there is nothing."""
        did = False
        while True:
            race = self._read(lambda tx: races_driver.race_of(tx, held))
            round = next(each for each in race.rounds if each.id == held.id)
            steps = self._steps(round)
            if not any([step(race, held, round) for step in steps]):
                return did
            did = True

    def _steps(self, round: Round) -> Sequence[Callable[[Race, Round, Round], bool]]:
        if round.state is RoundState.RUNNING:
            return (
                self._end_losers,
                self._stop,
                self._prepare,
                self._see,
                self._check,
                self._settle,
            )
        if round.state is RoundState.SELECTING and round.goes_on:
            return (self._stop, self._judge_or_choose)
        return (self._stop, self._hear, self._rest)

    def _settle(self, race: Race, held: Round, round: Round) -> bool:
        after = self._write(lambda tx: races_driver.settle(tx, race, held))
        return after.state is not RoundState.RUNNING

    def _rest(self, race: Race, held: Round, round: Round) -> bool:
        if round.goes_on and not self._going(round) and not judge.is_asked(round):
            self._write(lambda tx: races_driver.rest(tx, race, held))
        return False

    def _hear(self, race: Race, held: Round, round: Round) -> bool:
        """A judge whose answer decides nothing any more is heard all the same."""
        return judge.hear(self._database, round)

    # -- losers ----------------------------------------------------------------------------------

    def _end_losers(self, race: Race, held: Round, round: Round) -> bool:
        """End what a gate or the money has decided already."""
        open = [attempt for attempt in round.attempts if attempt.is_open]
        why = _lost(race, round) if open else None
        if why is None:
            return False
        for attempt in open:
            self._cancel(held, attempt, why)
        return True

    def _cancel(self, held: Round, attempt: Attempt, why: str) -> None:
        with suppress(Conflict):  # it came to its end meanwhile
            self._write(lambda tx: races_driver.cancelled(tx, held, attempt, why))

    def _stop(self, race: Race, held: Round, round: Round) -> bool:
        """Stop the runs of cancelled attempts, for the reason of the attempt. Idempotent."""
        for run, why in self._going(round):
            told = f"its attempt was cancelled: {why}" if why else "its attempt was cancelled"
            self._runs.stop(run.id, reason=told[: races_driver.MAX_REASON])
        return False

    def _going(self, round: Round) -> list[tuple[Run, str | None]]:
        """List the runs of cancelled attempts that are live and were not asked to stop, each with
        the reason of its attempt."""
        found: list[tuple[Run, str | None]] = []
        for attempt in round.attempts:
            if attempt.state is AttemptState.CANCELLED and attempt.run_id is not None:
                with suppress(NotFound):
                    run = self._runs.get(attempt.run_id)
                    if run.is_live and run.stop_kind is None:
                        found.append((run, attempt.reason))
        return found

    # -- preparing -------------------------------------------------------------------------------

    def _prepare(self, race: Race, held: Round, round: Round) -> bool:
        waiting = [each for each in round.attempts if each.state is AttemptState.PREPARING]
        if not waiting:
            return False
        try:
            make_folder(self._database, race)
            config.make_private_folder(ports_folder())
        except OSError as error:
            for each in waiting:
                self._fail(held, each, f"there is no place for its worktree: {error}")
            return True
        made = [each for each in waiting if self._make(race, held, round, each)]
        ready = self._side_by_side(race, made, lambda each: self._set_up(race, held, each))
        for prepared in ready:
            if prepared is not None:
                self._start(race, held, round, prepared)
        self._runs.start_queued()
        return True

    def _make(self, race: Race, held: Round, round: Round, attempt: Attempt) -> bool:
        try:
            worktrees.make(
                race.repository,
                attempt.worktree,
                attempt.branch,
                base=round.base_commit,
                pool=pool_of(self._database, race),
            )
        except (Refused, Invalid, OSError) as error:
            self._fail(held, attempt, f"its worktree could not be made: {error}")
            return False
        return True

    def _set_up(self, race: Race, held: Round, attempt: Attempt) -> _Prepared | None:
        """Run the set-up command in a worktree; None when that failed."""
        try:
            (port,) = ports.take(ports_folder(), attempt.worktree)
        except (Refused, OSError) as error:
            self._fail(held, attempt, f"there is no port for it: {error}")
            return None
        if race.plan.setup is not None:
            try:
                ended = run_check(
                    race.plan.setup,
                    place_in(race, attempt.worktree),
                    timeout_ms=check_ms(self._database, race),
                    environment=environment(race, attempt, port) | check_mark(self._database),
                    kept_in=attempt.worktree,
                    by=keeper_of(race, attempt),
                    repository=race.repository,
                    confined=confined_to(self._database, race),
                )
            except (Refused, OSError) as error:
                self._fail(held, attempt, f"its set-up could not be run: {error}")
                return None
            if ended.exit_code != 0:
                last = clean_of_secrets(ended.output.strip().rpartition("\n")[2])[:200]
                self._fail(held, attempt, f"its set-up ended with {ended.exit_code}: {last}")
                return None
        return _Prepared(attempt, port)

    def _start(self, race: Race, held: Round, round: Round, prepared: _Prepared) -> None:
        attempt, port = prepared
        kind = sandbox_of(race)

        def begin(tx: Tx) -> Attempt:
            run = request.ask(tx, self._wish(tx, race, round, prepared, kind))
            return races_driver.started(tx, held, attempt, run, port=port, sandbox=kind)

        try:
            self._write(begin)
        except Held:
            raise
        except (Refused, Invalid, NotFound, Conflict) as error:
            self._fail(held, attempt, f"its agent could not be started: {error}")

    def _wish(
        self, tx: Tx, race: Race, round: Round, prepared: _Prepared, kind: Kind
    ) -> request.Wish:
        attempt, port = prepared
        budget = None
        if round.budget_micros is not None:
            budget = round.budget_micros // len(round.attempts)
        return request.Wish(
            prompt=attempt.prompt,
            agent=attempt.agent,
            project=race.project_id,
            dir=place_in(race, attempt.worktree),
            session=_conversation(tx, race, round),
            env=environment(race, attempt, port) | race.plan.env,
            secrets=race.plan.secrets,
            approvals=race.plan.approvals,
            sandbox=None if kind is Kind.NONE else kind,
            timeout_ms=race.plan.timeout_ms,
            budget_micros=budget,
        )

    def _fail(self, held: Round, attempt: Attempt, why: str) -> None:
        with suppress(Conflict):  # somebody has ended it meanwhile
            self._write(lambda tx: races_driver.failed(tx, held, attempt, why))

    # -- runs ------------------------------------------------------------------------------------

    def _see(self, race: Race, held: Round, round: Round) -> bool:
        """What became of the runs."""
        going = [each for each in round.attempts if each.state is AttemptState.RUNNING]
        return any([self._see_one(held, attempt) for attempt in going])

    def _see_one(self, held: Round, attempt: Attempt) -> bool:
        """Record the end of an attempt's run; returns whether it has ended.

        A run that is still queued is started: the process that claimed it may have crashed.
        """
        assert attempt.run_id is not None
        try:
            run = self._runs.refreshed(self._runs.get(attempt.run_id))
        except NotFound:
            self._write(lambda tx: races_driver.lost_run(tx, held, attempt))
            return True
        if run.state is RunState.QUEUED and run.due_at <= self._database.clock.now():
            self._runs.start_queued()
        if run.is_live:
            return False
        return self._write(lambda tx: races_driver.end_of_run(tx, run)) is not None

    # -- checking --------------------------------------------------------------------------------

    def _check(self, race: Race, held: Round, round: Round) -> bool:
        waiting = [each for each in round.attempts if each.state is AttemptState.CHECKING]
        self._side_by_side(race, waiting, lambda each: self._examine(race, held, round, each))
        return bool(waiting)

    def _examine(self, race: Race, held: Round, round: Round, attempt: Attempt) -> None:
        """Commit what an agent left, and run the gates on it."""
        try:
            self._keep(race, held, round, attempt)
            checks = run_gates(self._database, race, attempt.worktree, attempt)
            left = fingerprint(worktrees.state(race.repository, attempt.worktree))
        except Held:
            raise
        except (Refused, Conflict, OSError) as error:
            self._fail(held, attempt, f"what it left could not be kept: {error}")
            return
        passed = all(check.exit_code == 0 for check in checks) if checks else None
        with suppress(Conflict):
            self._write(
                lambda tx: races_driver.checked(tx, held, attempt, checks, passed=passed, tree=left)
            )

    def _keep(self, race: Race, held: Round, round: Round, attempt: Attempt) -> None:
        """Commit what is not committed; once, also when a driver died behind it."""
        if attempt.commit is not None:
            return
        if not os.path.isdir(attempt.worktree):
            raise Refused(f"its worktree {attempt.worktree} is gone")
        self._import_commits(race, attempt)
        message = f"{race.name}\n\nAttempt {attempt.number} of round {round.number} of {race.id}."
        saved = history.commit_all(race.repository, attempt.worktree, message)
        size = history.stat(race.repository, round.base_commit, saved.commit)
        self._write(
            lambda tx: races_driver.committed(
                tx,
                held,
                attempt,
                saved.commit,
                files=size.files,
                added=size.added,
                removed=size.removed,
            )
        )

    def _import_commits(self, race: Race, attempt: Attempt) -> None:
        """Import the commits of a sandboxed attempt whose supervisor died before it did so. Commits
        that fail the check are dropped; the files in the worktree are committed as they are."""
        folder = str(config.run_folder(attempt.run_id) / "git") if attempt.run_id else ""
        checkout = checkout_of(race.repository, attempt.worktree)
        if checkout is not None and os.path.isdir(folder):
            with suppress(Refused, Conflict):
                private_git.import_commits(checkout, folder)
            private_git.discard(checkout, folder)

    def _side_by_side(
        self, race: Race, attempts: Sequence[Attempt], act: Callable[[Attempt], T]
    ) -> list[T]:
        if not attempts:
            return []
        most = self._read(
            lambda tx: int(settings.value(tx, "races.checks_at_once", project=race.project_id))
        )
        with ThreadPoolExecutor(min(most, len(attempts))) as pool:
            return list(pool.map(act, attempts))

    # -- choosing --------------------------------------------------------------------------------

    def _judge_or_choose(self, race: Race, held: Round, round: Round) -> bool:
        state = judge.go_on(self._database, race, held, round)
        if state is not judge.Standing.OVER:
            return state is judge.Standing.MOVED
        if not race.plan.auto:
            self._write(lambda tx: races_driver.rest(tx, race, held))
            return False
        best = round.ranked[0]
        decided = "its judge" if any(each.ranking for each in round.verdicts) else "its ranking"
        keep_commit(self._database, race, f"{round.number}-{best.number}", best.commit or "")
        self._write(lambda tx: self._choose(tx, race, held, best, decided))
        return False

    def _choose(self, tx: Tx, race: Race, held: Round, best: Attempt, decided: str) -> None:
        """Choose, and begin the next round with the better half, or end the race."""
        races_driver.hold(tx, held)
        why = f"first by {decided}, with a score of {best.score}"
        now = selection.select(tx, race.id, best.id, reason=why, by=f"auto ({decided})")
        round = next(each for each in now.rounds if each.id == held.id)
        if round.number >= race.plan.rounds:
            races_driver.tell(tx, now, round, "completed", why)
            selection.finish(tx, race.id, reason="all its rounds are decided")
            return
        try:
            ops.next_round(
                tx,
                race.id,
                [Entry(each.agent, each.variation) for each in survivors(round.attempts)],
                folder=str(races_folder()),
            )
        except Refused as error:  # the money is spent
            races_driver.tell(tx, now, round, "completed", error.message)
            selection.finish(tx, race.id, reason=error.message)


def _lost(race: Race, round: Round) -> str | None:
    """Why attempts that are under way need not go on; None: they may."""
    passed = sum(attempt.can_win for attempt in round.attempts)
    if race.plan.enough is not None and passed >= race.plan.enough:
        return f"it had lost: {passed} others passed before it"
    spent = sum(attempt.cost_micros or 0 for attempt in round.attempts)
    if round.budget_micros is not None and spent >= round.budget_micros > 0:
        return "the money of its round is spent"
    return None


def _conversation(tx: Tx, race: Race, round: Round) -> str | None:
    """A fork of the conversation that had won before, where a race goes on with it."""
    if not race.plan.goes_on or round.base_attempt_id is None:
        return None
    before = ops.attempt_of(tx, round.base_attempt_id)
    if before.session_id is None:
        return None
    return conversations.fork(tx, before.session_id).id


def _is_gone(owner: str) -> bool:
    """Whether a driver of this machine is known to be dead."""
    words = owner.split(":", 5)
    if len(words) != 6 or not words[2].isdigit():
        return False
    known = Identity(words[5], words[4], int(words[2]), words[3])
    return process.look(known) in (Standing.GONE, Standing.REUSED, Standing.REBOOTED)
