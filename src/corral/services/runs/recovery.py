"""Recovery: find out what happened to runs whose supervisor is gone.

A verdict is written only with the fencing token that was read, so two concurrent recoveries, or a
recovery and a supervisor, never both decide. A state that cannot be proven is not changed: a
process on another machine is judged by its lease alone, and a process whose start time is not
readable is left alone.
"""

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from corral.adapters import exit_files, process, process_marks
from corral.adapters.process import Liveness, ProcessIdentity
from corral.config import run_folder
from corral.domain.outputs import ops as outputs
from corral.domain.runs import ops, outcome, supervision
from corral.domain.runs.model import Launch, RecoveryResult, Run, RunMode, RunState
from corral.kernel.errors import Conflict, NotFound, StoreUnavailable
from corral.kernel.exit_status import ExitStatus
from corral.services.runs import dispatch
from corral.services.runs.cleanup import clean_up

if TYPE_CHECKING:
    from corral.db.database import Database

LEFTOVER_GRACE_MS = 2_000
EXIT_FILE_SECONDS = 5.0  # in which the guard writes the exit status that it has just seen


def get_run(database: "Database", id: str) -> Run:
    """Return a run; raises NotFound."""
    return database.read(lambda tx: ops.get(tx, id))


class Verdict(NamedTuple):
    """The transition that recovery applies to a run, with its reason."""

    verb: str
    reason: str


_VERDICTS = {
    Liveness.GONE: Verdict("crash", "gone"),
    Liveness.REUSED: Verdict("crash", "pid reused"),
    Liveness.REBOOTED: Verdict("interrupt", "rebooted"),
}


class Recovery:
    """One check of the runs that the store records as running."""

    def __init__(self, database: "Database") -> None:
        self._database = database

    def recover_all(self) -> list[RecoveryResult]:
        """Check every run that the store records as running; returns the runs that changed.

        Also seals outputs of ended runs whose supervisor died before it did so, and starts queued
        runs.
        """
        changed: list[RecoveryResult] = []
        after = ""
        while page := self._database.read(partial(ops.list_active, after=after)):
            changed += [result for run in page if (result := self._check_safely(run)) is not None]
            after = page[-1].id
        self._seal_outputs()
        dispatch.start_queued(self._database)
        return changed

    def _seal_outputs(self) -> None:
        page = self._database.read(
            lambda tx: outputs.list_unsealed(tx, host=process.host(), limit=200), mode="one"
        )
        for output in page.items:
            with suppress(NotFound):  # deleted since
                run = get_run(self._database, output.id)
                if not run.is_live and not self._has_supervisor(run):
                    clean_up(self._database, run)

    def _has_supervisor(self, run: Run) -> bool:
        supervisor = identity_of(run, run.supervisor_pid, run.supervisor_token)
        return supervisor is not None and process.check(supervisor) is Liveness.ALIVE

    def _check_safely(self, run: Run) -> RecoveryResult | None:
        """Check a run; an unexpected error becomes its result, so that the others are checked."""
        try:
            return self.check_run(run)
        except StoreUnavailable:
            raise
        except Exception as error:
            return RecoveryResult(
                run.id, run.state, run.state, f"cannot be judged: {type(error).__name__}"
            )

    def check_run(self, run: Run) -> RecoveryResult | None:
        """Return what happened to one run; None when its state is right or cannot be proven."""
        if not run.is_live or run.state is RunState.QUEUED or run.host is None:
            return None
        with suppress(Conflict):  # another process has decided meanwhile
            if run.host != process.host():
                return self._judge_by_lease(run)
            return self._judge_by_process(run)
        return None

    def request_stop(self, run: Run, grace_period_ms: int | None) -> None:
        """Notify the supervisor of a run that is being stopped; if there is none, check the run."""
        from corral.adapters import control_socket

        if run.host != process.host():
            return  # its supervisor learns it from its next heartbeat
        try:
            control_socket.send_request(
                run_folder(run.id), op="stop", grace_period_ms=grace_period_ms
            )
        except OSError:
            self.check_run(run)

    def _judge_by_lease(self, run: Run) -> RecoveryResult | None:
        if run.lease_until is None or run.lease_until > self._database.clock.now():
            return None
        if run.attempts <= self._launch(run).max_restarts and run.state is not RunState.STOPPING:
            current = self._database.write(
                lambda tx: supervision.requeue(tx, run, reason="lease expired")
            )
        else:
            current = self._give_up(run, Verdict("interrupt", "lease expired"))
        return _result(run, current)

    def _judge_by_process(self, run: Run) -> RecoveryResult | None:
        agent = identity_of(run, run.pid, run.start_token)
        standing = process.check(agent) if agent is not None else Liveness.GONE
        if run.mode is not RunMode.RECORDED:
            supervisor = identity_of(run, run.supervisor_pid, run.supervisor_token)
            if supervisor is not None and process.check(supervisor) in (
                Liveness.ALIVE,
                Liveness.UNKNOWN,
            ):
                return None
        if standing is Liveness.UNKNOWN:
            return None
        if standing is Liveness.ALIVE:
            return self._replace_supervisor(run) if run.mode is not RunMode.RECORDED else None
        return self._end_dead(run, standing)

    def _end_dead(self, run: Run, standing: Liveness) -> RecoveryResult | None:
        """Record the end of a run whose agent is gone, with its exit status if that was written."""
        verdict = _VERDICTS[standing]
        if run.mode is RunMode.RECORDED:
            return _result(run, self._give_up(run, verdict))
        is_plain = run.provider == "plain" and self._launch(run).sandbox is None
        if not is_plain and self._start_supervisor(run, verdict=verdict):
            # Its last turns and charges are in its stream, and its sandboxed commits in a private
            # repository: only a supervisor reads them.
            return _result(run, self._wait_for_end(run))
        end = exit_files.wait_for_exit(
            run_folder(run.id), run.attempts, run.pid or 0, EXIT_FILE_SECONDS
        )
        if end.reason is not None:
            verdict = verdict._replace(reason=end.reason)
        quick = outcome.count_quick_failures(run.quick_failures, end, self._duration_ms(run))
        if self._is_restarted(run, end, quick):
            return _result(run, self._requeue(run, end, verdict.reason, quick))
        # Take the run first, so that no other process starts it again. End its processes before the
        # store records its end.
        taken = self._take_over(run)
        mark = process_marks.run_mark(run.id)
        process.terminate_run_processes(None, mark, grace_period_ms=LEFTOVER_GRACE_MS)
        survivors = tuple(survivor.pid for survivor in process.find_run_processes(None, mark))
        may_have_survivors = not end.known and not process_marks.is_supported()
        if end.known:
            current = self._database.write(
                lambda tx: ops.record_end(tx, taken, end._replace(survivors=survivors)),
                repeatable=True,
            )
        else:
            current = self._database.write(
                lambda tx: ops.end_orphaned(
                    tx,
                    taken,
                    verb=verdict.verb,
                    reason=verdict.reason,
                    survivors=survivors,
                    may_have_survivors=may_have_survivors,
                ),
                repeatable=True,
            )
        clean_up(self._database, current)
        return _result(run, current)

    def _is_restarted(self, run: Run, end: ExitStatus, quick: int) -> bool:
        """Decide as the supervisor would have decided."""
        return outcome.should_restart(
            end,
            stop_reason=run.stop_reason,
            attempts=run.attempts,
            max_restarts=self._launch(run).max_restarts,
            quick_failures=quick,
        )

    def _duration_ms(self, run: Run) -> int:
        """Return the longest time that the attempt can have lasted, in milliseconds."""
        agent = identity_of(run, run.pid, run.start_token)
        age = process.age_ms(agent) if agent is not None else None
        if age is None:
            return outcome.QUICK_FAILURE_MS  # unknown, so it does not count as a quick failure
        return age - exit_files.age_ms(run_folder(run.id), run.attempts, run.pid or 0)

    def _requeue(self, run: Run, end: ExitStatus, reason: str, quick: int) -> Run:
        """Queue a run for its next attempt.

        The run is taken over first, so that only one of two recoveries continues. Only then are
        leftover processes of the last attempt killed: they carry the same run mark as those of the
        next attempt.
        """
        taken = self._take_over(run)
        process.terminate_run_processes(
            None, process_marks.run_mark(run.id), grace_period_ms=LEFTOVER_GRACE_MS
        )
        cause = outcome.end_reason(end, None) if end.known else reason
        queued = self._database.write(
            lambda tx: supervision.retry(tx, taken, end, reason=cause, quick_failures=quick)
        )
        dispatch.start_queued(self._database)
        return queued

    def _take_over(self, run: Run) -> Run:
        """Take over a run without a supervisor; raises Conflict if another process was first."""
        me = process.identify_self()
        return self._database.write(
            lambda tx: supervision.take_over(
                tx,
                run,
                owner=me.as_owner("recovery"),
                supervisor_pid=me.pid,
                supervisor_token=me.start_token,
            )
        )

    def _wait_for_end(self, run: Run) -> Run:
        """Wait until the new supervisor has recorded the end or started the next attempt."""
        deadline = time.monotonic() + EXIT_FILE_SECONDS
        while (current := get_run(self._database, run.id)).is_live and time.monotonic() < deadline:
            if current.attempts != run.attempts:
                break
            time.sleep(0.02)
        return current

    def _give_up(self, run: Run, verdict: Verdict) -> Run:
        return self._database.write(
            lambda tx: ops.end_orphaned(tx, run, verb=verdict.verb, reason=verdict.reason),
            repeatable=True,
        )

    def _launch(self, run: Run) -> Launch:
        return self._database.read(lambda tx: ops.get_launch(tx, run.id))

    def _replace_supervisor(self, run: Run) -> RecoveryResult | None:
        if not self._start_supervisor(run):
            return None
        reason = "its supervisor was gone; a new one took over"
        return RecoveryResult(run.id, run.state, run.state, reason)

    def _start_supervisor(self, run: Run, verdict: Verdict | None = None) -> bool:
        from corral.adapters.supervisor_process import StartingSupervisor, SupervisorLost

        with suppress(SupervisorLost):
            answer = StartingSupervisor().start(
                store=self._database.address,
                run=run.id,
                adopt=True,
                fence=run.fence,
                # A plain tuple: the request to the supervisor is serialized.
                verdict=None if verdict is None else tuple(verdict),
            )
            return "pid" in answer
        return False


def identity_of(run: Run, pid: int | None, token: str | None) -> ProcessIdentity | None:
    """Return the recorded identity of one of a run's processes; None while it is unknown."""
    if run.host is None or run.boot_id is None or pid is None or token is None:
        return None
    return ProcessIdentity(run.host, run.boot_id, pid, token)


def _result(before: Run, after: Run) -> RecoveryResult:
    return RecoveryResult(before.id, before.state, after.state, after.reason or "")
