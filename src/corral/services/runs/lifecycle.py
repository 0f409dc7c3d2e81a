"""Workflows of one run: refresh its state, stop it, wait for it, record or delete it."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from corral.adapters.processes import process
from corral.db.tx import Tx
from corral.db.types import MAX_LISTEN_SECONDS
from corral.domain.projects import ops as projects
from corral.domain.runs import ops, supervision
from corral.domain.runs.model import Run, RunState
from corral.kernel.clock import DAY
from corral.kernel.errors import Conflict, Invalid, NotFound, NotYet
from corral.kernel.validation import check_int
from corral.services.runs import dispatch, recovery
from corral.services.runs.outputs import remove_deleted_files
from corral.services.runs.queries import get_run
from corral.services.wait import wait_until

if TYPE_CHECKING:
    from corral.db.database import Database


def refresh(database: "Database", run: Run) -> Run:
    """Return the current state of a run, after checking that its supervisor is alive."""
    current = get_run(database, run.id)
    if current.is_live and recovery.check_run(database, current) is not None:
        current = get_run(database, run.id)
    return current


def heartbeat(
    tx: Tx,
    run: Run,
    *,
    output_bytes: int,
    cpu_ms: int | None = None,
    peak_bytes: int | None = None,
    lease_ms: int = supervision.LEASE_MS,
) -> Run:
    """Renew the lease of a supervisor, with the locks of its run and the tasks claimed in it.

    The returned run shows whether it is to be stopped. Raises Held when another supervisor took the
    run over, or recovery ended it.
    """
    from corral.domain.locks import heartbeat as locks
    from corral.domain.tasks import heartbeat as tasks

    renewed = supervision.heartbeat(
        tx,
        run,
        output_bytes=output_bytes,
        cpu_ms=cpu_ms,
        peak_bytes=peak_bytes,
        lease_ms=lease_ms,
    )
    tasks.renew_for_run(tx, run.id)
    locks.renew_locks_of_run(tx, run.id)
    return renewed


def record_process(
    database: "Database",
    *,
    pid: int,
    project: str | None = None,
    command: str | None = None,
    args: Sequence[str] = (),
    cwd: str | None = None,
) -> Run:
    """Record a process that Corral did not start; its identity is read now. Raises NotFound."""
    identity = process.identify(pid) if isinstance(pid, int) and pid > 1 else None
    if identity is None:
        raise NotFound(
            f"No process has the pid {pid} on this machine. List processes with `ps`.", pid=pid
        )
    command_line = process.read_command_line(pid)
    project_id = database.read(lambda tx: projects.get(tx, project).id) if project else None
    return database.write(
        lambda tx: ops.record(
            tx,
            pid=pid,
            host=identity.host,
            boot_id=identity.boot_id,
            start_token=identity.start_token,
            command=command or (command_line[0] if command_line else "unknown"),
            args=args or command_line[1:],
            cwd=cwd or process.read_cwd(pid) or "/",
            project_id=project_id,
        )
    )


def stop_run(
    database: "Database", id: str, *, reason: str = "stopped", grace_period_ms: int | None = None
) -> Run:
    """Ask a run to stop and return at once. A queued run is cancelled.

    Its supervisor signals the whole process tree: SIGTERM, then SIGKILL after the grace period.
    """
    if (
        grace_period_ms is not None
        and not 0 <= check_int(grace_period_ms, "grace_period_ms") <= DAY
    ):
        raise Invalid(f"The grace period is at most one day, not {grace_period_ms:,} ms.")
    run = database.write(lambda tx: ops.request_stop(tx, id, reason=reason), repeatable=True)
    if run.is_live:
        recovery.notify_supervisor_of_stop(database, run, grace_period_ms)
    return run


def wait_for_run(
    database: "Database", id: str, *, timeout_ms: int | None = None, upkeep: bool = True
) -> Run:
    """Wait until a run has ended; raises NotYet after `timeout_ms`.

    With `upkeep`, a dead supervisor is detected and queued runs are started meanwhile. Without it,
    nothing is written.
    """
    checked_at = time.monotonic()
    latest: Run | None = None

    def read_ended() -> Run | None:
        nonlocal latest, checked_at
        if upkeep and latest is not None and time.monotonic() - checked_at > MAX_LISTEN_SECONDS:
            # The supervisor may have died, or the process that should start the run.
            recovery.check_run(database, latest)
            if latest.state is RunState.QUEUED and latest.due_at <= database.clock.now():
                dispatch.start_queued(database)
            checked_at = time.monotonic()
        latest = get_run(database, id)
        return None if latest.is_live else latest

    ended = wait_until(database, read_ended, timeout_ms=timeout_ms)
    if ended is None:
        assert latest is not None
        raise NotYet(f"{latest.id} is still {latest.state}.", id=latest.id, state=latest.state)
    return ended


def wait_for_start(
    database: "Database", id: str, *, given_up: Callable[[], bool] | None = None
) -> Run:
    """Wait until a supervisor has taken a queued run, or `given_up()` is true."""

    def start() -> Run | None:
        run = get_run(database, id)
        if run.state is not RunState.QUEUED or (given_up is not None and given_up()):
            return run
        dispatch.start_queued(database)
        return None

    started = wait_until(database, start, timeout_ms=None)
    assert started is not None, "the wait has no timeout"
    return started


# -- deleting -------------------------------------------------------------------------------------


def delete_run(database: "Database", id: str) -> Run:
    """Delete a finished run with its output and files; raises Conflict while it is live."""
    from corral.services.store import deletion

    run = database.write(lambda tx: deletion.delete_run(tx, id))
    remove_deleted_files(database)
    return run


def delete_runs_of_project(database: "Database", project: str) -> int:
    """Delete all runs of a project; returns their number. Raises Conflict while one is live."""
    from corral.services.store import deletion

    project_id = database.read(lambda tx: projects.get(tx, project).id)
    live = database.read(lambda tx: ops.list_runs(tx, project=project_id, live=True, limit=1)).items
    if live:
        raise Conflict(
            f"{live[0].id} is {live[0].state}. Stop it first with `corral stop {live[0].id}`.",
            id=live[0].id,
            state=live[0].state,
            reason="run_active",
        )
    deleted = 0
    while page := database.read(lambda tx: ops.list_runs(tx, project=project_id, limit=200)).items:
        for id in [run.id for run in page]:
            database.write(partial(deletion.delete_run, id=id))
            deleted += 1
    remove_deleted_files(database)
    return deleted
