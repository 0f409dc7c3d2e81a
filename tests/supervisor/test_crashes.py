"""Crashes of supervisors, guards and agents: the recorded outcome is correct."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from corral.adapters import control_socket, supervisor_process
from corral.adapters.processes import process
from corral.adapters.supervisor_process import StartingSupervisor, SupervisorLost
from corral.cli import main, run_command
from corral.domain.runs import supervision
from corral.domain.runs.model import Run, RunState
from corral.kernel.exit_status import ExitStatus
from corral.supervisor.main import Termination
from tests.support.home import Home, is_alive, wait_until
from tests.support.kernel_locks import requests_lock
from tests.support.store import write

on_both_engines = pytest.mark.parametrize("engine", ["sqlite", "postgres"])
WAIT_FOR_GO = "touch started; while [ ! -e go ]; do sleep 0.1; done; echo continued; exit 5"


def start_waiting_run(home: Home, *options: str, script: str = WAIT_FOR_GO) -> Run:
    """Start a run that continues until a file `go` exists."""
    run = home.start_detached("sh", "-c", script, options=options)
    wait_until((home.work / "started").exists, "the program started")
    return home.in_state(run.id, RunState.RUNNING)


def kill_process(pid: int | None, number: int = signal.SIGKILL) -> None:
    assert pid is not None
    assert pid > 1
    os.kill(pid, number)
    if number == signal.SIGKILL:
        wait_until(lambda: not is_alive(pid), f"{pid} is gone")


def kill_guard(home: Home, run: Run) -> None:
    """Kill the guard of a run and wait until the supervisor has reaped it and adopted the agent."""
    guard = home.guard_pid(run)
    kill_process(guard)
    wait_until(lambda: process.read_stat(guard) is None, "the supervisor reaps the guard")


def stop_without_lock(home: Home, pid: int | None) -> None:
    """Stop a process while it holds no lock, because otherwise no other process could write."""
    assert pid is not None
    store = home.url.removeprefix("sqlite:///")
    locks = [f"{store}-writers", f"{store}-writers-queue"]

    def try_to_stop() -> bool:
        os.kill(pid, signal.SIGSTOP)
        wait_until(
            lambda: (proc_stat := process.read_stat(pid)) and proc_stat.state == "T",
            "the process is stopped",
        )
        if not any(requests_lock(path, pid) for path in locks):
            return True
        os.kill(pid, signal.SIGCONT)
        return False

    wait_until(try_to_stop, "the process is stopped without a lock")


@on_both_engines
def test_killed_supervisor_is_replaced_and_the_exit_code_is_recorded(home: Home) -> None:
    run = start_waiting_run(home)
    kill_process(run.supervisor_pid)
    (recovered,) = home.recover()
    assert (recovered.run_id, recovered.state) == (run.id, RunState.RUNNING)
    taken_over = home.get(run.id)
    assert (taken_over.pid, taken_over.start_token) == (run.pid, run.start_token)
    assert taken_over.supervisor_pid != run.supervisor_pid
    assert taken_over.fence > run.fence
    (home.work / "go").touch()
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.exit_code) == (RunState.FAILED, 5)
    home.wait_for_all_processes()
    assert home.output(ended) == b"continued\n"
    assert ended.output_bytes == len(b"continued\n")


def test_new_supervisor_handles_stop(home: Home) -> None:
    run = start_waiting_run(home)
    kill_process(run.supervisor_pid)
    ended = home.json("stop", run.id, "--json")
    assert ended["state"] == "cancelled"
    assert not home.processes_of(run)


def test_new_supervisor_enforces_the_time_limit(home: Home) -> None:
    from corral.db.statement import Statement

    run = start_waiting_run(home, "--timeout", "10m")
    kill_process(run.supervisor_pid)
    with home.store() as store:
        short = Statement("UPDATE launches SET timeout_ms = 1 WHERE run_id = :id")
        write(store, lambda tx: tx.run(short, id=run.id))
    home.recover()
    ended = home.wait_for_end(run.id)
    assert ended.state is RunState.TIMED_OUT


def test_new_supervisor_counts_the_time_limit_from_the_start_of_the_attempt(home: Home) -> None:
    from corral.db.statement import Statement

    run = start_waiting_run(home, "--timeout", "10m")
    kill_process(run.supervisor_pid)
    with home.store() as store:  # as after a first attempt of an hour
        earlier = Statement("UPDATE runs SET started_at = started_at - 3600000 WHERE id = :id")
        write(store, lambda tx: tx.run(earlier, id=run.id))
    home.recover()
    (home.work / "go").touch()
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.exit_code) == (RunState.FAILED, 5)


def test_new_supervisor_continues_the_restarts(home: Home) -> None:
    script = (
        "echo x >>count; touch started; while [ ! -e go ]; do sleep 0.1; done; "
        "test $(wc -l <count) -ge 2"
    )
    run = start_waiting_run(home, "--restart", "on-failure:2", script=script)
    kill_process(run.supervisor_pid)
    home.recover()
    (home.work / "go").touch()
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.exit_code, ended.attempts) == (RunState.COMPLETED, 0, 2)


def test_next_attempt_starts_after_all_processes_were_killed(home: Home) -> None:
    script = (
        "echo attempt; echo x >>count; touch started; "
        "[ $(wc -l <count) -ge 2 ] && exit 0; while :; do sleep 0.1; done"
    )
    run = start_waiting_run(home, "--restart", "on-failure:2", script=script)
    for pid in (run.supervisor_pid, home.guard_pid(run), run.pid):
        kill_process(pid)
    (recovered,) = home.recover()
    assert (recovered.was, recovered.state) == (RunState.RUNNING, RunState.QUEUED)
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.exit_code, ended.attempts) == (RunState.COMPLETED, 0, 2)
    home.wait_for_all_processes()
    assert home.output(ended) == b"attempt\nattempt\n"


def test_wait_detects_a_dead_supervisor(home: Home) -> None:
    run = start_waiting_run(home)
    with home.begin("wait", run.id) as wait_command:
        kill_process(run.supervisor_pid)
        wait_until(
            lambda: home.get(run.id).supervisor_pid != run.supervisor_pid, "a new supervisor"
        )
        (home.work / "go").touch()
        wait_command.wait(timeout=60)
    assert wait_command.returncode == 5


def test_foreground_command_survives_its_supervisor(home: Home) -> None:
    with home.begin("run", "--", "sh", "-c", WAIT_FOR_GO) as command:
        wait_until((home.work / "started").exists, "the program started")
        run = home.in_state(home.only_run().id, RunState.RUNNING)
        kill_process(run.supervisor_pid)
        wait_until(
            lambda: home.get(run.id).supervisor_pid != run.supervisor_pid, "a new supervisor"
        )
        (home.work / "go").touch()
        out, err = command.communicate(timeout=60)
    assert (command.returncode, out) == (5, b"continued\n"), err


@pytest.mark.parametrize("detach", [False, True], ids=["foreground", "detached"])
def test_run_continues_when_its_supervisor_dies_before_reporting_the_start(
    home: Home,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    detach: bool,
) -> None:
    class KilledSupervisor(StartingSupervisor):
        def start(self, **order: Any) -> dict[str, Any]:
            super().start(**order)
            wait_until((home.work / "started").exists, "the program started")
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            if not detach:
                (home.work / "go").touch()
            raise SupervisorLost

    monkeypatch.setattr(run_command, "_start_supervisor", KilledSupervisor)
    monkeypatch.chdir(home.work)
    # With --host the command itself requests the run, not its supervisor.
    options = ["-d", "--host", process.host()] if detach else []
    code = main.run(["--store", home.url, "run", *options, "--", "sh", "-c", WAIT_FOR_GO])
    printed = capfd.readouterr()
    run = home.only_run()
    if detach:
        assert (code, run.state) == (0, RunState.RUNNING), printed.err
        assert is_alive(run.supervisor_pid or 0)
        (home.work / "go").touch()
    else:
        assert (code, printed.out) == (5, "continued\n"), printed.err
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.exit_code) == (RunState.FAILED, 5)
    home.wait_for_all_processes()


def test_killed_agent_is_crashed_with_its_signal(home: Home) -> None:
    run = start_waiting_run(home)
    kill_process(run.pid)
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.exit_code, ended.signal) == (RunState.CRASHED, None, 9)
    home.wait_for_all_processes()


def test_guard_records_the_exit_when_supervisor_and_agent_are_killed(home: Home) -> None:
    run = start_waiting_run(home)
    kill_process(run.supervisor_pid)
    kill_process(run.pid)
    home.recover()
    ended = home.get(run.id)
    assert (ended.state, ended.exit_code, ended.signal) == (RunState.CRASHED, None, 9)


def test_agent_that_exits_without_a_supervisor_has_its_exit_code(home: Home) -> None:
    run = start_waiting_run(home)
    kill_process(run.supervisor_pid)
    (home.work / "go").touch()
    wait_until(lambda: not is_alive(run.pid or 0), "the agent exited")
    home.recover()
    ended = home.get(run.id)
    assert (ended.state, ended.exit_code) == (RunState.FAILED, 5)
    assert home.output(ended) == b"continued\n"


def test_killed_guard_loses_only_the_exit_code(home: Home) -> None:
    """The agent continues. Its exit status is unknown and is recorded as unknown."""
    run = start_waiting_run(home)
    kill_guard(home, run)
    assert is_alive(run.pid or 0), "the agent continues without its guard"
    (home.work / "go").touch()
    ended = home.wait_for_end(run.id)
    assert ended.exit_code is None
    assert ended.signal is None
    assert ended.state is RunState.CRASHED
    home.wait_for_all_processes()
    assert home.output(ended) == b"continued\n"


def test_killed_guard_does_not_end_a_run_whose_agent_lives(home: Home) -> None:
    run = start_waiting_run(home)
    kill_guard(home, run)
    home.recover()
    assert is_alive(run.pid or 0)
    assert home.get(run.id).is_live
    (home.work / "go").touch()
    home.wait_for_end(run.id)


def test_terminal_run_ends_with_its_supervisor_and_reports_it(home: Home) -> None:
    """The supervisor owned the terminal, so its death sends SIGHUP to the agent."""
    run = start_waiting_run(home, "--pty")
    kill_process(run.supervisor_pid)
    home.recover()
    ended = home.wait_for_end(run.id)
    assert ended.state is RunState.CRASHED
    assert (ended.exit_code, ended.signal) == (None, signal.SIGHUP)
    assert not home.processes_of(run)


def test_terminal_program_that_ignores_sighup_is_killed(home: Home) -> None:
    run = start_waiting_run(home, "--pty", script="trap '' HUP; " + WAIT_FOR_GO)
    kill_process(run.supervisor_pid)
    home.recover()
    assert home.get(run.id).is_live == bool(home.processes_of(run))
    (home.work / "go").touch()
    ended = home.wait_for_end(run.id)
    assert not home.processes_of(run)
    assert ended.state in (RunState.FAILED, RunState.CRASHED)
    home.wait_for_all_processes()


def test_supervisor_that_gets_sigterm_interrupts_its_run(home: Home) -> None:
    run = start_waiting_run(home)
    kill_process(run.supervisor_pid, signal.SIGTERM)
    ended = home.wait_for_end(run.id)
    assert ended.state is RunState.INTERRUPTED
    assert not home.processes_of(run)
    home.wait_for_all_processes()


def test_sigterm_during_the_start_interrupts_the_run() -> None:
    calls: list[str] = []
    supervisor: Any = SimpleNamespace(interrupt=lambda: calls.append("interrupt"))
    handler = signal.getsignal(signal.SIGTERM)
    try:
        termination = Termination()
        signal.raise_signal(signal.SIGTERM)
        assert calls == []
        termination.set_supervisor(supervisor)
        assert calls == ["interrupt"]
        signal.raise_signal(signal.SIGTERM)
        assert calls == ["interrupt"] * 2
    finally:
        signal.signal(signal.SIGTERM, handler)


def test_supervisor_ignores_sighup_and_sigint(home: Home) -> None:
    run = start_waiting_run(home)
    kill_process(run.supervisor_pid, signal.SIGHUP)
    kill_process(run.supervisor_pid, signal.SIGINT)
    (home.work / "go").touch()
    assert home.wait_for_end(run.id).exit_code == 5


def test_supervisor_that_was_stopped_during_a_takeover_does_no_harm(home: Home) -> None:
    """The old supervisor is stopped past its lease and resumes after the takeover."""
    run = start_waiting_run(home)
    stop_without_lock(home, run.supervisor_pid)
    identity = process.identify(os.getpid())
    assert identity is not None
    with home.store() as store:
        taken_over = store.internal.runs.take_over(
            run, owner="test", supervisor_pid=identity.pid, supervisor_token=identity.start_token
        )
    kill_process(run.supervisor_pid, signal.SIGCONT)
    wait_until(lambda: not is_alive(run.supervisor_pid or 0), "the old supervisor exits")
    assert is_alive(run.pid or 0), "the old supervisor did not signal the agent"
    current = home.get(run.id)
    assert (current.state, current.fence, current.owner) == (
        RunState.RUNNING,
        taken_over.fence,
        "test",
    )
    (home.work / "go").touch()
    wait_until(lambda: not is_alive(run.pid or 0), "the agent ended")


def test_stopped_supervisor_whose_run_was_ended_kills_its_agent(home: Home) -> None:
    run = start_waiting_run(home)
    stop_without_lock(home, run.supervisor_pid)
    with home.store() as store:
        store.internal.runs.end_orphaned(run, verb="crash", reason="lost in a test")
    kill_process(run.supervisor_pid, signal.SIGCONT)
    wait_until(lambda: not home.processes_of(run), "the processes of the ended run are killed")
    current = home.get(run.id)
    assert (current.state, current.reason) == (RunState.CRASHED, "lost in a test")
    home.wait_for_all_processes()


def test_replaced_supervisor_does_not_signal_the_next_attempt(home: Home) -> None:
    """Two homes of one machine may share a store: the next attempt may run beside the old one."""
    run = start_waiting_run(home)
    stop_without_lock(home, run.supervisor_pid)
    identity = process.identify(os.getpid())
    assert identity is not None
    with home.store() as store, home.environment():
        taken_over = store.internal.runs.take_over(
            run, owner="test", supervisor_pid=identity.pid, supervisor_token=identity.start_token
        )
        write(
            store,
            lambda tx: supervision.retry(
                tx, taken_over, ExitStatus(), reason="lost", quick_failures=0
            ),
        )
        store.runs.start_queued()
    following = home.in_state(run.id, RunState.RUNNING)
    assert following.attempts == 2
    kill_process(run.supervisor_pid, signal.SIGCONT)
    wait_until(lambda: not is_alive(run.supervisor_pid or 0), "the old supervisor exits")
    assert not is_alive(run.pid or 0), "the old attempt is ended"
    assert is_alive(following.pid or 0), "the next attempt continues"
    (home.work / "go").touch()
    assert home.wait_for_end(run.id).attempts == 2


def test_output_of_an_agent_whose_processes_were_all_killed_is_read(home: Home) -> None:
    run = home.start_agent("scripted", "say the last line; hang")
    wait_until(lambda: b"the last line" in home.output_so_far(run), "the agent printed a line")
    run = home.in_state(run.id, RunState.RUNNING)
    for pid in (run.supervisor_pid, home.guard_pid(run), run.pid):
        kill_process(pid)
    with home.environment():
        (recovered,) = home.recover()
    assert recovered.state is RunState.CRASHED
    ended = home.get(run.id)
    assert (ended.state, ended.exit_code, ended.signal) == (RunState.CRASHED, None, None)
    assert ended.session_id is not None
    with home.store() as store:
        turns = store.sessions.turns(ended.session_id).items
    assert "the last line" in [turn.content for turn in turns]
    home.wait_for_all_processes()


def test_recovery_ends_a_run_whose_new_supervisor_died_before_it_did(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    class LostSupervisor(StartingSupervisor):
        """Takes the run over and exits."""

        def start(self, **order: Any) -> dict[str, Any]:
            identity = process.identify(self.pid)
            assert identity is not None
            with home.store() as store:
                run = store.internal.runs.take_over(
                    store.runs.get(order["run"]),
                    owner="test",
                    supervisor_pid=identity.pid,
                    supervisor_token=identity.start_token,
                )
            self.cancel()
            return {"pid": run.pid}

    run = home.start_agent("scripted", "say a line; hang")
    wait_until(lambda: b"a line" in home.output_so_far(run), "the agent printed a line")
    run = home.in_state(run.id, RunState.RUNNING)
    for pid in (run.supervisor_pid, home.guard_pid(run), run.pid):
        kill_process(pid)
    monkeypatch.setattr(supervisor_process, "StartingSupervisor", LostSupervisor)
    with home.environment():
        (recovered,) = home.recover()
    assert (recovered.run_id, recovered.state) == (run.id, RunState.CRASHED)


@on_both_engines
def test_concurrent_recoveries_start_one_new_supervisor(home: Home) -> None:
    run = start_waiting_run(home)
    kill_process(run.supervisor_pid)
    others = [home.begin("recover", "--json") for _ in range(3)]
    for other in others:
        _, err = other.communicate(timeout=60)
        assert other.returncode == 0, err
    assert home.events(run).count("take_over") == 1
    # The supervisors that lost the race exit; one is left.
    taken_over = home.get(run.id)

    def supervisors() -> list[int]:
        return [
            pid
            for pid in home.processes()
            if "corral.supervisor" in " ".join(process.read_command_line(pid))
        ]

    wait_until(
        lambda: set(supervisors()) - {home.guard_pid(run)} == {taken_over.supervisor_pid},
        "one supervisor",
    )
    (home.work / "go").touch()
    assert home.wait_for_end(run.id).exit_code == 5


def test_concurrent_recoveries_end_a_dead_run_once(home: Home) -> None:
    script = "(setsid sleep 600 & echo $! >child.part; mv child.part child); " + WAIT_FOR_GO
    run = start_waiting_run(home, script=script)
    child = home.read_pid("child")
    for pid in (run.supervisor_pid, home.guard_pid(run), run.pid):
        kill_process(pid)
    others = [home.begin("recover", "--json") for _ in range(3)]
    for other in others:
        _, err = other.communicate(timeout=60)
        assert other.returncode == 0, err
    ended = home.get(run.id)
    assert (ended.state, ended.exit_code, ended.signal) == (RunState.CRASHED, None, None)
    assert ended.reason == "gone"
    assert home.events(run).count("crash") == 1
    assert not is_alive(child), "its orphaned child is killed"
    assert not home.processes_of(run)
    home.wait_for_all_processes()
    home.recover()
    with home.store() as store:
        assert store.outputs.get(run.id).state == "sealed"


def test_processes_of_the_last_attempt_are_ended_before_the_next(home: Home) -> None:
    start_child = "[ -e child ] || (setsid sleep 600 & echo $! >child.part; mv child.part child)"
    script = f"{start_child}; touch started; while [ ! -e go ]; do sleep 0.1; done"
    run = start_waiting_run(home, "--restart", "on-failure:2", script=script)
    child = home.read_pid("child")
    for pid in (run.supervisor_pid, home.guard_pid(run), run.pid):
        kill_process(pid)
    home.recover()
    assert not is_alive(child)
    (home.work / "go").touch()
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.attempts) == (RunState.COMPLETED, 2)


def test_recorded_process_that_vanished_is_detected(home: Home) -> None:
    import subprocess

    with subprocess.Popen(["sleep", "600"]) as other_process, home.store() as store:
        run = store.runs.record(pid=other_process.pid)
        assert store.runs.recover() == []
        other_process.kill()
        other_process.wait()
        (recovered,) = store.runs.recover()
    assert (recovered.run_id, recovered.state) == (run.id, RunState.CRASHED)
    assert home.get(run.id).exit_code is None


def test_reused_pid_is_never_signalled(home: Home) -> None:
    """The recorded pid belongs to another process now: the run crashed, the process lives on."""
    import subprocess

    run = start_waiting_run(home)
    guard = home.guard_pid(run)
    for pid in (run.supervisor_pid, guard, run.pid):
        kill_process(pid)
    with subprocess.Popen(["sleep", "600"], env={"PATH": os.environ["PATH"]}) as other_process:
        from corral.db.statement import Statement

        with home.store() as store:
            move = Statement("UPDATE runs SET pid = :pid, supervisor_pid = :pid WHERE id = :id")
            write(store, lambda tx: tx.run(move, pid=other_process.pid, id=run.id))
            store.runs.recover()
            current = store.runs.get(run.id)
        assert (current.state, current.reason) == (RunState.CRASHED, "pid reused")
        assert current.exit_code is None
        assert other_process.poll() is None
        other_process.kill()


def test_run_of_an_earlier_boot_is_interrupted(home: Home) -> None:
    from corral.db.statement import Statement

    run = start_waiting_run(home)
    pids = (run.supervisor_pid, home.guard_pid(run), run.pid)
    for pid in pids:
        kill_process(pid)
    with home.store() as store:
        faked = Statement("UPDATE runs SET boot_id = 'another' WHERE id = :id")
        write(store, lambda tx: tx.run(faked, id=run.id))
        store.runs.recover()
    ended = home.get(run.id)
    assert (ended.state, ended.reason, ended.exit_code) == (RunState.INTERRUPTED, "rebooted", None)


def test_stream_is_continued_after_a_takeover(home: Home) -> None:
    """Output that was written without a supervisor is in the session exactly once."""
    killed, replaced = home.folder / "killed", home.folder / "replaced"
    run = home.start_agent(
        "scripted",
        f"say one; await {killed}; say two; say three; await {replaced}; say four; spend 10 5",
    )
    session = run.session_id
    assert session is not None

    def list_assistant_texts() -> list[str]:
        with home.store() as store:
            return [t.content for t in store.sessions.turns(session).items if t.role == "assistant"]

    wait_until(lambda: "one" in list_assistant_texts(), "the first text")
    kill_process(run.supervisor_pid)
    killed.touch()
    folder: Path = home.folder_of(run)
    wait_until(lambda: b"three" in (folder / "output").read_bytes(), "the agent continued")
    home.recover()
    replaced.touch()
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.exit_code) == (RunState.COMPLETED, 0)
    assert list_assistant_texts() == ["one", "two", "three", "four"]
    assert ended.tokens == 15


def test_deleted_run_ends_the_agent_and_its_output_stays(home: Home) -> None:
    """The store was replaced by another one, which does not contain the run."""
    with home.store() as store:
        empty = store.db.backup(home.folder / "empty.db")
        run = home.start_detached("sh", "-c", "echo output; touch started; exec sleep 600")
        wait_until((home.work / "started").exists, "the program started")
        home.in_state(run.id, RunState.RUNNING)
        refused = home.corral("db", "restore", str(empty), "--yes")
        assert refused.returncode != 0
        assert run.id.encode() in refused.stderr
        previous = home.folder / "kept.db" if store.db.path is not None else None
        store._database.restore(empty, previous)
        # Makes the supervisor notice at once instead of at its next heartbeat.
        control_socket.send_request(home.folder_of(run), op="stop")
        home.wait_for_all_processes()
        assert not store.runs.list().items
    assert (home.folder_of(run) / "output").read_bytes() == b"output\n"
    assert not (home.folder_of(run) / "supervisor.error").exists()
