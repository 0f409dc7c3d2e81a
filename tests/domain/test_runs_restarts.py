"""Recovery restarts runs whose supervisor and agent died, within their restart limit."""

import subprocess

import pytest

import corral
from corral.adapters.processes import process
from corral.api import Corral
from corral.domain.runs.model import RunState
from corral.kernel.exit_status import ExitStatus
from tests.domain.test_runs_recovery import GONE, add_local_run, identify, write_exit_file
from tests.support.run_factories import held, queued, without_supervisors
from tests.support.threads import race


@pytest.fixture(autouse=True)
def _no_supervisors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no supervisors."""
    without_supervisors(monkeypatch)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (ExitStatus(exit_code=5), "exit code 5"),
        (ExitStatus(signal=9), "signal 9"),
        (None, "gone"),
    ],
)
def test_run_with_restarts_left_is_requeued(
    store: Corral, status: ExitStatus | None, reason: str
) -> None:
    run = add_local_run(store, max_restarts=1)
    if status is not None:
        write_exit_file(run, status)
    (result,) = store.runs.recover()
    assert (result.run_id, result.state, result.reason) == (run.id, RunState.QUEUED, reason)
    requeued = store.runs.get(run.id)
    assert (requeued.state, requeued.attempts, requeued.host) == (
        RunState.QUEUED,
        1,
        process.host(),
    )
    assert requeued.fence > run.fence
    started = store.internal.runs.acquire(run.id, held(2, host=process.host()))
    assert started.attempts == 2


def test_run_without_restarts_left_ends(store: Corral) -> None:
    run = add_local_run(store, max_restarts=1)
    store.runs.recover()
    fields = {"host": process.host(), "boot_id": process.boot_id(), "supervisor_pid": GONE}
    acquired = store.internal.runs.acquire(run.id, held(1, pid=GONE, start_token="1", **fields))
    store.internal.runs.launch(acquired)
    (result,) = store.runs.recover()
    assert (result.state, store.runs.get(run.id).attempts) == (RunState.CRASHED, 2)


def test_successful_run_is_not_restarted(store: Corral) -> None:
    run = add_local_run(store, max_restarts=3)
    write_exit_file(run, ExitStatus(exit_code=0))
    (result,) = store.runs.recover()
    assert result.state is RunState.COMPLETED


def test_stopped_run_is_not_restarted(store: Corral) -> None:
    run = add_local_run(store, max_restarts=3)
    store.internal.runs.request_stop(run.id, reason="enough")
    (result,) = store.runs.recover()
    assert result.state is RunState.CANCELLED


def test_quick_failures_are_counted_and_end_the_run(store: Corral) -> None:
    child = subprocess.Popen(["sleep", "600"])
    start_token = identify(child).start_token
    child.kill()
    child.wait()
    fields = {"host": process.host(), "boot_id": process.boot_id(), "supervisor_pid": GONE}
    run = queued(store, max_restarts=9)
    states = []
    for number in range(3):
        holder = held(number + 1, pid=child.pid, start_token=start_token, **fields)
        started = store.internal.runs.launch(store.internal.runs.acquire(run.id, holder))
        write_exit_file(started, ExitStatus(exit_code=1))
        (result,) = store.runs.recover()
        states.append((result.state, store.runs.get(run.id).quick_failures))
    assert states == [("queued", 1), ("queued", 2), ("failed", 2)]


def test_one_of_two_recoveries_requeues_the_run(store: Corral, url: str) -> None:
    run = add_local_run(store, max_restarts=5)
    with corral.open(url) as other_store:
        racers = race([store.runs.recover, other_store.runs.recover])
    assert sum(len(racer.result()) for racer in racers) == 1
    requeued = store.runs.get(run.id)
    assert (requeued.state, requeued.attempts) == (RunState.QUEUED, 1)
    verbs = [event.verb for event in store.events.after(subject=run.id).items]
    assert verbs.count("requeue") == 1
