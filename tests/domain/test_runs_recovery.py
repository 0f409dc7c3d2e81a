"""What a recovery says of runs, by what is known of their processes; nothing else is signalled."""

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
from corral.adapters import process
from corral.adapters.exit_files import ExitFileWriter
from corral.api import Corral
from corral.config import make_private_folder, run_folder
from corral.db.statement import Statement
from corral.domain.runs import ops
from corral.domain.runs.model import Run, RunState
from corral.kernel.clock import HOUR, ManualClock
from corral.kernel.errors import CorralError
from corral.kernel.exit_status import ExitStatus
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
from tests.support.store import record, unchanged
from tests.support.threads import race

GONE = 4_190_000  # no process has this pid: more than the machine gives out, or nearly


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that belongs to nobody's run, and that must outlive every recovery."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        while process.read_command_line(child.pid) != ["sleep", "600"]:
            assert child.poll() is None  # its words are there a moment after it began
        yield child
    finally:
        child.kill()
        child.wait()


@pytest.fixture
def no_supervisors(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Nobody is started; gives what supervisors would have been told."""
    return without_supervisors(monkeypatch)


pytestmark = pytest.mark.usefixtures("no_supervisors")


def identity(child: "subprocess.Popen[bytes]") -> process.ProcessIdentity:
    found = process.identify(child.pid)
    assert found is not None
    return found


def here(store: Corral, *, pid: int = GONE, began: str = "1", **known: Any) -> Run:
    """A run of this machine whose supervisor is gone."""
    run = store.internal.runs.enqueue(run_spec(max_restarts=known.pop("max_restarts", 0)))
    plain = {"host": process.host(), "boot_id": process.boot_id(), "supervisor_pid": GONE}
    started = store.internal.runs.acquire(
        run.id, held(1, pid=pid, start_token=began, **plain | known)
    )
    return store.internal.runs.launch(started)


def note_exit(run: Run, end: ExitStatus) -> None:
    """What a guard leaves behind."""
    make_private_folder(run_folder(run.id))
    assert run.pid is not None
    note = ExitFileWriter(run_folder(run.id), run.attempts, run.pid)
    note.write(end)
    os.close(note.descriptor)


def list_recovered(store: Corral) -> list[tuple[str, str, str]]:
    return [(found.was, found.state, found.reason) for found in store.runs.recover()]


# -- on this machine ---------------------------------------------------------------------------


def test_run_without_process_and_supervisor_has_crashed(store: Corral) -> None:
    run = here(store)
    assert list_recovered(store) == [("running", "crashed", "gone")]
    over = store.runs.get(run.id)
    assert (over.exit_code, over.signal) == (None, None)
    assert list_recovered(store) == []


def test_output_is_left_to_a_live_supervisor(
    store: Corral, sleeper: "subprocess.Popen[bytes]"
) -> None:
    supervisor = identity(sleeper)
    id = store.internal.runs.enqueue(run_spec()).id
    folder = run_folder(id)
    make_private_folder(folder)
    (folder / "output").write_bytes(b"it may still be writing")
    plain = {"host": supervisor.host, "boot_id": supervisor.boot_id, "folder": str(folder)}
    kept = held(1, supervisor_pid=supervisor.pid, supervisor_token=supervisor.start_token, **plain)
    store.internal.runs.end(
        store.internal.runs.launch(store.internal.runs.acquire(id, kept)), ExitStatus(exit_code=0)
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
    run = here(store)
    note_exit(run, end)
    ((was, found, _),) = list_recovered(store)
    assert (was, found) == ("running", state)
    over = store.runs.get(run.id)
    assert (over.exit_code, over.signal) == (end.exit_code, end.signal)


def test_exit_file_of_an_earlier_attempt_is_ignored(store: Corral) -> None:
    run = here(store, max_restarts=1)
    note_exit(run, ExitStatus(exit_code=0))
    again = held(1, pid=GONE, start_token="2")
    store.internal.runs.launch(
        store.internal.runs.restart(run, again, ExitStatus(exit_code=0), quick_failures=0)
    )
    assert list_recovered(store) == [("running", "crashed", "gone")]


def test_stopping_run_whose_supervisor_died_is_cancelled(store: Corral) -> None:
    run = here(store)
    store.internal.runs.request_stop(run.id, reason="enough")
    assert list_recovered(store) == [("stopping", "cancelled", "enough")]


def test_pid_of_another_process_is_not_signalled(
    store: Corral, sleeper: "subprocess.Popen[bytes]"
) -> None:
    run = here(store, pid=sleeper.pid, began="1")
    assert list_recovered(store) == [("running", "crashed", "pid reused")]
    assert sleeper.poll() is None
    assert store.runs.get(run.id).exit_code is None


def test_reboot_interrupts_the_runs_of_the_machine(
    store: Corral, sleeper: "subprocess.Popen[bytes]"
) -> None:
    same_pid = identity(sleeper)
    here(store, pid=same_pid.pid, began=same_pid.start_token, boot_id="another-boot")
    assert list_recovered(store) == [("running", "interrupted", "rebooted")]
    assert sleeper.poll() is None


def test_live_supervisor_keeps_its_run_after_the_lease_expired(
    store: Corral, clock: ManualClock, sleeper: "subprocess.Popen[bytes]"
) -> None:
    supervisor = identity(sleeper)
    here(store, supervisor_pid=supervisor.pid, supervisor_token=supervisor.start_token)
    clock.advance(HOUR)
    with unchanged(store):
        assert list_recovered(store) == []


def test_live_agent_without_a_supervisor_gets_a_new_one(
    store: Corral, sleeper: "subprocess.Popen[bytes]", no_supervisors: list[dict[str, Any]]
) -> None:
    agent = identity(sleeper)
    run = here(store, pid=agent.pid, began=agent.start_token)
    with unchanged(store):
        assert list_recovered(store) == []  # nobody came
    assert [(asked["run"], asked["adopt"]) for asked in no_supervisors] == [(run.id, True)]
    assert sleeper.poll() is None


@pytest.mark.parametrize("who", ["agent", "supervisor"])
def test_run_whose_process_cannot_be_read_stays_unchanged(
    store: Corral, monkeypatch: pytest.MonkeyPatch, who: str
) -> None:
    run = here(store, pid=4_000_001, supervisor_pid=4_000_002 if who == "supervisor" else GONE)
    hidden = {"agent": run.pid, "supervisor": run.supervisor_pid}[who]
    stat = process.read_stat

    def look(pid: int) -> process.ProcessStat | None:
        if pid == hidden:
            raise PermissionError(13, "hidden")
        return stat(pid)

    monkeypatch.setattr(process, "read_stat", look)
    with unchanged(store):
        assert list_recovered(store) == []


def test_zombie_process_counts_as_gone(store: Corral) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    agent = identity(child)
    here(store, pid=agent.pid, began=agent.start_token)
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it stays until somebody asks
    try:
        assert list_recovered(store) == [("running", "crashed", "gone")]
    finally:
        child.communicate()


def test_recovery_ignores_queued_runs(store: Corral) -> None:
    queued(store, host="there")
    with unchanged(store):
        assert list_recovered(store) == []


def test_recovery_checks_all_runs_in_batches(store: Corral) -> None:
    store.settings.set("runs.max_concurrent", 1_000)
    lost = {"host": "there", "boot_id": "b", "lease_until": 1, "pid": 5, "start_token": "5"}
    made = []
    with store.transaction() as tx:
        for _ in range(430):
            run = ops.enqueue(tx, run_spec())
            tx.run(Statement("DELETE FROM runs WHERE id = :id"), id=run.id)
            made.append(insert_run(tx, "running", tx.now, **lost | {"id": run.id}))
    found = store.runs.recover()
    assert sorted(one.run_id for one in found) == sorted(made)
    assert {one.state for one in found} == {RunState.INTERRUPTED}


# -- on other machines -------------------------------------------------------------------------


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
    assert record(store, run.id)[-1] == "run.requeue"
    again = store.internal.runs.launch(store.internal.runs.acquire(run.id, held(2)))
    clock.advance(HOUR)
    assert list_recovered(store) == [("running", "interrupted", "lease expired")]
    assert store.runs.get(run.id).attempts == again.attempts == 2


def test_run_whose_output_is_lost_is_requeued(store: Corral, clock: ManualClock) -> None:
    run = running(store, max_restarts=1)
    store.internal.outputs.lose(run.id, "its folder is gone")
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


def test_clock_jump_back_takes_no_run_from_its_supervisor(
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
        identity(sleeper).start_token,
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
        pid=sleeper.pid, project=project.id, command="mine", args=["x"], cwd="/srv"
    )
    assert (run.project_id, run.command, run.args, run.cwd) == (project.id, "mine", ["x"], "/srv")
    assert store.runs.by_pid(sleeper.pid) == run
    over = store.runs.finish(run.id, exit_code=3)
    assert (over.state, over.exit_code) == ("failed", 3)
    assert list_recovered(store) == []
    assert sleeper.poll() is None


@each_case("pid", [0, -1, 1, GONE, 1 << 40, "7", None, True])
def test_recording_a_missing_process_raises_not_found(store: Corral, pid: Any) -> None:
    with unchanged(store), pytest.raises(CorralError):
        store.runs.record(pid=pid)


# -- beside others -----------------------------------------------------------------------------


def test_one_of_concurrent_recovering_threads_decides(store: Corral, clock: ManualClock) -> None:
    near = [here(store) for _ in range(5)]
    far = [running(store, n) for n in range(5)]
    clock.advance(HOUR)
    racers = race([store.runs.recover] * 4)
    found = [one for racer in racers for one in racer.result()]
    assert {one.run_id for one in found} == {run.id for run in [*near, *far]}
    for one in found:  # whoever comes second says the same
        assert one.state is store.runs.get(one.run_id).state
    for run in [*near, *far]:
        ends = [verb for verb in record(store, run.id) if verb in ("run.crash", "run.interrupt")]
        assert len(ends) == 1


def test_one_of_concurrent_recovering_processes_decides(url: str) -> None:
    with corral.open(url) as store:
        ids = [here(store).id for _ in range(6)]

    def recover() -> list[str]:
        with corral.open(url) as mine:
            return [found.run_id for found in mine.runs.recover()]

    told = run_concurrently([recover] * 3)
    assert {id for one in told for id in one} == {*ids}
    with corral.open(url) as store:
        assert {store.runs.get(id).state for id in ids} == {RunState.CRASHED}
        for id in ids:
            assert record(store, id).count("run.crash") == 1


def test_supervisor_racing_with_a_recovery_wins_or_gets_an_error(
    store: Corral, clock: ManualClock
) -> None:
    for n in range(10):
        run = running(store, n)
        clock.advance(HOUR)
        ended, _ = race(
            [
                lambda run=run: store.internal.runs.end(run, ExitStatus(exit_code=0)),
                store.runs.recover,
            ]
        )
        found = store.runs.get(run.id)
        if found.state is RunState.COMPLETED:
            assert (found.exit_code, ended.error) == (0, None)
        else:
            assert (found.state, found.exit_code) == ("interrupted", None)
            assert ended.error is not None or ended.value == found


def test_output_of_an_unknown_run_does_not_stop_a_recovery(store: Corral) -> None:
    store.internal.outputs.begin("run_" + "0" * 26, host=process.host(), folder="/nowhere")
    here(store)
    assert list_recovered(store) == [("running", "crashed", "gone")]


def test_recovery_tolerates_concurrent_deletions(store: Corral) -> None:
    over = [here(store) for _ in range(10)]
    store.runs.recover()
    stop = threading.Event()

    def delete() -> None:
        for run in over:
            store.runs.delete(run.id)
        stop.set()

    def recover() -> None:
        while not stop.is_set():
            store.runs.recover()

    for racer in race([delete, recover]):
        racer.result()
    assert store.runs.list().items == []
