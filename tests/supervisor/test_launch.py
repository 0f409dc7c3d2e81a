"""Launch of an agent: supervisors that die before it, and several supervisors for one run."""

import os
import signal
import time
from pathlib import Path

from corral.adapters.processes import process
from corral.domain.runs.model import RunState
from tests.support.home import Home, is_alive, wait_until


def kill_process(pid: int | None) -> None:
    assert pid is not None
    assert pid > 1
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), f"{pid} is gone")


def test_supervisor_that_dies_before_the_launch_leaves_no_agent(home: Home) -> None:
    """Kills the supervisor at several moments of the start: the program runs in a run, or never."""
    for number in range(6):
        marker = home.work / f"started{number}"
        with home.begin("run", "-d", "--json", "--", "sh", "-c", f"touch {marker}; sleep 600") as c:
            time.sleep(0.06 * number)  # several different moments of the start
            supervisors = [
                pid
                for pid in home.processes()
                if "corral.supervisor" in " ".join(process.read_command_line(pid))
            ]
            for pid in supervisors:
                with_parent = process.read_stat(pid)
                if with_parent is not None and with_parent.parent == c.pid:
                    os.kill(pid, signal.SIGKILL)
            c.communicate(timeout=60)
        home.recover()
        with home.store() as store:
            live = store.runs.list(live=True, limit=100).items
            for run in live:
                if run.state is RunState.QUEUED:
                    store.runs.stop(run.id)
                    continue
                assert is_alive(run.pid or 0)
                store.runs.stop(run.id, grace_period_ms=100)
                store.runs.wait(run.id, timeout_ms=40_000)
    home.wait_for_all_processes()


def test_run_that_ends_before_the_launch_has_no_exit_code(tmp_path: Path) -> None:
    """The supervisor dies before it lets the child execute the program."""
    from corral.adapters.processes import exit_files
    from corral.supervisor.child import ChildProcess, Stdio

    supervisor = os.fork()
    if supervisor == 0:
        try:
            null = os.open(os.devnull, os.O_RDWR)
            child = ChildProcess.fork(
                ["touch", str(tmp_path / "started")],
                cwd="/",
                env=dict(os.environ),
                stdio=Stdio(null, null, null),
                folder=tmp_path,
                attempt=1,
            )
            (tmp_path / "pid").write_text(str(child.pid))
        finally:
            os._exit(0)
    os.waitpid(supervisor, 0)
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not is_alive(pid), "the waiting child exited")
    end = exit_files.wait_for_exit(tmp_path, 1, pid, 20.0)
    assert not (tmp_path / "started").exists()
    assert (end.exit_code, end.signal) == (None, None), "no program returned an exit status"


def test_two_supervisors_for_one_run_record_one_end(home: Home) -> None:
    """Several supervisors prepare a child; all but one are rejected and leave no result."""
    from corral.adapters.supervisor_process import StartingSupervisor, read_message, write_message

    for number in range(3):
        go = home.work / f"go{number}"
        script = f"while [ ! -e '{go}' ]; do sleep 0.1; done; exit 5"
        with home.store() as store:
            run = store.runs.start(command=["sh", "-c", script], project=str(home.work))
            supervisors = [StartingSupervisor() for _ in range(3)]
            for supervisor in supervisors:  # send all requests before reading an answer
                write_message(supervisor._order_writer, {"store": store.address, "run": run.id})
            for supervisor in supervisors:
                read_message(supervisor._answer_reader)
        active = home.in_state(run.id, RunState.RUNNING)
        wait_until(lambda: sum(is_alive(k.pid) for k in supervisors) == 1, "one supervisor")  # noqa: B023
        if number == 0:
            kill_process(active.supervisor_pid)  # recovery reads the exit file
        elif number == 1:
            for pid in (active.supervisor_pid, home.guard_pid(active), active.pid):
                kill_process(pid)
        go.touch()
        wait_until(lambda: not is_alive(active.pid or 0), "the program ended")  # noqa: B023
        if number < 2:
            home.recover()
        ended = home.wait_for_end(run.id)
        expected = (RunState.CRASHED, None) if number == 1 else (RunState.FAILED, 5)
        assert (ended.state, ended.exit_code) == expected


def test_late_supervisor_changes_nothing(home: Home) -> None:
    """The supervisor was started for a queued run that has ended in the meantime."""
    from corral.adapters.supervisor_process import StartingSupervisor

    run = home.start_detached("sh", "-c", "echo some output; exit 3")
    ended = home.wait_for_end(run.id)
    home.wait_for_all_processes()
    before = sorted(file.name for file in home.folder_of(run).iterdir())
    with home.store() as store:
        answer = StartingSupervisor().start(store=store.address, run=run.id)
    assert "pid" not in answer
    home.wait_for_all_processes()
    assert sorted(file.name for file in home.folder_of(run).iterdir()) == before
    assert home.output(ended) == b"some output\n"
    assert home.get(run.id) == ended
