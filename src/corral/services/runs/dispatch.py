"""Dispatch of queued runs: start a supervisor for each run that may start on this machine."""

import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from corral.adapters.processes import process
from corral.domain.runs import dispatch
from corral.domain.runs.model import Run
from corral.services.wait import wait_until

if TYPE_CHECKING:
    from corral.db.database import Database


def start_queued(database: "Database") -> Sequence[Run]:
    """Start queued runs on this machine while there are free slots; returns those that started.

    A run that cannot be started ends as failed and does not block the others. A run that may run on
    any machine is left to a machine that has its directory.
    """
    from corral.adapters.supervisor_process import StartingSupervisor, SupervisorLost

    host = process.host()
    started: list[Run] = []
    skipped: set[str] = set()  # ids of agents, projects and runs that cannot start here now
    while database.read(lambda tx: dispatch.can_claim(tx, host=host)) and (
        run := database.read(
            lambda tx: dispatch.find_next_queued(tx, host=host, skipped=sorted(skipped))
        )
    ):
        if (blocker := _find_blocker(database, run)) is not None:
            skipped.add(blocker)
            continue
        if not database.write(partial(dispatch.claim, id=run.id, host=host), repeatable=True):
            continue  # another process claimed the run or the slot first
        try:
            answer = StartingSupervisor().start(store=database.address, run=run.id)
        except SupervisorLost:
            reason = "its supervisor was lost before it began"
            database.write(partial(dispatch.defer, id=run.id, reason=reason), repeatable=True)
            continue
        except OSError:  # no process could be created, so no supervisor has the run
            database.write(partial(dispatch.release_claim, id=run.id), mode="one", repeatable=True)
            raise
        if "pid" in answer:
            started.append(run)
        elif "failed" in answer:
            from corral.services.alerts import start_delivery

            start_delivery(database)
        else:  # the run has to wait, or another supervisor has it; the next one may start
            skipped.add(run.id)
    return started


def start_queued_until_idle(database: "Database") -> None:
    """Start queued runs; retry while all slots are claimed, because a claimant may have crashed."""
    host = process.host()

    def is_waiting_for_claims() -> bool:
        return database.read(lambda tx: dispatch.is_blocked_by_claims(tx, host=host))

    def start() -> bool | None:
        # Checked before and after: a claim may end or begin while the queue is read.
        waited = is_waiting_for_claims()
        start_queued(database)
        return None if waited or is_waiting_for_claims() else True

    wait_until(database, start, timeout_ms=None)


def _find_blocker(database: "Database", run: Run) -> str | None:
    """Return the id of what keeps a run from starting on this machine now; None if it may start.

    The agent has reached its limit of concurrent runs, or the directory is not on this machine and
    the run may start on another one.
    """
    if run.agent_id is not None:
        agent_id = run.agent_id
        if not database.read(lambda tx: dispatch.has_agent_capacity(tx, agent_id)):
            return agent_id
    if run.host is None and not os.path.isdir(run.cwd):
        return run.project_id or run.id
    return None
