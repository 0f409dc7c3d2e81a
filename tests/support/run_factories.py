"""Runs without processes: written straight into the table, or led along their verbs."""

from typing import Any

import pytest

from corral.adapters import supervisor_process
from corral.api import Corral
from corral.db.statement import Statement
from corral.db.tx import Tx
from corral.domain.runs import dispatch
from corral.domain.runs.model import Run
from corral.domain.runs.spec import RunSpec, SupervisedProcess
from corral.kernel.exit_status import ExitStatus
from corral.kernel.ids import new_id

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
    """A run in any state, asked for at a moment and begun then; gives its id."""
    live = state in ("queued", "starting", "running", "stopping")
    values = {
        **PLAIN,
        "id": new_id("run", at),
        "state": state,
        "due_at": at,
        "created_at": at,
        "started_at": None if state == "queued" else at,
        "ended_at": None if live else at,
        **columns,
    }
    names, places = ", ".join(values), ", ".join(f":{name}" for name in values)
    tx.run(Statement(f"INSERT INTO runs ({names}) VALUES ({places})"), **values)
    return str(values["id"])


def add_run(store: Corral, state: str, at: int | None = None, **columns: Any) -> str:
    with store.transaction() as tx:
        return insert_run(tx, state, store.now() if at is None else at, **columns)


def add_launch(store: Corral, run: str) -> None:
    """How a run that was written straight into the table was asked for."""
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


# -- runs that went the right way, without any process -----------------------------------------

NO_FOLDER = "/srv/runs"
ELSEWHERE = "another-machine"  # nothing looks for processes of this one here


def run_spec(**wanted: Any) -> RunSpec:
    """By itself one that is left to other machines: its directory is not here."""
    return RunSpec(**{"command": "true", "cwd": "/srv/here", **wanted})


def held(number: int = 1, **known: Any) -> SupervisedProcess:
    """What the supervisor of a number says when it takes a run."""
    plain: dict[str, Any] = {
        "owner": f"supervisor:{number}",
        "host": ELSEWHERE,
        "boot_id": "boot",
        "pid": 10_000 + number,
        "start_token": f"{number}00",
        "supervisor_pid": 20_000 + number,
        "supervisor_token": f"{number}01",
        "folder": NO_FOLDER,
    }
    return SupervisedProcess(**plain | known)


def queued(store: Corral, **wanted: Any) -> Run:
    return store.runs.enqueue(run_spec(**wanted))


def next_queued(store: Corral, **where: str) -> Run | None:
    """The run that is next in line, without taking it."""
    return store._database.read(lambda tx: dispatch.find_next_queued(tx, **where))


def starting(store: Corral, supervisor: int = 1, **wanted: Any) -> Run:
    return store.runs.acquire(queued(store, **wanted).id, held(supervisor))


def running(store: Corral, supervisor: int = 1, **wanted: Any) -> Run:
    return store.runs.launch(starting(store, supervisor, **wanted))


def stopping(store: Corral, supervisor: int = 1, **wanted: Any) -> Run:
    return store.runs.request_stop(running(store, supervisor, **wanted).id)


def ended(store: Corral, how: ExitStatus | None = None, **wanted: Any) -> Run:
    return store.runs.end(running(store, **wanted), how or ExitStatus(exit_code=0))


def without_supervisors(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """From now on no supervisor is started: whoever wants one finds that it was lost at once.

    Gives back what they would have been told.
    """
    asked: list[dict[str, Any]] = []

    class Lost:
        def start(self, **told: Any) -> dict[str, Any]:
            asked.append(told)
            raise supervisor_process.SupervisorLost

    monkeypatch.setattr(supervisor_process, "StartingSupervisor", Lost)
    return asked
