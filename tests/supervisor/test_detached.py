"""Detached runs: start, list, wait, stop, restart, queue, and files."""

import json
import os
import signal
import stat
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from corral.domain.runs.model import Run, RunState
from corral.kernel.errors import Conflict
from corral.supervisor.main import _supervise
from tests.support.home import Home, is_alive, wait_until

on_both_engines = pytest.mark.parametrize("engine", ["sqlite", "postgres"])


def start_tree(home: Home, script: str, *options: str) -> tuple[Run, int]:
    """Start a Python script that writes the pid of its child into the file `child`."""
    (home.work / "tree.py").write_text(script)
    run = home.start_detached(sys.executable, "-S", "tree.py", options=options)
    return run, home.read_pid("child")


WRITE_PID = """
import os, signal, sys, time
def write_pid():
    open("child.part", "w").write(f"{os.getpid()}\\n")
    os.rename("child.part", "child")
"""


def test_detached_run_is_queued_by_the_caller_and_run_by_its_supervisor(
    home: Home,
) -> None:
    outer = home.start_detached("sleep", "600")
    inner = home.start_detached("true", env={"CORRAL_RUN": outer.id, "CORRAL_AGENT": "ada"})
    home.wait_for_end(inner.id)
    with home.store() as store:
        events = store.events.newest(subject=inner.id, limit=100).items
        actors = {event.verb: event.actor for event in events if event.kind == "run"}
    assert home.get(inner.id).parent_id == outer.id
    # CORRAL_RUN is used. The agent is read from the run; CORRAL_AGENT is ignored.
    assert (actors["queue"], actors["start"]) == (f"run:{outer.id}", "supervisor")
    assert home.get(outer.id).is_live, "processes of the inner run are not counted as its own"


def test_errors_of_a_detached_run_are_reported_like_other_errors(home: Home) -> None:
    home.start_detached("sleep", "600", options=("--name", "one"))
    same = home.corral("run", "-d", "--name", "one", "--json", "--", "true")
    reply = json.loads(same.stderr)["error"]
    assert (same.returncode, reply["code"], reply["details"]["name"]) == (4, "conflict", "one")
    no_reference = home.corral("run", "-d", "--secret", "A=hunter2hunter2", "--", "true")
    assert no_reference.returncode == 2
    assert b"hunter2" not in no_reference.stderr
    no_project = home.corral("run", "-d", "--project", "nowhere", "--", "true")
    assert no_project.returncode == 2
    (home.work / "no.db").write_bytes(b"not a database!!" * 1_000)
    no_store = home.corral("run", "-d", "--store", "sqlite:///no.db", "--", "true")
    assert no_store.returncode == 5
    assert len(home.json("ps", "-a", "--json")) == 1


def test_modules_of_the_project_are_not_imported_by_the_supervisor(home: Home) -> None:
    (home.work / "socket.py").write_text("raise SystemExit('imported from the project')")
    run = home.start_detached("sh", "-c", "exit 3")
    assert home.wait_for_end(run.id).exit_code == 3


@on_both_engines
def test_detached_run_is_running_when_the_command_returns(home: Home) -> None:
    started = home.json("run", "-d", "--name", "sleeper", "--json", "--", "sleep", "600")
    assert started["state"] == "running"
    assert is_alive(started["pid"])
    assert Path(f"/proc/{started['pid']}/comm").read_text() == "sleep\n"
    (listed,) = home.json("ps", "--json")
    assert (listed["id"], listed["state"]) == (started["id"], "running")
    stopped = home.json("stop", "sleeper", "--json")
    assert stopped["state"] == "cancelled"
    assert not is_alive(started["pid"])
    assert home.json("ps", "--json") == []
    assert [run["state"] for run in home.json("ps", "-a", "--json")] == ["cancelled"]


def test_wait_returns_the_exit_code_and_logs_shows_the_output(home: Home) -> None:
    run = home.start_detached("sh", "-c", "echo hello; echo wrong >&2; exit 9")
    result = home.corral("wait", run.id)
    assert result.returncode == 9
    ended = home.get(run.id)
    assert (ended.state, ended.exit_code) == (RunState.FAILED, 9)
    home.wait_for_all_processes()
    completed = home.corral("logs", run.id)
    assert completed.stdout == b"hello\nwrong\n"
    assert ended.output_bytes == len(completed.stdout)


def test_wait_reports_a_timeout(home: Home) -> None:
    run = home.start_detached("sleep", "600")
    result = home.corral("wait", "--timeout", "100ms", run.id)
    assert result.returncode == 4
    assert b"still running" in result.stderr


def test_resuming_a_command_runs_it_again(home: Home) -> None:
    run = home.start_detached("sh", "-c", "echo x >>count; wc -l <count")
    home.wait_for_end(run.id)
    result = home.corral("resume", run.id)
    assert (result.returncode, result.stdout.strip()) == (0, b"2")
    live = home.start_detached("sleep", "600")
    refused = home.corral("resume", live.id)
    assert refused.returncode == 4
    assert b"running" in refused.stderr


# -- stop --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script",
    [
        "signal.signal(15, signal.SIG_IGN); write_pid(); time.sleep(600)",
        "write_pid(); os.kill(os.getpid(), signal.SIGSTOP); time.sleep(600)",
        # The children resist in different ways; the last one keeps forking.
        """
def child(action, *, session=False, twice=False, ignore_term=True):
    if os.fork() == 0:
        if session:
            os.setsid()
        if twice and os.fork():
            os._exit(0)
        if ignore_term:
            signal.signal(15, signal.SIG_IGN)
        action()
        time.sleep(600)
def fork_repeatedly():
    signal.signal(17, signal.SIG_IGN)
    write_pid()
    while True:
        if os.fork() == 0:
            time.sleep(5); os._exit(0)
        time.sleep(0.05)
child(lambda: None)
child(lambda: None, session=True, ignore_term=False)
child(lambda: None, session=True, twice=True)
child(lambda: os.kill(os.getpid(), signal.SIGSTOP), ignore_term=False)
child(fork_repeatedly)
time.sleep(600)
""",
    ],
    ids=["ignores TERM", "is stopped", "in its children"],
)
def test_stop_ends_the_whole_process_tree(home: Home, script: str) -> None:
    run, child = start_tree(home, WRITE_PID + script, "--grace-period", "300ms")
    ended = home.json("stop", run.id, "--json")
    assert ended["state"] == "cancelled"
    assert not is_alive(child)
    assert not home.processes_of(run)
    assert ended["exit_code"] is None or ended["signal"] is None


def test_program_may_exit_cleanly_within_the_grace_period(home: Home) -> None:
    run, _ = start_tree(
        home,
        WRITE_PID + "def exit_cleanly(*_):\n    print('goodbye', flush=True)\n    time.sleep(0.3)\n"
        "    sys.exit(0)\nsignal.signal(15, exit_cleanly)\nwrite_pid()\n"
        "while True:\n    time.sleep(600)",
        *("--grace-period", "10m"),
    )
    ended = home.json("stop", run.id, "--json", "--reason", "no longer needed")
    assert (ended["state"], ended["exit_code"], ended["reason"]) == (
        "cancelled",
        0,
        "no longer needed",
    )
    home.wait_for_all_processes()
    assert home.output(home.get(run.id)) == b"goodbye\n"


def test_concurrent_stops_end_a_run_once(home: Home) -> None:
    run = home.start_detached("sleep", "600")
    stops = [home.begin("stop", run.id, "--json") for _ in range(3)]
    for stop in stops:
        out, err = stop.communicate(timeout=60)
        # A stop that comes after the end is rejected and names the state.
        assert (stop.returncode, b"cancelled" in out + err) in ((0, True), (4, True))
    assert [stop.returncode for stop in stops].count(0) >= 1
    assert home.events(run).count("cancel") == 1
    late = home.corral("stop", run.id)
    assert late.returncode == 4
    assert b"cancelled" in late.stderr


def test_stop_does_not_signal_unrelated_processes(home: Home) -> None:
    bystander = home.start_detached("sleep", "600")
    run = home.start_detached("sleep", "600")
    home.json("stop", run.id, "--json")
    assert home.get(bystander.id).state is RunState.RUNNING
    assert is_alive(bystander.pid or 0)


def test_shorter_grace_period_applies_to_a_pending_stop(home: Home) -> None:
    run, child = start_tree(
        home,
        WRITE_PID + "signal.signal(15, signal.SIG_IGN)\nwrite_pid()\ntime.sleep(600)",
        "--grace-period",
        "10m",
    )
    with home.store() as store:
        store.runs.stop(run.id)
    assert is_alive(child)
    ended = home.json("stop", run.id, "--grace-period", "100ms", "--json")
    assert ended["state"] == "cancelled"
    assert ended["signal"] == signal.SIGKILL


def test_daemonized_child_ends_with_its_run(home: Home) -> None:
    """The run ends with its agent. Remaining processes are killed, and the log names them."""
    run, child = start_tree(
        home,
        WRITE_PID + "if os.fork() == 0:\n    os.setsid()\n    if os.fork():\n        os._exit(0)\n"
        "    write_pid()\n    time.sleep(600)\n"
        "while not os.path.exists('child'):\n    time.sleep(0.01)\n"
        "sys.exit(3)",
    )
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.exit_code) == (RunState.FAILED, 3)
    assert not is_alive(child)
    home.wait_for_all_processes()
    assert any("left processes behind" in line for line in home.log(ended))


# -- limits ------------------------------------------------------------------------------------


def test_time_limit_ends_a_run_as_timed_out(home: Home) -> None:
    result = home.corral("run", "--timeout", "300ms", "--", "sleep", "600")
    assert result.returncode == 124
    run = home.only_run()
    assert run.state is RunState.TIMED_OUT
    home.wait_for_all_processes()


def test_idle_run_with_idle_exit_completes(home: Home) -> None:
    run = home.start_detached(
        "sh", "-c", "echo output; sleep 600", options=("--idle-exit", "500ms")
    )
    ended = home.wait_for_end(run.id)
    assert ended.state is RunState.COMPLETED
    assert ended.reason == "no activity within the idle timeout"
    home.wait_for_all_processes()


def test_run_that_writes_is_not_idle(home: Home) -> None:
    # It writes for longer than the idle timeout, and much more often than required.
    script = "for n in $(seq 70); do echo $n; sleep 0.1; done; exit 3"
    run = home.start_detached("sh", "-c", script, options=("--idle-exit", "5s"))
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.exit_code) == (RunState.FAILED, 3)


def test_three_quick_failures_end_a_run(home: Home) -> None:
    run = home.start_detached(
        "sh", "-c", "echo x >>count; exit 4", options=("--restart", "on-failure:9")
    )
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.exit_code) == (RunState.FAILED, 4)
    # On a busy machine an attempt may be slow, which resets the count.
    assert 3 <= ended.attempts < 10, "the run ended before it used all restarts"
    assert (home.work / "count").read_text() == "x\n" * ended.attempts
    assert home.events(ended).count("restart") == ended.attempts - 1


def test_restarts_end_at_the_first_success(home: Home) -> None:
    script = "echo x >>count; test $(wc -l <count) -ge 3 && exit 0; kill -9 $$"
    run = home.start_detached("sh", "-c", script, options=("--restart", "on-failure:5"))
    # Only consecutive quick failures count. The third attempt succeeds.
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.exit_code, ended.attempts) == (RunState.COMPLETED, 0, 3)


def test_stop_between_two_attempts_ends_the_run(home: Home) -> None:
    run = home.start_detached("sh", "-c", "exit 1", options=("--restart", "on-failure:9"))
    wait_until(lambda: home.get(run.id).attempts >= 2, "the second attempt")
    with home.store() as store:
        store.runs.stop(run.id)
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.reason) == (RunState.CANCELLED, "stopped")
    home.wait_for_all_processes()
    assert "restart" not in home.events(ended)[home.events(ended).index("stop") :]


def test_slow_failures_do_not_count_as_quick(home: Home) -> None:
    script = "echo x >>count; sleep 3.2; exit 1"
    run = home.start_detached("sh", "-c", script, options=("--restart", "on-failure:3"))
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.attempts) == (RunState.FAILED, 4)


# -- queue -------------------------------------------------------------------------------------


def allow_one_run(home: Home) -> None:
    with home.store() as store:
        store.settings.set("runs.max_concurrent", 1)


def test_queued_runs_of_projects_take_turns(home: Home) -> None:
    allow_one_run(home)
    for name in ("a", "b"):
        (home.work / name).mkdir()
    log = home.work / "log"
    first = home.start_detached("sh", "-c", "while [ ! -e go ]; do sleep 0.1; done")
    queued_ids = []
    for folder, number in (("a", 1), ("a", 2), ("a", 3), ("b", 1)):
        script = f"echo {folder}{number} >>'{log}'"
        queued = home.start_detached(
            "sh", "-c", script, options=("--project", str(home.work / folder))
        )
        assert queued.state is RunState.QUEUED
        queued_ids.append(queued.id)
    (home.work / "go").touch()
    for id in (first.id, *queued_ids):
        assert home.wait_for_end(id).state is RunState.COMPLETED
    order = log.read_text().split()
    assert order[0] == "a1"
    assert order.index("b1") < order.index("a3")
    assert sorted(order) == ["a1", "a2", "a3", "b1"]
    home.wait_for_all_processes()


def test_foreground_run_waits_in_the_queue_and_is_then_shown(home: Home) -> None:
    allow_one_run(home)
    first = home.start_detached("sh", "-c", "while [ ! -e go ]; do sleep 0.1; done")
    with home.begin("run", "--", "sh", "-c", "echo at last; exit 3") as command:
        assert command.stderr is not None
        notice = command.stderr.readline()
        assert notice.count(b"is queued") == 1
        assert b"runs.max_concurrent" in notice
        assert b"`corral stop run_" in notice
        (home.work / "go").touch()
        out, _ = command.communicate(timeout=60)
    assert (command.returncode, out) == (3, b"at last\n")
    assert home.get(first.id).state is RunState.COMPLETED


def test_queued_run_that_is_stopped_never_starts(home: Home) -> None:
    allow_one_run(home)
    first = home.start_detached("sleep", "600")
    second = home.start_detached("touch", "never")
    assert home.json("stop", second.id, "--json")["state"] == "cancelled"
    home.json("stop", first.id, "--json")
    home.wait_for_all_processes()
    assert not (home.work / "never").exists()


def test_queued_run_that_cannot_start_does_not_block_the_queue(home: Home, tmp_path: Path) -> None:
    allow_one_run(home)
    first = home.start_detached("sh", "-c", "while [ ! -e go ]; do sleep 0.1; done")
    for command in (["no-such-program"], ["touch", "started"]):
        assert home.start_detached(*command).state is RunState.QUEUED
    (home.work / "go").touch()
    home.wait_for_end(first.id)
    wait_until((home.work / "started").exists, "the next queued run started")


# -- nested runs ------------------------------------------------------------------------------


def test_nested_run_has_a_parent_and_survives_its_stop(home: Home) -> None:
    start = f"{sys.executable} -m corral run -d --json -- sleep 600"
    script = f"{start} >inner; touch inner-started; sleep 600"
    outer = home.start_detached("sh", "-c", script, options=("--grace-period", "300ms"))
    wait_until((home.work / "inner-started").exists, "the inner run was started")
    reply = json.loads((home.work / "inner").read_text())
    assert reply["parent_id"] == outer.id
    home.json("stop", outer.id, "--json")
    run = home.get(reply["id"])
    assert run.state is RunState.RUNNING
    assert is_alive(run.pid or 0)
    assert is_alive(run.supervisor_pid or 0)
    home.json("stop", run.id, "--json")


def test_foreground_run_inside_a_run_gets_its_signals(home: Home) -> None:
    program = "touch inner-started; exec sleep 600"
    script = f"{sys.executable} -m corral run --name inner -- sh -c '{program}'"
    outer = home.start_detached("sh", "-c", script, options=("--grace-period", "10m"))
    wait_until((home.work / "inner-started").exists, "the inner run was started")
    run = home.get("inner")
    assert run.parent_id == outer.id
    home.json("stop", outer.id, "--json")
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.signal) == (RunState.CANCELLED, signal.SIGTERM)


# -- files -------------------------------------------------------------------------------------


def test_run_that_fills_the_disk_ends_in_the_correct_state(home: Home, tmp_path: Path) -> None:
    import subprocess

    small_disk = tmp_path / "home" / "runs"
    small_disk.mkdir(parents=True, exist_ok=True)
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "tmpfs", str(small_disk)],
        capture_output=True,
        check=False,
    )
    if mount.returncode:
        pytest.skip("mounting a tmpfs requires root")
    try:
        run = home.start_detached("sh", "-c", "yes | head -c 8000000; echo $? >&2; exit 7")
        ended = home.wait_for_end(run.id)
        assert (ended.state, ended.exit_code) == (RunState.FAILED, 7)
        home.wait_for_all_processes()
        assert ended.output_bytes > 1_000_000
        with home.store() as store:
            output = store.outputs.get(run.id)
            assert output.state in ("open", "sealed", "lost"), output
        refused = home.corral("run", "--", "true")
        assert refused.returncode == 0 or b"No space left" in refused.stderr, refused.stderr
        with home.store() as store:
            store.runs.delete(run.id)
        pty_run = home.start_detached(
            "sh", "-c", "yes | head -c 8000000; exit 7", options=("--pty",)
        )
        ended = home.wait_for_end(pty_run.id)
        assert ended.state is RunState.FAILED
        assert ended.exit_code == 7
    finally:
        home.kill_processes()
        subprocess.run(["umount", "-l", str(small_disk)], check=True)


def test_deleting_a_run_deletes_its_files_and_is_refused_while_it_is_live(home: Home) -> None:
    run = home.start_detached("sh", "-c", "echo hello; while [ ! -e go ]; do sleep 0.1; done")
    with home.store() as store:
        with pytest.raises(Conflict):
            store.runs.delete(run.id)
        (home.work / "go").touch()
        home.wait_for_end(run.id)
        home.wait_for_all_processes()
        assert home.folder_of(run).exists()
        store.runs.delete(run.id)
    assert not home.folder_of(run).exists()


def test_supervisors_leave_no_zombies_and_no_files(home: Home) -> None:
    before = set(os.listdir("/tmp"))
    run = home.start_detached("true")
    ended = home.wait_for_end(run.id)
    home.wait_for_all_processes()
    assert not (home.folder_of(run) / "control.sock").exists()
    assert not (home.folder_of(run) / "supervisor.error").exists()
    assert not {name for name in set(os.listdir("/tmp")) - before if run.id in name}
    assert home.get(run.id).ended_at == ended.ended_at


def test_files_of_a_run_are_private(home: Home) -> None:
    before = os.umask(0)
    try:
        prompt = "say so; hang"
        runs = [home.start_agent("scripted", prompt), home.start_agent("scripted", prompt, "--acp")]
        runs.append(home.start_detached("sh", "-c", "head -c 5000000 /dev/zero; sleep 600"))
        runs.append(home.start_detached("sleep", "600", options=("--pty",)))
    finally:
        os.umask(before)
    wait_until(lambda: len(home.output_so_far(runs[2])) >= 5_000_000, "the output was written")
    for moment in ("running", "ended"):
        for run in runs:
            folder = home.folder_of(run)
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()}
            assert {*modes.values()} == {0o600}, (moment, modes)
            if moment == "running":
                home.corral("stop", run.id)
        if moment == "running":
            home.wait_for_all_processes()


def test_error_file_of_a_supervisor_is_private(tmp_path: Path) -> None:
    class FailingSupervisor:
        folder, secrets = tmp_path, ["hunter2-7f3a"]

        def supervise(self) -> Run:
            raise RuntimeError("hunter2-7f3a is not a number")

    before = os.umask(0)
    try:
        with pytest.raises(RuntimeError):
            _supervise(SimpleNamespace(runs=None), FailingSupervisor())
    finally:
        os.umask(before)
    error_file = tmp_path / "supervisor.error"
    assert stat.S_IMODE(error_file.stat().st_mode) == 0o600
    assert "RuntimeError: [redacted] is not a number" in error_file.read_text()


@pytest.mark.parametrize("engine", ["postgres"])
def test_idle_supervisor_holds_no_connection(home: Home, url: str) -> None:
    """Hundreds of supervisors share a server that allows 100 connections."""
    import psycopg

    runs = [home.start_detached("sleep", "600") for _ in range(2)]
    count = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
    count += " AND application_name = 'corral'"
    with psycopg.connect(url, autocommit=True) as server:
        wait_until(lambda: server.execute(count).fetchone() == (0,), "no connection is open")
    assert all(home.get(run.id).state is RunState.RUNNING for run in runs)


def test_show_prints_everything_about_a_run(home: Home) -> None:
    run = home.start_detached("true", options=("--timeout", "90s", "--env", "COLOUR=blue"))
    home.wait_for_end(run.id)
    details = home.json("show", run.id, "--json")
    assert details["id"] == run.id
    assert details["launch"]["timeout_ms"] == 90_000
    assert details["launch"]["env"] == {"COLOUR": "blue"}
    assert details["launch"]["environment"]
    assert {"prompt", "budget_micros", "idle_ms", "max_output_bytes"} <= details["launch"].keys()
    assert isinstance(details["samples"], list)
    with home.store() as store:
        recorded = store.runs.record(project=str(home.work), pid=os.getpid(), args=["x"])
    details = home.json("show", recorded.id, "--json")
    assert (details["id"], details["samples"]) == (recorded.id, [])
