"""Runs without processes: inserted into the table or moved along by their verbs."""

from typing import Any

import pytest

from corral.adapters import supervisor_process
from corral.api import Corral
from corral.db.statement import Statement
from corral.db.tx import Tx
from corral.domain.runs import dispatch, ops
from corral.domain.runs.model import Run
from corral.domain.runs.spec import RunSpec, SupervisedProcess
from corral.kernel.exit_status import ExitStatus
from corral.kernel.ids import new_id
from tests.support.store import read

PLAIN: dict[str, Any] = {
    "provider": "claude",
    "mode": "pipe",
    "command": "claude",
    "args": "[]",
    "cwd": "/srv/here",
    "fence": 1,
    "attempts": 1,
    "quick_failures": 0,
    "output_bytes": 0,
}


def insert_run(tx: Tx, state: str, at: int, **columns: Any) -> str:
    """Insert a run in any state, requested and started at a time; return its id."""
    is_live = state in ("queued", "starting", "running", "stopping")
    values = {
        **PLAIN,
        "id": new_id("run", at),
        "state": state,
        "due_at": at,
        "created_at": at,
        "started_at": None if state == "queued" else at,
        "ended_at": None if is_live else at,
        **columns,
    }
    names, places = ", ".join(values), ", ".join(f":{name}" for name in values)
    tx.run(Statement(f"INSERT INTO runs ({names}) VALUES ({places})"), **values)
    return str(values["id"])


def add_run(store: Corral, state: str, at: int | None = None, **columns: Any) -> str:
    with store.transaction() as tx:
        return insert_run(tx, state, store.now() if at is None else at, **columns)


def add_launch(store: Corral, run: str) -> None:
    """Add the launch record of an inserted run."""
    with store.transaction() as tx:
        tx.run(
            Statement(
                "INSERT INTO launches (run_id, prompt, env, secrets, approvals, labels,"
                " raw, interactive, grace_period_ms, max_restarts, max_output_bytes, environment)"
                " VALUES (:id, 'Please do it.', '{}', '{}', '[]', '[]', 0, 0, 10000, 0,"
                " 1000000, '{}')"
            ),
            id=run,
        )


# -- runs in a regular state, without a process ------------------------------------------------

NO_FOLDER = "/srv/runs"
ELSEWHERE = "another-machine"  # no recovery looks for processes of this node here


def run_spec(**fields: Any) -> RunSpec:
    """Return a spec that this node cannot start, because the directory does not exist."""
    return RunSpec(**{"command": "true", "cwd": "/srv/here", **fields})


def held(number: int = 1, **overrides: Any) -> SupervisedProcess:
    """Return the process data with which supervisor `number` acquires a run."""
    values: dict[str, Any] = {
        "owner": f"supervisor:{number}",
        "host": ELSEWHERE,
        "boot_id": "boot",
        "pid": 10_000 + number,
        "start_token": f"{number}00",
        "supervisor_pid": 20_000 + number,
        "supervisor_token": f"{number}01",
        "folder": NO_FOLDER,
    }
    return SupervisedProcess(**values | overrides)


def queued(store: Corral, **fields: Any) -> Run:
    return store.internal.runs.enqueue(run_spec(**fields))


def next_queued(store: Corral, **filters: str) -> Run | None:
    """Return the next queued run without claiming it."""
    return read(store, lambda tx: dispatch.find_next_queued(tx, **filters))


def starting(store: Corral, supervisor: int = 1, **fields: Any) -> Run:
    return store.internal.runs.acquire(queued(store, **fields).id, held(supervisor))


def running(store: Corral, supervisor: int = 1, **fields: Any) -> Run:
    return store.internal.runs.launch(starting(store, supervisor, **fields))


def stopping(store: Corral, supervisor: int = 1, **fields: Any) -> Run:
    return store.internal.runs.request_stop(running(store, supervisor, **fields).id)


def recorded(store: Corral, **fields: Any) -> Run:
    """Record a process that Corral did not start."""
    values: dict[str, Any] = {
        "pid": 10_001,
        "host": ELSEWHERE,
        "boot_id": "boot",
        "start_token": "100",
        "command": "true",
        "args": (),
        "cwd": "/srv/here",
        "project_id": None,
    }
    with store.transaction() as tx:
        return ops.record(tx, **values | fields)


def ended(store: Corral, how: ExitStatus | None = None, **fields: Any) -> Run:
    return store.internal.runs.record_end(running(store, **fields), how or ExitStatus(exit_code=0))


def without_supervisors(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Replace supervisors by ones that are lost at once.

    Returns the arguments with which they were started.
    """
    calls: list[dict[str, Any]] = []

    class Lost:
        def start(self, **arguments: Any) -> dict[str, Any]:
            calls.append(arguments)
            raise supervisor_process.SupervisorLost

    monkeypatch.setattr(supervisor_process, "StartingSupervisor", Lost)
    return calls
