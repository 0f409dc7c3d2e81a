"""A run whose supervisor died with its agent goes on as its supervisor would have let it."""

import subprocess

import pytest

import corral
from corral.adapters import process
from corral.api import Corral
from corral.domain.runs.model import RunState
from corral.kernel.exit_status import ExitStatus
from tests.domain.test_runs_recovery import GONE, here, identity, note_exit
from tests.support.run_factories import held, queued, without_supervisors
from tests.support.threads import race


@pytest.fixture(autouse=True)
def _no_supervisors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is started."""
    without_supervisors(monkeypatch)


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (ExitStatus(exit_code=5), "exit code 5"),
        (ExitStatus(signal=9), "signal 9"),
        (None, "gone"),
    ],
)
def test_run_with_restarts_left_is_requeued(
    store: Corral, end: ExitStatus | None, reason: str
) -> None:
    run = here(store, max_restarts=1)
    if end is not None:
        note_exit(run, end)
    (found,) = store.runs.recover()
    assert (found.run_id, found.state, found.reason) == (run.id, RunState.QUEUED, reason)
    now = store.runs.get(run.id)
    assert (now.state, now.attempts, now.host) == (RunState.QUEUED, 1, process.host())
    assert now.fence > run.fence
    started = store.internal.runs.acquire(run.id, held(2, host=process.host()))
    assert started.attempts == 2


def test_run_without_restarts_left_ends(store: Corral) -> None:
    run = here(store, max_restarts=1)
    store.runs.recover()
    plain = {"host": process.host(), "boot_id": process.boot_id(), "supervisor_pid": GONE}
    again = store.internal.runs.acquire(run.id, held(1, pid=GONE, start_token="1", **plain))
    store.internal.runs.launch(again)
    (found,) = store.runs.recover()
    assert (found.state, store.runs.get(run.id).attempts) == (RunState.CRASHED, 2)


def test_successful_run_is_not_restarted(store: Corral) -> None:
    run = here(store, max_restarts=3)
    note_exit(run, ExitStatus(exit_code=0))
    (found,) = store.runs.recover()
    assert found.state is RunState.COMPLETED


def test_stopped_run_is_not_restarted(store: Corral) -> None:
    run = here(store, max_restarts=3)
    store.internal.runs.request_stop(run.id, reason="enough")
    (found,) = store.runs.recover()
    assert found.state is RunState.CANCELLED


def test_quick_failures_are_counted_and_end_the_run(store: Corral) -> None:
    child = subprocess.Popen(["sleep", "600"])
    began = identity(child).start_token
    child.kill()
    child.wait()
    plain = {"host": process.host(), "boot_id": process.boot_id(), "supervisor_pid": GONE}
    run = queued(store, max_restarts=9)
    states = []
    for number in range(3):
        holding = held(number + 1, pid=child.pid, start_token=began, **plain)
        started = store.internal.runs.launch(store.internal.runs.acquire(run.id, holding))
        note_exit(started, ExitStatus(exit_code=1))
        (found,) = store.runs.recover()
        states.append((found.state, store.runs.get(run.id).quick_failures))
    assert states == [("queued", 1), ("queued", 2), ("failed", 2)]


def test_one_of_two_recoveries_requeues_the_run(store: Corral, url: str) -> None:
    run = here(store, max_restarts=5)
    with corral.open(url) as other:
        racers = race([store.runs.recover, other.runs.recover])
    assert sum(len(racer.result()) for racer in racers) == 1
    now = store.runs.get(run.id)
    assert (now.state, now.attempts) == (RunState.QUEUED, 1)
    verbs = [event.verb for event in store.events.after(subject=run.id).items]
    assert verbs.count("requeue") == 1
