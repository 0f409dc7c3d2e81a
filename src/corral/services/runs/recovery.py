"""Recovery: crash detection for runs whose supervisor is gone.

A diagnosis is written only with the fencing token that was read, so two concurrent recoveries, or a
recovery and a supervisor, never both decide. A state that cannot be proven is not changed: the
state of a process on another machine follows from its lease alone, and a process whose start time
is not readable is left alone.
"""

import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from corral.adapters.processes import exit_files, process, process_marks
from corral.adapters.processes.process import Liveness
from corral.config import run_folder
from corral.domain.outputs import ops as outputs
from corral.domain.runs import ops, outcome, processes, supervision
from corral.domain.runs.model import (
    ACTIVE,
    Diagnosis,
    Launch,
    RecoveryResult,
    Run,
    RunMode,
    RunState,
)
from corral.kernel.errors import Conflict, NotFound, StoreUnavailable
from corral.kernel.exit_status import ExitStatus
from corral.services.runs import dispatch
from corral.services.runs.cleanup import clean_up
from corral.services.runs.queries import get_run

if TYPE_CHECKING:
    from corral.db.database import Database

PAGE_SIZE = 200
EXIT_FILE_SECONDS = 5.0  # in which the guard writes the exit status that it has just seen


_DIAGNOSES = {
    Liveness.GONE: Diagnosis("crash", "gone"),
    Liveness.REUSED: Diagnosis("crash", "pid reused"),
    Liveness.REBOOTED: Diagnosis("interrupt", "rebooted"),
}


def recover_all(database: "Database") -> list[RecoveryResult]:
    """Check every run that the store records as running; returns the runs that changed.

    Also cleans up ended runs whose supervisor died before it did so, and starts queued runs.
    """
    changed: list[RecoveryResult] = []
    after = ""
    while page := database.read(partial(ops.list_active, after=after)):
        results = (_check_safely(database, run) for run in page)
        changed += [result for result in results if result is not None]
        after = page[-1].id
    _clean_up_ended_runs(database)
    dispatch.start_queued(database)
    return changed


def _clean_up_ended_runs(database: "Database") -> None:
    """Clean up the ended runs of this host that still have an open output."""
    after: str | None = None
    while True:
        list_page = partial(outputs.list_unsealed, host=process.host(), limit=PAGE_SIZE)
        page = database.read(partial(list_page, after=after), mode="one")
        for output in page.items:
            with suppress(NotFound):  # deleted since
                run = get_run(database, output.id)
                if not run.is_live and _check_supervisor(run) is not Liveness.ALIVE:
                    clean_up(database, run)
        after = page.next
        if after is None:
            return


def _check_safely(database: "Database", run: Run) -> RecoveryResult | None:
    """Check a run; an unexpected error becomes its result, so that the others are checked."""
    try:
        return check_run(database, run)
    except StoreUnavailable:
        raise
    except Exception as error:
        reason = f"the run cannot be checked: {type(error).__name__}"
        return RecoveryResult(run.id, run.state, run.state, reason)


def check_run(database: "Database", run: Run) -> RecoveryResult | None:
    """Return what happened to one run; None when its state is right or cannot be proven."""
    if not run.is_live or run.state is RunState.QUEUED or run.host is None:
        return None
    with suppress(Conflict):  # another process has decided meanwhile
        if run.host != process.host():
            return _diagnose_by_lease(database, run)
        return _diagnose_by_process(database, run)
    return None


def notify_supervisor_of_stop(database: "Database", run: Run, grace_period_ms: int | None) -> None:
    """Notify the supervisor of a run that is being stopped; if there is none, check the run."""
    from corral.adapters import control_socket

    if run.host != process.host():
        return  # its supervisor sees the request at its next heartbeat
    try:
        control_socket.send_request(run_folder(run.id), op="stop", grace_period_ms=grace_period_ms)
    except OSError:
        check_run(database, run)


# -- diagnosis -----------------------------------------------------------------------------------


def _diagnose_by_lease(database: "Database", run: Run) -> RecoveryResult | None:
    if run.lease_until is None or run.lease_until > database.clock.now():
        return None
    max_restarts = _get_launch(database, run).max_restarts
    if run.attempts <= max_restarts and run.state is not RunState.STOPPING:
        current = database.write(lambda tx: supervision.requeue(tx, run, reason="lease expired"))
    else:
        current = _end_unseen(database, run, Diagnosis("interrupt", "lease expired"))
    return _make_result(run, current)


def _diagnose_by_process(database: "Database", run: Run) -> RecoveryResult | None:
    agent = processes.get_identity(run, run.pid, run.start_token)
    liveness = process.check(agent) if agent is not None else Liveness.GONE
    is_recorded = run.mode is RunMode.RECORDED
    if not is_recorded and _has_supervisor(run):
        return None
    if liveness is Liveness.UNKNOWN:
        return None
    if liveness is Liveness.ALIVE:
        return None if is_recorded else _replace_supervisor(database, run)
    diagnosis = _DIAGNOSES[liveness]
    if is_recorded:
        return _make_result(run, _end_unseen(database, run, diagnosis))
    return _make_result(run, _end_after_agent_gone(database, run, diagnosis))


def _check_supervisor(run: Run) -> Liveness:
    supervisor = processes.get_identity(run, run.supervisor_pid, run.supervisor_token)
    return process.check(supervisor) if supervisor is not None else Liveness.GONE


def _has_supervisor(run: Run) -> bool:
    """Whether the recorded supervisor of a run is alive, or may be."""
    return _check_supervisor(run) in (Liveness.ALIVE, Liveness.UNKNOWN)


# -- the end of a run whose agent is gone --------------------------------------------------------


def _end_after_agent_gone(database: "Database", run: Run, diagnosis: Diagnosis) -> Run:
    """Record the end of a run whose agent is gone, with its exit status if that was written."""
    current = _delegate_end_to_supervisor(database, run, diagnosis)
    if not _is_same_attempt(run, current) or _has_supervisor(current):
        return current
    run = current
    exit_status = exit_files.wait_for_exit(
        run_folder(run.id), run.attempts, run.pid or 0, EXIT_FILE_SECONDS
    )
    if exit_status.reason is not None:
        diagnosis = diagnosis._replace(reason=exit_status.reason)
    restarted = _requeue_if_restartable(database, run, exit_status, diagnosis.reason)
    if restarted is not None:
        return restarted
    return _kill_leftovers_and_end(database, run, exit_status, diagnosis)


def _delegate_end_to_supervisor(database: "Database", run: Run, diagnosis: Diagnosis) -> Run:
    """Let a new supervisor end the run; return the run when it has ended, or has not in time.

    The last turns and charges of an agent are in its stream, and its sandboxed commits in a private
    repository: only a supervisor reads them. A plain command has neither, and needs no supervisor.
    """
    is_plain = run.provider == "plain" and _get_launch(database, run).sandbox is None
    if is_plain or not _start_supervisor(database, run, diagnosis=diagnosis):
        return run
    deadline = time.monotonic() + EXIT_FILE_SECONDS
    current = get_run(database, run.id)
    while True:
        # Checked before the run is read: a supervisor records the end of its run and exits.
        has_supervisor = _has_supervisor(current)
        current = get_run(database, run.id)
        is_ending = has_supervisor and _is_same_attempt(run, current)
        if not is_ending or time.monotonic() >= deadline:
            return current
        time.sleep(0.02)


def _is_same_attempt(before: Run, after: Run) -> bool:
    """Whether a run is still in the same attempt: it has not ended, and was not queued again."""
    return after.state in ACTIVE and after.attempts == before.attempts


def _requeue_if_restartable(
    database: "Database", run: Run, exit_status: ExitStatus, reason: str
) -> Run | None:
    """Queue a run for its next attempt if its supervisor would have done so, else return None.

    The run is taken over first, so that only one of two recoveries continues. Only then are
    leftover processes of the last attempt killed: they carry the same run mark as those of the next
    attempt.
    """
    duration_ms = measure_attempt_ms(run)
    if duration_ms is None:
        duration_ms = outcome.QUICK_FAILURE_MS  # unknown, so it does not count as a quick failure
    quick = outcome.count_quick_failures(run.quick_failures, exit_status, duration_ms)
    if not outcome.should_restart(
        exit_status,
        stop_reason=run.stop_reason,
        attempts=run.attempts,
        max_restarts=_get_launch(database, run).max_restarts,
        quick_failures=quick,
    ):
        return None
    taken = _take_over(database, run)
    process.terminate_run_processes(
        None, _mark_of(run), grace_period_ms=supervision.LEFTOVER_GRACE_MS
    )
    cause = outcome.end_reason(exit_status, None) if exit_status.is_known else reason
    queued = database.write(
        lambda tx: supervision.retry(tx, taken, exit_status, reason=cause, quick_failures=quick)
    )
    dispatch.start_queued(database)
    return queued


def measure_attempt_ms(run: Run) -> int | None:
    """Return the longest time that the current attempt can have lasted; None if it is unknown."""
    agent = processes.get_identity(run, run.pid, run.start_token)
    age = process.age_ms(agent) if agent is not None else None
    if age is None:
        return None
    return age - exit_files.age_ms(run_folder(run.id), run.attempts, run.pid or 0)


def _kill_leftovers_and_end(
    database: "Database", run: Run, exit_status: ExitStatus, diagnosis: Diagnosis
) -> Run:
    """Kill the leftover processes of a run, record its end, and clean up.

    The run is taken over first, so that no other process starts it again. Its processes are killed
    before the store records its end.
    """
    taken = _take_over(database, run)
    mark = _mark_of(run)
    process.terminate_run_processes(None, mark, grace_period_ms=supervision.LEFTOVER_GRACE_MS)
    survivors = tuple(survivor.pid for survivor in process.find_run_processes(None, mark))
    if exit_status.is_known:
        known_status = exit_status._replace(survivors=survivors)
        current = database.write(
            lambda tx: ops.record_end(tx, taken, known_status), repeatable=True
        )
    else:
        current = database.write(
            lambda tx: ops.end_orphaned(
                tx,
                taken,
                verb=diagnosis.verb,
                reason=diagnosis.reason,
                survivors=survivors,
                may_have_survivors=(
                    diagnosis.may_leave_processes and not process_marks.is_supported()
                ),
            ),
            repeatable=True,
        )
    clean_up(database, current)
    return current


def _end_unseen(database: "Database", run: Run, diagnosis: Diagnosis) -> Run:
    """Record the end of a run whose processes cannot be inspected."""
    return database.write(
        lambda tx: ops.end_orphaned(tx, run, verb=diagnosis.verb, reason=diagnosis.reason),
        repeatable=True,
    )


def _take_over(database: "Database", run: Run) -> Run:
    """Take over a run without a supervisor; raises Conflict if another process was first."""
    me = process.identify_self()
    return database.write(
        lambda tx: supervision.take_over(
            tx,
            run,
            owner=me.as_owner("recovery"),
            supervisor_pid=me.pid,
            supervisor_token=me.start_token,
        )
    )


def _mark_of(run: Run) -> str:
    """Return the mark that all processes of a run carry."""
    return process_marks.run_mark(run.id)


def _get_launch(database: "Database", run: Run) -> Launch:
    return database.read(lambda tx: ops.get_launch(tx, run.id))


# -- supervisors ---------------------------------------------------------------------------------


def _replace_supervisor(database: "Database", run: Run) -> RecoveryResult | None:
    if not _start_supervisor(database, run):
        return None
    reason = "its supervisor was gone; a new one took over"
    return RecoveryResult(run.id, run.state, run.state, reason)


def _start_supervisor(database: "Database", run: Run, diagnosis: Diagnosis | None = None) -> bool:
    """Start a supervisor that adopts the run; returns whether it has the run."""
    from corral.adapters.supervisor_process import StartingSupervisor, SupervisorLost

    with suppress(SupervisorLost):
        answer = StartingSupervisor().start(
            store=database.address,
            run=run.id,
            adopt=True,
            fence=run.fence,
            # A plain tuple: the request to the supervisor is serialized.
            diagnosis=None if diagnosis is None else tuple(diagnosis),
        )
        return "pid" in answer
    return False


def _make_result(before: Run, after: Run) -> RecoveryResult:
    return RecoveryResult(before.id, before.state, after.state, after.reason or "")
