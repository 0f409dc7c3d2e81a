"""Runs in a pseudo-terminal: typing, job control, resizing, detach and attach."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

import pytest

from corral.adapters.processes import process
from corral.domain.runs.model import Run, RunMode, RunState
from tests.support.home import CORRAL, Home, is_alive, wait_until
from tests.support.screen import Screen

OpenScreen = Callable[..., Screen]
DETACH = b"\x1c"
PROMPT = b"PS1='$ '; cd /tmp; echo rea''dy\r"


def wait_for_run(home: Home) -> Run:
    with home.store() as store:
        return wait_until(
            lambda: next(iter(store.runs.list().items), None), "the run is in the store"
        )


def find_foreground_child(shell: int) -> int | None:
    """Return the child of a shell that has the terminal, or None."""
    for child in process.descendants(shell):
        with suppress(OSError):
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            executed = Path(f"/proc/{child}/comm").read_text() != "bash\n"
            if executed and fields[5] == str(child):
                return child
    return None


def open_bash(screen: OpenScreen, *options: str, rows: int = 24, columns: int = 80) -> Screen:
    """Start `corral run -- bash` and wait for its prompt."""
    opened = screen(
        "run", *options, "--", "bash", "--norc", "--noprofile", rows=rows, columns=columns
    )
    opened.type(PROMPT)
    opened.wait_until(b"ready\r\n")
    return opened


def test_typing_into_a_shell_returns_its_exit_code(home: Home, screen: OpenScreen) -> None:
    shell = open_bash(screen)
    assert wait_for_run(home).mode is RunMode.PTY
    shell.type(b"echo $((6 * 7))-result; exit 4\r")
    shell.wait_until(b"42-result")
    assert shell.exit_code() == 4
    run = home.wait_for_end(wait_for_run(home).id)
    assert (run.state, run.exit_code) == (RunState.FAILED, 4)
    home.wait_for_all_processes()
    assert b"42-result" in home.output(run)


def test_terminal_modes_are_restored_afterwards(home: Home) -> None:
    """Echo and line editing work again after a normal end and after a crash."""
    for end in ("exit 0", "kill -9 $$"):
        script = (
            f"stty -a >before; {' '.join(CORRAL)} run -- sh -c '{end}'; stty -a >after; echo fin"
        )
        shell = Screen(home, "sh", "-c", script)
        try:
            shell.wait_until(b"fin")
        finally:
            shell.end()
        assert (home.work / "before").read_text() == (home.work / "after").read_text()


def test_terminal_size_reaches_the_program_and_follows_changes(
    home: Home, screen: OpenScreen
) -> None:
    # os.write, because a handler that interrupts print() may not print: Python raises an error.
    script = (
        "import os, signal, time\n"
        "def print_size(*_):\n"
        "    os.write(1, b'%d-by-%d\\n' % os.get_terminal_size()[::-1])\n"
        "signal.signal(signal.SIGWINCH, print_size)\nprint_size()\nos.write(1, b'ready\\n')\n"
        "while True:\n    time.sleep(600)\n"
    )
    opened = screen("run", "--", "python3", "-S", "-c", script, rows=33, columns=101)
    opened.wait_until(b"33-by-101")
    opened.wait_until(b"ready")
    opened.resize(44, 122)
    opened.wait_until(b"44-by-122")
    assert b"24-by-80" not in opened.seen


def test_ctrl_c_reaches_the_foreground_process(home: Home, screen: OpenScreen) -> None:
    shell = open_bash(screen)
    shell.type(b"sleep 600 || echo ended-by-$?\r")
    run = wait_for_run(home)
    wait_until(lambda: find_foreground_child(run.pid or 0), "sleep is in the foreground")
    shell.type(b"\x03")
    shell.type(b"echo st''ill-here\r")
    shell.wait_until(b"still-here")
    assert home.get(run.id).state is RunState.RUNNING


def test_ctrl_c_ends_a_program_without_a_handler(home: Home, screen: OpenScreen) -> None:
    opened = screen("run", "--", "sh", "-c", "echo started; exec sleep 600")
    opened.wait_until(b"started")
    opened.type(b"\x03")
    assert opened.exit_code() == 130
    run = home.wait_for_end(wait_for_run(home).id)
    assert (run.signal, run.state) == (signal.SIGINT, RunState.CANCELLED)


@pytest.mark.parametrize("end", ["kill -INT $$", "exit 130"])
def test_run_ended_by_ctrl_c_is_cancelled_and_not_restarted(
    home: Home, screen: OpenScreen, end: str
) -> None:
    script = f"trap '{'trap - INT; ' + end}' INT; echo started; while :; do sleep 0.1; done"
    opened = screen("run", "--restart", "on-failure:3", "--", "sh", "-c", script)
    opened.wait_until(b"started")
    opened.type(b"\x03")
    assert opened.exit_code() == 130
    run = home.wait_for_end(wait_for_run(home).id)
    assert (run.state, home.events(run).count("restart")) == (RunState.CANCELLED, 0)


def test_ctrl_c_in_raw_mode_is_not_a_signal(home: Home, screen: OpenScreen) -> None:
    script = "stty -isig; echo started; head -c 1 >/dev/null; kill -INT $$; sleep 600"
    opened = screen("run", "--", "sh", "-c", script)
    opened.wait_until(b"started")
    opened.type(b"\x03\r")
    assert opened.exit_code() == 130
    assert home.wait_for_end(wait_for_run(home).id).state is RunState.CRASHED


def test_job_control_inside_a_shell_works(home: Home, screen: OpenScreen) -> None:
    """Ctrl-Z and fg of a job of the inner shell. The shell itself continues."""
    shell = open_bash(screen)
    shell.type(b"cat\r")
    run = wait_for_run(home)
    cat = wait_until(lambda: find_foreground_child(run.pid or 0), "cat is in the foreground")
    shell.type(b"\x1a")
    shell.wait_until(b"Stopped")
    shell.type(b"jobs; fg\r")
    wait_until(
        lambda: (proc_stat := process.read_stat(cat)) is not None and proc_stat.state != "T",
        "cat continues",
    )
    shell.type(b"through-the-cat\r")
    shell.wait_until(b"through-the-cat", times=2)
    shell.type(b"\x04exit\r")
    assert shell.exit_code() == 0


def test_suspend_and_fg_apply_to_program_and_command(home: Home) -> None:
    """Ctrl-Z and fg of `corral run -- cat` in an outer shell."""
    shell = Screen(home, "bash", "--norc", "--noprofile")
    try:
        shell.type(PROMPT)
        shell.wait_until(b"ready\r\n")
        shell.type(f"{' '.join(CORRAL)} run -- cat\r".encode())
        run = wait_for_run(home)
        wait_until(lambda: home.get(run.id).state is RunState.RUNNING, "the run is running")
        shell.type(b"one\r")
        shell.wait_until(b"one\r\none\r\n")
        shell.type(b"\x1a")
        shell.wait_until(b"Stopped")
        proc_stat = process.read_stat(home.get(run.id).pid or 0)
        assert proc_stat is not None
        assert proc_stat.state == "T"
        shell.type(b"echo back-in-$((1))-shell\r")
        shell.wait_until(b"back-in-1-shell")
        shell.type(b"fg\r")
        wait_until(
            lambda: (s := process.read_stat(home.get(run.id).pid or 0)) and s.state != "T",
            "cat continues",
        )
        shell.type(b"two\r")
        shell.wait_until(b"two\r\ntwo\r\n")
        shell.forget()
        shell.type(b"\x04")
        home.wait_for_end(run.id)
        shell.wait_until(b"$ ")  # text typed before the prompt would go to the run
        shell.type(b"echo code-$?\r")
        shell.wait_until(b"code-0")
    finally:
        shell.end()


def test_program_that_closes_its_terminal_gets_no_sighup(home: Home) -> None:
    script = "import os, time; print('bye', flush=True); os.closerange(0, 3); time.sleep(0.5)"
    run = home.start_detached(sys.executable, "-c", script, options=("--pty",))
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.exit_code, ended.signal) == (RunState.COMPLETED, 0, None)
    assert b"bye" in home.output(run)


def test_interactive_python_session_works(home: Home, screen: OpenScreen) -> None:
    opened = screen("run", "--", "python3", "-q")
    opened.wait_until(b">>> ")
    opened.type(b"print(6 * 7, 'result')\r")
    opened.wait_until(b"42 result")
    opened.type(b"raise SystemExit(9)\r")
    assert opened.exit_code() == 9


def test_paging_with_less_works(home: Home, screen: OpenScreen) -> None:
    (home.work / "text").write_text("".join(f"this is line {n}\n" for n in range(1, 501)))
    opened = screen("run", "--env", "LESS=", "--", "less", "text", rows=20)
    opened.wait_until(b"line 19")
    assert b"line 40" not in opened.seen
    opened.type(b" ")
    opened.wait_until(b"line 38")
    opened.type(b"G")
    opened.wait_until(b"line 500")
    opened.type(b"q")
    assert opened.exit_code() == 0


def test_closed_terminal_detaches_and_attach_works_again(home: Home, screen: OpenScreen) -> None:
    shell = open_bash(screen)
    shell.type(b"kept=yes-it-is; echo no''ted\r")
    shell.wait_until(b"noted")
    run = wait_for_run(home)
    shell.close()
    wait_until(
        lambda: not is_alive(shell.pid) or os.waitpid(shell.pid, os.WNOHANG)[0], "the command ended"
    )
    shell.status = 0
    assert home.get(run.id).state is RunState.RUNNING
    attached = screen("attach", run.id)
    attached.type(b"echo ke''pt-$kept; exit\r")
    attached.wait_until(b"kept-yes-it-is")
    assert attached.exit_code() == 0
    assert home.wait_for_end(run.id).state is RunState.COMPLETED


def test_detach_key_detaches_and_attach_redraws_the_screen(home: Home, screen: OpenScreen) -> None:
    shell = open_bash(screen)
    shell.type(b"echo a-mark-$((1 + 1))\r")
    shell.wait_until(b"a-mark-2")
    shell.type(DETACH)
    assert shell.exit_code() == 0
    run = wait_for_run(home)
    assert run.id.encode() in shell.seen  # the message names the run to attach to
    assert home.get(run.id).state is RunState.RUNNING
    attached = screen("attach", run.id)
    attached.wait_until(b"a-mark-2")
    attached.type(b"exit 6\r")
    assert attached.exit_code() == 6


def test_detaching_resets_the_terminal_modes(home: Home, screen: OpenScreen) -> None:
    script = r"printf '\033[?1049h\033[?25l\033[?1000h\033[?2004hdrawn'; sleep 600"
    run = home.start_detached("sh", "-c", script, options=("--pty",))
    attached = screen("attach", run.id)
    attached.wait_until(b"drawn")
    attached.type(DETACH)
    assert attached.exit_code() == 0
    drawn, _, after = attached.seen.rpartition(b"drawn")
    for reset in (b"\x1b[?1049l", b"\x1b[?25h", b"\x1b[?1000l", b"\x1b[?2004l"):
        assert reset in after, after
    assert after.index(b"\x1b[?1049l") < after.index(b"Detached"), drawn
    assert home.get(run.id).state is RunState.RUNNING


def test_two_attached_terminals_both_see_and_type(home: Home, screen: OpenScreen) -> None:
    shell = open_bash(screen)
    run = wait_for_run(home)
    second = screen("attach", run.id)
    second.wait_until(b"ready")
    second.type(b"echo from-the-$((2))nd\r")
    shell.wait_until(b"from-the-2nd")
    second.wait_until(b"from-the-2nd")
    shell.type(b"echo from-the-$((1))st\r")
    second.wait_until(b"from-the-1st")
    second.type(DETACH)
    assert second.exit_code() == 0
    shell.type(b"exit 5\r")
    assert shell.exit_code() == 5


def test_all_attached_terminals_see_the_end(home: Home, screen: OpenScreen) -> None:
    shell = open_bash(screen)
    second = screen("attach", wait_for_run(home).id)
    second.wait_until(b"ready")
    shell.type(b"exit 5\r")
    assert (shell.exit_code(), second.exit_code()) == (5, 5)


def test_attached_terminal_that_does_not_read_does_not_block(
    home: Home, screen: OpenScreen
) -> None:
    run = home.start_detached("bash", "-c", "read x; seq 1 900000; exit 3", options=("--pty",))
    unread = screen("attach", run.id)
    wait_until(lambda: len(home.processes_of(run)) == 1, "bash waits for a line")
    unread.type(b"go\r")
    assert home.wait_for_end(run.id).exit_code == 3


@pytest.mark.parametrize("stdin", [subprocess.DEVNULL, subprocess.PIPE])
def test_attach_without_a_terminal_is_rejected(home: Home, stdin: int) -> None:
    show_size = "trap 'stty size' WINCH; stty size; read x; echo got-$x"
    run = home.start_detached("bash", "-c", show_size, options=("--pty",))
    wait_until(lambda: b"\n" in home.output_so_far(run), "bash printed its size")
    with home.begin("attach", run.id, stdin=stdin) as attached:
        assert attached.wait(30) == 4
        assert attached.stderr is not None
        errors = attached.stderr.read()
    assert f"corral logs -f {run.id}".encode() in errors
    assert f"corral send {run.id}".encode() in errors
    assert home.corral("send", run.id, "it").returncode == 0
    ended = home.wait_for_end(run.id)
    first, *rest = home.output(ended).split()
    assert first.isdigit()
    assert rest[-1] == b"got-it"
    assert len([word for word in rest if word.isdigit()]) == 1, "its terminal was not resized"


def test_send_types_a_line(home: Home) -> None:
    run = home.start_detached("bash", "-c", 'read word; echo "got <$word>"', options=("--pty",))
    result = home.corral("send", run.id, "a typed line")
    assert result.returncode == 0, result.stderr
    ended = home.wait_for_end(run.id)
    assert b"got <a typed line>" in home.output(ended)
    late = home.corral("send", run.id, "too late")
    assert late.returncode == 4
    assert b"corral resume" in late.stderr


def test_send_to_a_run_without_input_says_what_to_do(home: Home) -> None:
    run = home.start_detached("sleep", "600")
    result = home.corral("send", run.id, "hello")
    assert result.returncode == 4
    assert b"--pty" in result.stderr
    attached = home.corral("attach", run.id)
    assert attached.returncode == 4
    assert b"logs -f" in attached.stderr


def test_output_of_a_short_program_is_complete(home: Home, screen: OpenScreen) -> None:
    """The program may exit before the terminal is attached."""
    for _ in range(2):
        opened = screen("run", "--", "echo", "short output")
        assert opened.exit_code() == 0
        assert b"short output" in opened.seen


def test_large_output_through_a_terminal_is_complete(home: Home, screen: OpenScreen) -> None:
    opened = screen("run", "--", "seq", "1", "50000")
    assert opened.exit_code() == 0
    lines = opened.seen.replace(b"\r", b"").split()
    assert lines == [b"%d" % n for n in range(1, 50_001)]
    run = home.wait_for_end(wait_for_run(home).id)
    home.wait_for_all_processes()
    assert home.output(run).replace(b"\r", b"").split() == lines
    assert run.output_bytes == len(home.output(run))


def test_processes_left_in_the_terminal_are_ended(home: Home, screen: OpenScreen) -> None:
    opened = screen("run", "--", "bash", "-c", "trap '' HUP; sleep 600 & echo $! >child; exit 2")
    assert opened.exit_code() == 2
    child = home.read_pid("child")
    wait_until(lambda: not is_alive(child), "the child was ended")
    home.wait_for_all_processes()


def test_table_fits_the_terminal(home: Home, screen: OpenScreen) -> None:
    long_command = ["echo", "a very long argument " * 4]
    home.wait_for_end(
        home.start_detached(*long_command, options=("--name", "the-nightly-build")).id
    )
    home.wait_for_end(home.start_detached("sleep", "600", options=("--timeout", "1ms")).id)
    home.wait_for_end(home.start_agent("scripted", "crash 7").id)
    escapes = re.compile(r"\x1b\[[0-9;]*m")
    with home.store() as store:
        runs = store.runs.list().items
    for command, widths in ((["ps", "-a"], (80, 100, 200)), ([], (80,)), (["stats"], (80,))):
        for columns in widths:
            table = screen(*command, columns=columns)
            assert table.exit_code() == 0
            lines = [escapes.sub("", line) for line in table.seen.decode().splitlines()]
            assert max(map(len, lines)) <= columns, (command, lines)
            if command[:1] == ["ps"]:
                rows = [*takewhile(lambda line: not line.startswith("Columns hidden: "), lines)]
                assert len(rows) == 1 + len(runs)
                assert (rows == lines) is (columns == 200), "omitted columns are named"
                assert all(any(line.startswith(run.id) for line in lines) for run in runs)
                assert {"ID", "STATE", "NAME", "ENDED", "EXIT"} <= set(lines[0].split())
                assert ("PID" in lines[0].split()) is (columns == 200)


def test_overview_and_ps_agree_on_a_queued_run(home: Home) -> None:
    run = home.start_agent("scripted", "ask May I?; say thanks", "--acp")
    wait_until(lambda: home.get(run.id).attention, "the agent asks")
    (row,) = (line for line in home.corral("ps").stdout.splitlines() if run.id.encode() in line)
    assert b"needs_input" in row
    result = home.corral().stdout.decode()
    assert result.count("needs_input") == 2  # in the list of runs and in the list of open questions
    assert "running" not in result
