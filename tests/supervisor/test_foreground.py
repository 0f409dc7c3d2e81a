"""`corral run` in the foreground without a terminal: streams, signals, exit codes, secrets."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from corral.adapters.processes import process
from corral.domain.runs.model import Run, RunState
from tests.support.home import CORRAL, Home, wait_until

on_both_engines = pytest.mark.parametrize("engine", ["sqlite", "postgres"])


def wait_for_start(home: Home) -> Run:
    """Wait until the program has created the file `started`, and return the only run."""
    wait_until((home.work / "started").exists, "the program started")
    return home.only_run()


@on_both_engines
def test_stdin_stdout_and_stderr_are_passed_through_separately(home: Home) -> None:
    result = home.corral("run", "--", "sh", "-c", "cat; echo wrong >&2", input=b"typed\n")
    assert (result.returncode, result.stdout, result.stderr) == (0, b"typed\n", b"wrong\n")
    run = home.only_run()
    assert run.state is RunState.COMPLETED
    assert run.exit_code == 0
    home.wait_for_all_processes()
    assert home.output(run) == b"typed\n"
    assert home.output(run, "stderr") == b"wrong\n"


@pytest.mark.parametrize(
    ("command", "code", "state"),
    [
        ("exit 255", 255, RunState.FAILED),
        ("kill -9 $$", 137, RunState.CRASHED),
        ("kill -SEGV $$", 139, RunState.CRASHED),
        ("kill -PIPE $$", 141, RunState.CRASHED),
    ],
)
def test_run_exits_with_the_exit_code_of_the_command(
    home: Home, command: str, code: int, state: RunState
) -> None:
    result = home.corral("run", "--", "sh", "-c", command)
    assert result.returncode == code, result.stderr
    run = home.only_run()
    assert run.state is state
    if code > 128 and code != 255:
        assert (run.exit_code, run.signal) == (None, code - 128)
    else:
        assert (run.exit_code, run.signal) == (code, None)


@pytest.mark.parametrize(
    ("command", "code"), [("no\x1b[31msuch-program", 127), ("/etc/passwd", 126), ("/", 126)]
)
def test_command_that_cannot_be_executed_is_one_clear_error(
    home: Home, command: str, code: int
) -> None:
    result = home.corral("run", "--", command)
    assert (result.returncode, result.stdout) == (code, b"")
    assert result.stderr.count(b"\n") == 1
    assert command.replace("\x1b", "\\x1b").encode() in result.stderr, (
        "escape sequences are escaped"
    )
    run = home.only_run()
    assert (run.state, run.exit_code, run.signal) == (RunState.FAILED, code, None)
    assert command in (run.reason or "")
    home.wait_for_all_processes()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGQUIT])
def test_signal_is_forwarded_to_the_program(home: Home, number: signal.Signals) -> None:
    script = (
        f"trap 'echo trapped; exit 7' {number.name[3:]}; touch started; while :; do sleep 0.1; done"
    )
    with home.begin("run", "--", "bash", "-c", script) as command:
        wait_for_start(home)
        command.send_signal(number)
        out, _ = command.communicate(timeout=60)  # bash reports the end of its sleep on stderr
    assert (command.returncode, out) == (7, b"trapped\n")
    assert home.only_run().state is RunState.FAILED


def test_run_ends_with_the_signal_that_ended_the_program(home: Home) -> None:
    with home.begin("run", "--", "sh", "-c", "touch started; exec sleep 600") as command:
        wait_for_start(home)
        command.send_signal(signal.SIGINT)
        command.communicate(timeout=60)
    assert command.returncode == 130
    assert (home.only_run().signal, home.only_run().state) == (signal.SIGINT, RunState.CANCELLED)


def test_stop_reason_cannot_contain_terminal_escapes(home: Home) -> None:
    with home.begin("run", "--", "sh", "-c", "touch started; exec sleep 600") as command:
        run = wait_for_start(home)
        with home.store() as store:
            store.runs.stop(run.id, reason="\x1b]0;title\x07 away")
        errors = command.communicate(timeout=60)[1].decode()
    assert "is cancelled: \\x1b]0;title\\x07 away." in errors


def test_sigstop_and_sigcont_reach_both_processes(home: Home) -> None:
    script = "touch started; while [ ! -e go ]; do sleep 0.1; done; echo continued"
    with home.begin("run", "--", "sh", "-c", script) as command:
        run = wait_for_start(home)
        assert run.pid is not None

        def state(pid: int) -> str:
            proc_stat = process.read_stat(pid)
            return proc_stat.state if proc_stat else "-"

        command.send_signal(signal.SIGTSTP)
        wait_until(lambda: state(command.pid) == "T", "the command is stopped")
        wait_until(lambda: state(run.pid or 0) == "T", "the program is stopped")
        assert home.get(run.id).state is RunState.RUNNING
        command.send_signal(signal.SIGCONT)
        wait_until(lambda: state(run.pid or 0) != "T", "the program continues")
        (home.work / "go").touch()
        out, _ = command.communicate(timeout=60)
    assert (command.returncode, out) == (0, b"continued\n")


def test_closed_stdout_ends_the_run(home: Home) -> None:
    command = home.begin(
        "run", "--grace-period", "1s", "--", "sh", "-c", "while :; do echo y; done"
    )
    assert command.stdout is not None
    assert command.stdout.readline() == b"y\n"
    command.stdout.close()
    command.wait(timeout=60)
    assert command.stderr is not None
    assert b"Traceback" not in command.stderr.read()
    command.stderr.close()
    run = home.wait_for_end(home.only_run().id)
    assert run.state is RunState.CANCELLED
    assert run.reason == "the reader of its output exited"
    home.wait_for_all_processes()


def test_every_byte_is_passed_through_unchanged(home: Home) -> None:
    data = bytes(range(256)) * 4_096
    result = home.corral("run", "--", "cat", input=data)
    assert result.stdout == data
    run = home.only_run()
    assert run.output_bytes == len(data)
    home.wait_for_all_processes()
    assert home.output(run) == data
    completed = home.corral("logs", run.id)
    assert completed.returncode == 0, completed.stderr


def test_binary_output_stays_readable(home: Home) -> None:
    result = home.corral("run", "--", "printf", r"a\377\376\000b\nlast\n")
    assert result.stdout == b"a\xff\xfe\0b\nlast\n"
    home.wait_for_all_processes()
    completed = home.corral("logs", home.only_run().id)
    assert completed.returncode == 0, completed.stderr
    assert b"last\n" in completed.stdout


def test_prompt_of_one_megabyte_reaches_the_agent(home: Home) -> None:
    prompt = b"word " * 209_716
    (home.work / "tool").write_text("#!/bin/sh\nwc -c\n")
    (home.work / "tool").chmod(0o755)
    with home.store() as store:
        store.agents.create("reader", command=f"{home.work}/tool")
    result = home.corral("run", "--agent", "reader", "-", input=prompt)
    assert result.returncode == 0, result.stderr
    assert abs(int(result.stdout) - len(prompt)) <= 2
    run = home.only_run()
    with home.store() as store:
        assert len(store.runs.get_launch(run.id).prompt or "") >= 1 << 20


def test_variables_are_set_and_a_value_that_looks_secret_is_rejected(home: Home) -> None:
    result = home.corral("run", "--env", "COLOUR=deep blue", "--", "sh", "-c", 'echo "$COLOUR"')
    assert result.stdout == b"deep blue\n"
    refused = home.corral("run", "--env", "MY_TOKEN=abc", "--", "true")
    assert refused.returncode == 4
    assert b"--secret MY_TOKEN=env:MY_TOKEN" in refused.stderr
    home.wait_for_all_processes()


def test_secret_is_only_in_the_environment_of_the_command(home: Home, tmp_path: Path) -> None:
    value = "hunter2-7f3a9c51e0"
    script = 'echo "it is $PASS"; touch started; while [ ! -e go ]; do sleep 0.1; done'
    env = home.env | {"THE_PASS": value}
    with home.begin(
        "run", "--secret", "PASS=env:THE_PASS", "--", "sh", "-c", script, env=env
    ) as command:
        run = wait_for_start(home)
        titles = [
            Path(f"/proc/{pid}/cmdline").read_bytes()
            for pid in home.processes()
            if Path(f"/proc/{pid}").exists()
        ]
        assert len(titles) >= 3
        assert not any(value.encode() in title for title in titles)
        (home.work / "go").touch()
        out, err = command.communicate(timeout=60)
    assert command.returncode == 0, err
    assert value.encode() not in out
    assert b"it is " in out
    home.wait_for_all_processes()
    assert value.encode() not in home.output(run)
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert value.encode() not in file.read_bytes(), file
    with home.store() as store:
        assert value not in str(store.events.after(limit=1_000).items)
        assert store.runs.get_launch(run.id).secrets == {"PASS": "env:THE_PASS"}


PRINT_SECRET = """
import os, sys, json
value = os.environ["PASS"]
coloured = "\\x1b[31m".join(value)
print("plain", coloured, flush=True)
print(json.dumps({"it": value}), json.dumps(json.dumps({"it": value})), flush=True)
print("loud", coloured, value, file=sys.stderr, flush=True)
open("started", "w").close()
"""


@pytest.mark.parametrize("terminal", [(), ("--pty",)])
def test_secret_with_escapes_or_in_pieces_is_redacted(
    home: Home, tmp_path: Path, terminal: tuple[str, ...]
) -> None:
    part = "oilu"  # ids and checksums never contain these letters
    value = f'hunter2-"{part}"\\9c51é'
    env = home.env | {"THE_PASS": value}
    options = (*terminal, "--secret", "PASS=env:THE_PASS")
    run = home.start_detached(sys.executable, "-c", PRINT_SECRET, options=options, env=env)
    home.wait_for_end(run.id)
    home.wait_for_all_processes()
    result = home.corral("logs", run.id).stdout.decode()
    assert "plain [redacted]" in result
    for text in (result, home.corral("logs", "--tail", "5", run.id).stdout.decode()):
        assert "hunter2" not in text
        assert part not in text
    assert not home.json("search", "--json", "hunter2")
    for file in tmp_path.rglob("*"):
        if file.is_file():
            assert part.encode() not in file.read_bytes(), file


def test_separate_stderr_is_redacted_while_it_is_written(home: Home) -> None:
    value = "hunter2-7f3a9c51e0"
    script = (
        'echo "out $PASS"; echo "err $PASS" >&2; '
        "touch started; while [ ! -e go ]; do sleep 0.1; done"
    )
    env = home.env | {"THE_PASS": value}
    with home.begin(
        "run", "--secret", "PASS=env:THE_PASS", "--", "sh", "-c", script, env=env
    ) as command:
        run = wait_for_start(home)
        errors = home.folder_of(run) / "stderr"
        wait_until(
            lambda: errors.exists() and errors.read_bytes().endswith(b"\n"), "stderr was copied"
        )
        assert errors.read_bytes() == b"err [redacted]\n"
        (home.work / "go").touch()
        out, err = command.communicate(timeout=60)
    assert (out, err) == (b"out [redacted]\n", b"err [redacted]\n")
    home.wait_for_all_processes()
    assert home.output(run, "stderr") == b"err [redacted]\n"


def test_unreadable_secret_is_a_clear_error_and_starts_nothing(home: Home) -> None:
    result = home.corral("run", "--secret", "PASS=env:NOT_SET", "--", "touch", "started")
    assert result.returncode != 0
    assert b"NOT_SET" in result.stderr
    assert b"Traceback" not in result.stderr
    assert not (home.work / "started").exists()
    with home.store() as store:
        assert not [run for run in store.runs.list().items if run.is_live]
    home.wait_for_all_processes()


def test_missing_directory_fails_the_run_and_is_named(home: Home, tmp_path: Path) -> None:
    folder = tmp_path / "place"
    folder.mkdir()
    with home.store() as store:
        run = store.runs.start(command=["true"], project=str(folder))
        folder.rmdir()
        store.runs.start_queued()
    ended = home.wait_for_end(run.id)
    assert ended.state is RunState.FAILED
    assert str(folder) in (ended.reason or "")
    result = home.corral("run", "--project", str(folder), "--", "true")
    assert result.returncode in (2, 3)
    assert str(folder).encode() in result.stderr
    assert result.stderr.count(b"\n") == 1
    home.wait_for_all_processes()


def test_run_survives_the_deletion_of_its_directory(home: Home) -> None:
    folder = home.work / "place"
    folder.mkdir()
    script = f"rmdir '{folder}'; touch '{home.work}/started'; echo done; exit 5"
    result = home.corral("run", "--project", str(folder), "--", "sh", "-c", script)
    assert (result.returncode, result.stdout) == (5, b"done\n")


def test_without_a_prompt_nothing_starts_and_no_supervisor_stays(home: Home) -> None:
    for arguments in ([], ["two", "words"], ["--nonsense"], ["--env", "x", "--", "true"]):
        result = home.corral("run", *arguments)
        assert result.returncode == 2
        assert result.stderr.count(b"\n") == 1
        assert result.stdout == b""
    home.wait_for_all_processes()
    with home.store() as store:
        assert not store.runs.list().items


def test_killed_foreground_command_leaves_the_run_running(home: Home) -> None:
    """The supervisor does not depend on the foreground command."""
    script = "touch started; while [ ! -e go ]; do sleep 0.1; done; echo continued"
    with home.begin("run", "--", "sh", "-c", script) as command:
        run = wait_for_start(home)
        command.kill()
        command.wait(timeout=60)
    (home.work / "go").touch()
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.exit_code) == (RunState.COMPLETED, 0)
    assert home.output(ended) == b"continued\n"


def test_program_inherits_nothing_of_its_supervisor(home: Home) -> None:
    """Descriptors, signals and environment are those that a shell would set."""
    script = (
        "import os, signal, sys\n"
        "print(sorted(int(n) for n in os.listdir('/proc/self/fd'))[:4])\n"
        "print([s.name for s in signal.Signals if s not in (signal.SIGKILL, signal.SIGSTOP)"
        " and signal.getsignal(s) == signal.SIG_IGN])\n"
        "print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))\n"
        "print(os.getpgrp() == os.getpid(), 'CORRAL_RUN' in os.environ)\n"
    )
    result = home.corral("run", "--", "python3", "-S", "-c", script)
    lines = result.stdout.decode().splitlines()
    assert lines[0] == "[0, 1, 2, 3]"  # 3 is the descriptor of /proc/self/fd itself
    assert lines[1] == "['SIGPIPE', 'SIGXFSZ']"  # ignored by Python itself
    assert lines[2:] == ["set()", "True True"]


def test_closed_stdin_is_accepted(home: Home) -> None:
    result = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *CORRAL, "run", "--", "echo", "hello"],
        capture_output=True,
        cwd=home.work,
        env=home.env,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stdout) == (0, b"hello\n"), result.stderr


def test_inherited_signal_masks_and_handlers_have_no_effect(home: Home) -> None:
    """Both are inherited across exec."""

    def set_mask_and_handler() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGCHLD])

    with home.begin("run", "--", "sh", "-c", "exit 3", preexec_fn=set_mask_and_handler) as command:
        command.communicate(timeout=60)
    run = home.wait_for_end(home.only_run().id)
    assert (run.state, run.exit_code) == (RunState.FAILED, 3)


def test_with_json_stdout_has_only_the_record(home: Home) -> None:
    result = home.corral("run", "--json", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    reply = json.loads(result.stdout)
    assert (result.returncode, reply["exit_code"], reply["state"]) == (3, 3, "failed")
    assert sorted(result.stderr.split()) == [b"err", b"out"]
    assert home.output(home.only_run()) == b"out\n"
    result = home.corral("run", "--json", "--", "no-such-program")
    assert (result.returncode, json.loads(result.stdout)["exit_code"]) == (127, 127)


def test_agent_and_a_command_together_are_rejected(home: Home) -> None:
    result = home.corral("run", "--agent", "scripted", "--", "true")
    assert (result.returncode, result.stdout) == (2, b"")
    assert b"Give an agent or a command, not both" in result.stderr


def test_unknown_approval_class_is_rejected(home: Home) -> None:
    result = home.corral("run", "--yes", "edti", "--", "touch", "never")
    assert result.returncode == 2
    assert b"Invalid approval 'edti': --yes takes edit, run, trust, all." in result.stderr
    assert not (home.work / "never").exists()
    with home.store() as store:
        assert not store.runs.list().items


@pytest.mark.parametrize("trap", ["", "trap 'exit 0' TERM; ", "trap 'exit 9' TERM; "])
def test_wait_for_a_stopped_run_returns_its_exit_status(home: Home, trap: str) -> None:
    script = f"{trap}touch started; while :; do sleep 0.1; done"
    run = home.start_detached("sh", "-c", script)
    wait_for_start(home)
    assert home.json("stop", run.id, "--json")["state"] == "cancelled"
    code = {"": 143, "trap 'exit 0' TERM; ": 130, "trap 'exit 9' TERM; ": 9}[trap]
    assert home.corral("wait", run.id).returncode == code
