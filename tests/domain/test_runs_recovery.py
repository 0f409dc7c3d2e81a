"""Recovery of runs by process identity and lease; no other process is signalled."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import corral
from corral.adapters.processes import process, process_marks
from corral.adapters.processes.exit_files import ExitFileWriter
from corral.api import Corral
from corral.config import make_private_folder, run_folder
from corral.db.statement import Statement
from corral.domain.outputs.model import OutputState
from corral.domain.runs import ops
from corral.domain.runs.model import Run, RunState
from corral.kernel.clock import HOUR, ManualClock
from corral.kernel.errors import CorralError
from corral.kernel.exit_status import ExitStatus
from corral.services.runs import recovery
from tests.support.grouped_cases import each_case
from tests.support.processes import run_concurrently
from tests.support.run_factories import (
    held,
    insert_run,
    queued,
    run_spec,
    running,
    starting,
    stopping,
    without_supervisors,
)
from tests.support.store import list_events, unchanged
from tests.support.threads import race

GONE = 4_190_000  # near the largest possible pid, so no process has it


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """Start a process that belongs to no run and must survive every recovery."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        while process.read_command_line(child.pid) != ["sleep", "600"]:
            assert child.poll() is None  # the command line is readable only after exec
        yield child
    finally:
        child.kill()
        child.wait()


@pytest.fixture
def no_supervisors(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Start no supervisors; return the arguments of the starts."""
    return without_supervisors(monkeypatch)


pytestmark = pytest.mark.usefixtures("no_supervisors")


def identify(child: "subprocess.Popen[bytes]") -> process.ProcessIdentity:
    result = process.identify(child.pid)
    assert result is not None
    return result


def add_local_run(store: Corral, *, pid: int = GONE, start_time: str = "1", **fields: Any) -> Run:
    """Add a run of this host whose supervisor is gone."""
    run = store.internal.runs.enqueue(run_spec(max_restarts=fields.pop("max_restarts", 0)))
    defaults = {"host": process.host(), "boot_id": process.boot_id(), "supervisor_pid": GONE}
    started = store.internal.runs.acquire(
        run.id, held(1, pid=pid, start_token=start_time, **defaults | fields)
    )
    return store.internal.runs.launch(started)


def write_exit_file(run: Run, status: ExitStatus) -> None:
    """Write the exit file that a guard leaves."""
    make_private_folder(run_folder(run.id))
    assert run.pid is not None
    writer = ExitFileWriter(run_folder(run.id), run.attempts, run.pid)
    writer.write(status)
    os.close(writer.descriptor)


def list_recovered(store: Corral) -> list[tuple[str, str, str]]:
    return [(result.was, result.state, result.reason) for result in store.runs.recover()]


# -- local runs --------------------------------------------------------------------------------


def test_run_without_process_and_supervisor_has_crashed(store: Corral) -> None:
    run = add_local_run(store)
    assert list_recovered(store) == [("running", "crashed", "gone")]
    ended = store.runs.get(run.id)
    assert (ended.exit_code, ended.signal) == (None, None)
    assert list_recovered(store) == []


def test_output_is_left_to_a_live_supervisor(
    store: Corral, sleeper: "subprocess.Popen[bytes]"
) -> None:
    supervisor = identify(sleeper)
    id = store.internal.runs.enqueue(run_spec()).id
    folder = run_folder(id)
    make_private_folder(folder)
    (folder / "output").write_bytes(b"partial")
    fields = {"host": supervisor.host, "boot_id": supervisor.boot_id, "folder": str(folder)}
    holder = held(
        1, supervisor_pid=supervisor.pid, supervisor_token=supervisor.start_token, **fields
    )
    store.internal.runs.record_end(
        store.internal.runs.launch(store.internal.runs.acquire(id, holder)), ExitStatus(exit_code=0)
    )
    assert list_recovered(store) == []
    assert store.outputs.get(id).state == "open"
    sleeper.kill()
    sleeper.wait()
    assert list_recovered(store) == []
    assert store.outputs.get(id).state == "sealed"


@each_case(
    ("end", "state"),
    [
        (ExitStatus(exit_code=0), "completed"),
        (ExitStatus(exit_code=5), "failed"),
        (ExitStatus(signal=9), "crashed"),
    ],
)
def test_recorded_exit_status_is_used_and_none_is_invented(
    store: Corral, end: ExitStatus, state: str
) -> None:
    run = add_local_run(store)
    write_exit_file(run, end)
    ((was, new_state, _),) = list_recovered(store)
    assert (was, new_state) == ("running", state)
    ended = store.runs.get(run.id)
    assert (ended.exit_code, ended.signal) == (end.exit_code, end.signal)


def test_exit_file_of_an_earlier_attempt_is_ignored(store: Corral) -> None:
    run = add_local_run(store, max_restarts=1)
    write_exit_file(run, ExitStatus(exit_code=0))
    holder = held(1, pid=GONE, start_token="2")
    store.internal.runs.launch(
        store.internal.runs.restart(run, holder, ExitStatus(exit_code=0), quick_failures=0)
    )
    assert list_recovered(store) == [("running", "crashed", "gone")]


def test_stopping_run_whose_supervisor_died_is_cancelled(store: Corral) -> None:
    run = add_local_run(store)
    store.internal.runs.request_stop(run.id, reason="enough")
    assert list_recovered(store) == [("stopping", "cancelled", "enough")]


def test_pid_of_another_process_is_not_signalled(
    store: Corral, sleeper: "subprocess.Popen[bytes]"
) -> None:
    run = add_local_run(store, pid=sleeper.pid, start_time="1")
    assert list_recovered(store) == [("running", "crashed", "pid reused")]
    assert sleeper.poll() is None
    assert store.runs.get(run.id).exit_code is None


@pytest.mark.parametrize("has_marks", [True, False])
def test_reboot_interrupts_the_runs_of_the_machine(
    store: Corral,
    sleeper: "subprocess.Popen[bytes]",
    monkeypatch: pytest.MonkeyPatch,
    has_marks: bool,
) -> None:
    monkeypatch.setattr(process_marks, "is_supported", lambda: has_marks)
    agent = identify(sleeper)
    add_local_run(store, pid=agent.pid, start_time=agent.start_token, boot_id="another-boot")
    assert list_recovered(store) == [("running", "interrupted", "rebooted")]
    assert sleeper.poll() is None


def test_live_supervisor_keeps_its_run_after_the_lease_expired(
    store: Corral, clock: ManualClock, sleeper: "subprocess.Popen[bytes]"
) -> None:
    supervisor = identify(sleeper)
    add_local_run(store, supervisor_pid=supervisor.pid, supervisor_token=supervisor.start_token)
    clock.advance(HOUR)
    with unchanged(store):
        assert list_recovered(store) == []


def test_live_agent_without_a_supervisor_gets_a_new_one(
    store: Corral, sleeper: "subprocess.Popen[bytes]", no_supervisors: list[dict[str, Any]]
) -> None:
    agent = identify(sleeper)
    run = add_local_run(store, pid=agent.pid, start_time=agent.start_token)
    with unchanged(store):
        assert list_recovered(store) == []  # no supervisor starts here
    assert [(arguments["run"], arguments["adopt"]) for arguments in no_supervisors] == [
        (run.id, True)
    ]
    assert sleeper.poll() is None


@pytest.mark.parametrize("hidden_process", ["agent", "supervisor"])
def test_run_whose_process_cannot_be_read_stays_unchanged(
    store: Corral, monkeypatch: pytest.MonkeyPatch, hidden_process: str
) -> None:
    run = add_local_run(
        store, pid=4_000_001, supervisor_pid=4_000_002 if hidden_process == "supervisor" else GONE
    )
    hidden_pid = {"agent": run.pid, "supervisor": run.supervisor_pid}[hidden_process]
    read_stat = process.read_stat

    def read_visible_stat(pid: int) -> process.ProcessStat | None:
        if pid == hidden_pid:
            raise PermissionError(13, "hidden")
        return read_stat(pid)

    monkeypatch.setattr(process, "read_stat", read_visible_stat)
    with unchanged(store):
        assert list_recovered(store) == []


def test_zombie_process_counts_as_gone(store: Corral) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    agent = identify(child)
    add_local_run(store, pid=agent.pid, start_time=agent.start_token)
    child.send_signal(signal.SIGKILL)
    os.waitid(
        os.P_PID, child.pid, os.WEXITED | os.WNOWAIT
    )  # the zombie stays until it is waited for
    try:
        assert list_recovered(store) == [("running", "crashed", "gone")]
    finally:
        child.communicate()


def test_recovery_ignores_queued_runs(store: Corral) -> None:
    queued(store, host="other-host")
    with unchanged(store):
        assert list_recovered(store) == []


def test_recovery_checks_all_runs_in_batches(store: Corral) -> None:
    store.settings.set("runs.max_concurrent", 1_000)
    lost = {"host": "other-host", "boot_id": "b", "lease_until": 1, "pid": 5, "start_token": "5"}
    ids = []
    with store.transaction() as tx:
        for _ in range(430):
            run = ops.enqueue(tx, run_spec())
            tx.run(Statement("DELETE FROM runs WHERE id = :id"), id=run.id)
            ids.append(insert_run(tx, "running", tx.now, **lost | {"id": run.id}))
    results = store.runs.recover()
    assert sorted(result.run_id for result in results) == sorted(ids)
    assert {result.state for result in results} == {RunState.INTERRUPTED}


# -- remote runs -------------------------------------------------------------------------------


def test_remote_run_is_recovered_only_by_its_lease(store: Corral, clock: ManualClock) -> None:
    runs = [starting(store, 1), running(store, 2), stopping(store, 3)]
    with unchanged(store):
        assert list_recovered(store) == []
    clock.advance(HOUR)
    assert list_recovered(store) == [
        ("starting", "interrupted", "lease expired"),
        ("running", "interrupted", "lease expired"),
        ("stopping", "cancelled", "stopped"),
    ]
    assert [store.runs.get(run.id).exit_code for run in runs] == [None] * 3


def test_run_with_restarts_left_is_requeued_with_an_event(
    store: Corral, clock: ManualClock
) -> None:
    run = running(store, max_restarts=1)
    store.internal.runs.heartbeat(run, output_bytes=1)
    clock.advance(HOUR)
    assert list_recovered(store) == [("running", "queued", "lease expired")]
    assert list_events(store, run.id)[-1] == "run.requeue"
    restarted = store.internal.runs.launch(store.internal.runs.acquire(run.id, held(2)))
    clock.advance(HOUR)
    assert list_recovered(store) == [("running", "interrupted", "lease expired")]
    assert store.runs.get(run.id).attempts == restarted.attempts == 2


def test_run_whose_output_is_lost_is_requeued(store: Corral, clock: ManualClock) -> None:
    run = running(store, max_restarts=1)
    store.internal.outputs.lose(run.id, "the folder is missing")
    clock.advance(HOUR)
    assert list_recovered(store) == [("running", "queued", "lease expired")]
    assert store.internal.runs.acquire(run.id, held(2, host="another")).attempts == 2


def test_stopping_run_with_restarts_left_is_not_requeued(store: Corral, clock: ManualClock) -> None:
    run = stopping(store, max_restarts=1)
    clock.advance(HOUR)
    assert list_recovered(store) == [("stopping", "cancelled", "stopped")]
    assert store.runs.get(run.id).attempts == 1


def test_lease_is_valid_until_its_end(store: Corral, clock: ManualClock) -> None:
    run = running(store)
    assert run.lease_until is not None
    clock.advance(run.lease_until - clock.now() - 1)
    assert list_recovered(store) == []
    clock.advance(1)
    assert list_recovered(store) == [("running", "interrupted", "lease expired")]


def test_renewed_lease_is_not_recovered(store: Corral, clock: ManualClock) -> None:
    run = running(store)
    for _ in range(5):
        clock.advance(50_000)
        store.internal.runs.heartbeat(run, output_bytes=0)
        assert list_recovered(store) == []


def test_clock_jump_back_does_not_expire_the_lease_of_a_run(
    store: Corral, clock: ManualClock
) -> None:
    run = running(store)
    clock.advance(-HOUR)
    assert list_recovered(store) == []
    assert store.internal.runs.heartbeat(run, output_bytes=0).state is RunState.RUNNING


# -- processes that Corral did not start -------------------------------------------------------


def test_recorded_process_is_identified_by_pid_start_time_and_boot(
    store: Corral, sleeper: "subprocess.Popen[bytes]"
) -> None:
    run = store.runs.record(pid=sleeper.pid)
    assert (run.state, run.mode, run.pid) == ("running", "recorded", sleeper.pid)
    assert (run.command, run.args, run.start_token) == (
        "sleep",
        ["600"],
        identify(sleeper).start_token,
    )
    assert run.supervisor_pid is None
    assert list_recovered(store) == []
    sleeper.kill()
    sleeper.wait()
    assert list_recovered(store) == [("running", "crashed", "gone")]
    assert store.runs.get(run.id).exit_code is None


def test_parent_of_a_recorded_process_records_its_exit(
    store: Corral, sleeper: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    project = store.projects.register(tmp_path)
    run = store.runs.record(
        pid=sleeper.pid, project=project.id, command="script", args=["x"], cwd="/srv"
    )
    assert (run.project_id, run.command, run.args, run.cwd) == (project.id, "script", ["x"], "/srv")
    assert store.runs.by_pid(sleeper.pid) == run
    ended = store.runs.finish(run.id, exit_code=3)
    assert (ended.state, ended.exit_code) == ("failed", 3)
    assert list_recovered(store) == []
    assert sleeper.poll() is None


@each_case("pid", [0, -1, 1, GONE, 1 << 40, "7", None, True])
def test_recording_a_missing_process_raises_not_found(store: Corral, pid: Any) -> None:
    with unchanged(store), pytest.raises(CorralError):
        store.runs.record(pid=pid)


# -- concurrent recoveries ---------------------------------------------------------------------


def test_one_of_concurrent_recovering_threads_decides(store: Corral, clock: ManualClock) -> None:
    local = [add_local_run(store) for _ in range(5)]
    remote = [running(store, n) for n in range(5)]
    clock.advance(HOUR)
    racers = race([store.runs.recover] * 4)
    results = [result for racer in racers for result in racer.result()]
    assert {result.run_id for result in results} == {run.id for run in [*local, *remote]}
    for result in results:  # the later recovery returns the same state
        assert result.state is store.runs.get(result.run_id).state
    for run in [*local, *remote]:
        events = list_events(store, run.id)
        ends = [event for event in events if event in ("run.crash", "run.interrupt")]
        assert len(ends) == 1


def test_one_of_concurrent_recovering_processes_decides(url: str) -> None:
    with corral.open(url) as store:
        ids = [add_local_run(store).id for _ in range(6)]

    def recover() -> list[str]:
        with corral.open(url) as own_store:
            return [result.run_id for result in own_store.runs.recover()]

    id_lists = run_concurrently([recover] * 3)
    assert {id for ids_of_process in id_lists for id in ids_of_process} == {*ids}
    with corral.open(url) as store:
        assert {store.runs.get(id).state for id in ids} == {RunState.CRASHED}
        for id in ids:
            assert list_events(store, id).count("run.crash") == 1


def test_supervisor_racing_with_a_recovery_wins_or_gets_an_error(
    store: Corral, clock: ManualClock
) -> None:
    for n in range(10):
        run = running(store, n)
        clock.advance(HOUR)
        racer, _ = race(
            [
                lambda run=run: store.internal.runs.record_end(run, ExitStatus(exit_code=0)),
                store.runs.recover,
            ]
        )
        final = store.runs.get(run.id)
        if final.state is RunState.COMPLETED:
            assert (final.exit_code, racer.error) == (0, None)
        else:
            assert (final.state, final.exit_code) == ("interrupted", None)
            assert racer.error is not None or racer.value == final


def test_output_of_an_unknown_run_does_not_stop_a_recovery(store: Corral) -> None:
    store.internal.outputs.begin("run_" + "0" * 26, host=process.host(), folder="/missing")
    add_local_run(store)
    assert list_recovered(store) == [("running", "crashed", "gone")]


def test_recovery_cleans_up_all_ended_runs_in_batches(
    store: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "PAGE_SIZE", 2)
    runs = []
    for number in range(5):
        here = held(number, host=process.host(), folder="/missing")
        run = store.internal.runs.launch(
            store.internal.runs.acquire(queued(store).id, here),
        )
        runs.append(store.internal.runs.record_end(run, ExitStatus(exit_code=0)))
    assert list_recovered(store) == []
    states = {store.outputs.get(run.id).state for run in runs}
    assert states == {OutputState.LOST}


def test_recovery_tolerates_concurrent_deletions(store: Corral) -> None:
    runs = [add_local_run(store) for _ in range(10)]
    store.runs.recover()
    stop = threading.Event()

    def delete() -> None:
        for run in runs:
            store.runs.delete(run.id)
        stop.set()

    def recover() -> None:
        while not stop.is_set():
            store.runs.recover()

    for racer in race([delete, recover]):
        racer.result()
    assert store.runs.list().items == []
