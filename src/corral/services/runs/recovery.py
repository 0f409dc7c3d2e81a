"""Finding out what became of runs whose keeper is gone.

A verdict is written only with the fence that was read, so two recoveries at once, or a recovery and
a keeper, never both decide. What cannot be proven stays as it is: a process of another machine is
judged by its lease alone, and one whose start cannot be read is left in peace.
"""

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from corral.adapters import exit_files, process, run_marks
from corral.adapters.process import Identity, Standing
from corral.config import run_folder
from corral.domain.runs import heartbeat, outcome
from corral.domain.runs.model import Found, Mode, Run, RunState
from corral.kernel.errors import Conflict, NotFound, StoreUnavailable
from corral.kernel.exit_status import End

if TYPE_CHECKING:
    from corral.api.runs import Runs

LEFTOVER_GRACE_MS = 2_000
PATIENCE = 5.0  # seconds in which a guard writes down what it has just seen


class Verdict(NamedTuple):
    verb: str
    reason: str


_WHEN_GONE = {
    Standing.GONE: Verdict("crash", "gone"),
    Standing.REUSED: Verdict("crash", "pid reused"),
    Standing.REBOOTED: Verdict("interrupt", "rebooted"),
}


class Recovery:
    """One look at what is said to run."""

    def __init__(self, runs: "Runs") -> None:
        self._runs = runs
        self._database = runs._database

    def run(self) -> list[Found]:
        """Look at every run that is said to have a process."""
        found = []
        after = ""
        while page := self._runs._active(after=after):
            found += [told for run in page if (told := self._look_safely(run)) is not None]
            after = page[-1].id
        self._finish_outputs()
        self._runs.start_queued()
        return found

    def _finish_outputs(self) -> None:
        """Outputs that nobody sealed, because their keeper died between the end and the seal."""
        from corral.api.outputs import Outputs

        for output in Outputs(self._database).unsealed(host=process.host(), limit=200).items:
            with suppress(NotFound):  # it was deleted meanwhile
                run = self._runs.get(output.id)
                if not run.is_live and not self._has_keeper(run):
                    self._runs.after_end(run)

    def _has_keeper(self, run: Run) -> bool:
        keeper = identity_of(run, run.keeper_pid, run.keeper_token)
        return keeper is not None and process.look(keeper) is Standing.ALIVE

    def _look_safely(self, run: Run) -> Found | None:
        """One run whose files make no sense must not keep the others from being looked at."""
        try:
            return self.look_at(run)
        except StoreUnavailable:
            raise
        except Exception as error:
            return Found(run.id, run.state, run.state, f"cannot be judged: {type(error).__name__}")

    def look_at(self, run: Run) -> Found | None:
        """What became of one run; None when it is as the store says, or cannot be told."""
        if not run.is_live or run.state is RunState.QUEUED or run.host is None:
            return None
        with suppress(Conflict):  # somebody else has decided meanwhile
            if run.host != process.host():
                return self._judge_by_lease(run)
            return self._judge_by_process(run)
        return None

    def see_to_the_end(self, run: Run, grace_ms: int | None) -> None:
        """Tell the keeper of a run that is being stopped; where there is none, find out."""
        from corral.adapters import control_socket

        if run.host != process.host():
            return  # its keeper hears of it with its next heartbeat
        try:
            control_socket.ask(run_folder(run.id), op="stop", grace_ms=grace_ms)
        except OSError:
            self.look_at(run)

    def _judge_by_lease(self, run: Run) -> Found | None:
        if run.lease_until is None or run.lease_until > self._database.clock.now():
            return None
        launch = self._runs.launch_of(run.id)
        if run.attempts <= launch.restarts and run.state is not RunState.STOPPING:
            now = self._database.write(
                lambda tx: heartbeat.requeue(tx, run, reason="lease expired")
            )
        else:
            now = self._give_up(run, Verdict("interrupt", "lease expired"))
        return _found(run, now)

    def _judge_by_process(self, run: Run) -> Found | None:
        agent = identity_of(run, run.pid, run.start_token)
        standing = process.look(agent) if agent is not None else Standing.GONE
        if run.mode is not Mode.RECORDED:
            keeper = identity_of(run, run.keeper_pid, run.keeper_token)
            if keeper is not None and process.look(keeper) in (Standing.ALIVE, Standing.UNKNOWN):
                return None
        if standing is Standing.UNKNOWN:
            return None
        if standing is Standing.ALIVE:
            return self._give_new_keeper(run) if run.mode is not Mode.RECORDED else None
        return self._bury(run, standing)

    def _bury(self, run: Run, standing: Standing) -> Found | None:
        """The agent is gone: say how it ended where that was written down, else only that."""
        gone = _WHEN_GONE[standing]
        if run.mode is Mode.RECORDED:
            return _found(run, self._give_up(run, gone))
        is_plain = run.provider == "plain" and self._runs.launch_of(run.id).sandbox is None
        if not is_plain and self._start_keeper(run, verdict=gone):
            # Its last turns and charges are in its stream, and its sandboxed commits in a private
            # repository: only a supervisor reads them.
            return _found(run, self._wait_for_end(run))
        end = exit_files.wait_for(run_folder(run.id), run.attempts, run.pid or 0, PATIENCE)
        if end.reason is not None:
            gone = gone._replace(reason=end.reason)
        quick = outcome.quick_failures(run.quick_failures, end, self._lasted(run))
        if self._goes_on(run, end, quick):
            return _found(run, self._let_go_on(run, end, gone.reason, quick))
        # Take the run first, so that no other process starts it again. End its processes before the
        # store records its end.
        taken = self._take_over(run)
        mark = f"CORRAL_RUN={run.id}"
        process.end_family(None, mark, grace_ms=LEFTOVER_GRACE_MS)
        survivors = tuple(survivor.pid for survivor in process.family(None, mark))
        unsure = not end.known and not run_marks.is_supported()
        if end.known:
            now = self._runs.end(taken, end._replace(survivors=survivors))
        else:
            now = self._runs.give_up(
                taken, verb=gone.verb, reason=gone.reason, survivors=survivors, unsure=unsure
            )
        self._runs.after_end(now)
        return _found(run, now)

    def _goes_on(self, run: Run, end: End, quick: int) -> bool:
        """As its keeper would have decided."""
        return outcome.goes_on(
            end,
            stop_reason=run.stop_reason,
            attempts=run.attempts,
            restarts=self._runs.launch_of(run.id).restarts,
            quick=quick,
        )

    def _lasted(self, run: Run) -> int:
        """How long the attempt went on at most, in milliseconds."""
        agent = identity_of(run, run.pid, run.start_token)
        age = process.age_ms(agent) if agent is not None else None
        if age is None:
            return outcome.QUICK_MS  # not known to be quick
        return age - exit_files.age_ms(run_folder(run.id), run.attempts, run.pid or 0)

    def _let_go_on(self, run: Run, end: End, gone: str, quick: int) -> Run:
        """Put it back in line for its next attempt.

        It is taken first: of two recoveries one goes on, and only then is whoever is left of the
        last attempt ended, who could not be told from the next one's by the run's mark.
        """
        taken = self._take_over(run)
        process.end_family(None, f"CORRAL_RUN={run.id}", grace_ms=LEFTOVER_GRACE_MS)
        reason = outcome.reason_of(end, None) if end.known else gone
        now = self._database.write(
            lambda tx: heartbeat.try_again(tx, taken, end, reason=reason, quick_failures=quick)
        )
        self._runs.start_queued()
        return now

    def _take_over(self, run: Run) -> Run:
        """Take over a run without a supervisor; raises Conflict if another process was first."""
        me = process.identify(os.getpid())
        assert me is not None
        return self._runs.take_over(
            run,
            owner=f"recovery:{me.host}:{me.pid}",
            keeper_pid=me.pid,
            keeper_token=me.start_token,
        )

    def _wait_for_end(self, run: Run) -> Run:
        """Wait until its new keeper has said how it ended, or goes on with the next attempt."""
        deadline = time.monotonic() + PATIENCE
        while (now := self._runs.get(run.id)).is_live and time.monotonic() < deadline:
            if now.attempts != run.attempts:
                break
            time.sleep(0.02)
        return now

    def _give_up(self, run: Run, verdict: Verdict) -> Run:
        return self._runs.give_up(run, verb=verdict.verb, reason=verdict.reason)

    def _give_new_keeper(self, run: Run) -> Found | None:
        if not self._start_keeper(run):
            return None
        return Found(run.id, run.state, run.state, "its keeper was gone; a new one has it")

    def _start_keeper(self, run: Run, verdict: Verdict | None = None) -> bool:
        from corral.adapters.supervisor_process import KeeperLost, StartingKeeper

        with suppress(KeeperLost):
            answer = StartingKeeper().keep(
                store=self._database.address,
                run=run.id,
                adopt=True,
                fence=run.fence,
                # Plain, as all that is told to a keeper has to be.
                verdict=None if verdict is None else tuple(verdict),
            )
            return "pid" in answer
        return False


def identity_of(run: Run, pid: int | None, token: str | None) -> Identity | None:
    """One of a run's processes, as it was written down; None while it is not known."""
    if run.host is None or run.boot_id is None or pid is None or token is None:
        return None
    return Identity(run.host, run.boot_id, pid, token)


def _found(was: Run, now: Run) -> Found:
    return Found(was.id, was.state, now.state, now.reason or "")
