"""Every CLI in a supervised terminal: its dialogs, its input, and how it quits."""

import json
from typing import Any

import pytest

from corral.adapters.providers import registry
from corral.adapters.providers.provider import LaunchCommand, LaunchRequest
from corral.domain.runs.model import Attention, Run, RunState
from tests.real.home import SECONDS, RealHome, wait_until
from tests.real.machine import program, steps
from tests.real.test_terminals import Terminal
from tests.support.home import processes_with_variable

SHELL: dict[str, tuple[str, dict[str, Any]]] = {
    "claude": ("Bash", {"command": "touch zz"}),
    "codex": (
        "exec_command",
        {
            "cmd": "touch zz",
            "sandbox_permissions": "require_escalated",
            "justification": "to make a file",
        },
    ),
    "gemini": ("run_shell_command", {"command": "touch zz"}),
    "qwen": ("run_shell_command", {"command": "touch zz", "is_background": False}),
    "opencode": ("bash", {"command": "touch zz", "description": "x"}),
    "copilot": ("bash", {"command": "touch zz", "description": "x"}),
}


LONG_COMMAND = "tail -f /dev/null"


@pytest.fixture(params=sorted(SHELL))
def cli(request: pytest.FixtureRequest, home: RealHome) -> str:
    """Each CLI in turn, configured to ask before it runs a command."""
    name: str = request.param
    home.install(name)
    machine = home.machine
    if name == "claude":
        ask_before_commands(home)
    elif name == "codex":
        machine.configure(sandbox="read-only", approval="on-request")
    elif name == "opencode":
        machine.env["OPENCODE_PERMISSION"] = '{"bash": "ask", "edit": "ask"}'
    return name


def ask_before_commands(home: RealHome) -> None:
    """Configure claude to ask, without changing its default mode, which opens another dialog."""
    setting = {"permissions": {"ask": ["Bash"]}}
    home.machine.write(".claude/settings.json", json.dumps(setting))


def start_terminal(
    home: RealHome, name: str, *script: dict[str, Any], options: tuple[str, ...] = ()
) -> Run:
    return home.start_agent(name, steps(*script), "--pty", "--yes", "trust", *options)


def start_with_dialog(home: RealHome, name: str, command: str = "touch zz") -> Run:
    tool, args = SHELL[name]
    args = {key: command if value == "touch zz" else value for key, value in args.items()}
    run = start_terminal(
        home, name, {"text": "I run it.", "tool": tool, "args": args}, {"text": "done"}
    )

    def has_dialog() -> bool:
        dialog = home.get(run.id).dialog
        return dialog is not None and dialog.kind == "run"

    wait_until(has_dialog, "the dialog for the command")
    return home.get(run.id)


def test_no_declines_and_other_text_is_rejected(home: RealHome, cli: str) -> None:
    run = start_with_dialog(home, cli)
    rejected = home.corral("send", run.id, "please use git instead")
    assert rejected.returncode == 2, rejected
    assert run.dialog is not None
    assert run.dialog.options[-1].encode() in rejected.stderr
    result = home.corral("show", run.id).stdout.decode()
    assert "touch zz" in result, result
    assert not (home.work / "zz").exists()
    declined = home.corral("send", run.id, "no")
    assert declined.returncode == 0, declined
    wait_until(lambda: home.get(run.id).dialog is None, "the dialog is closed")
    assert not (home.work / "zz").exists()
    home.corral("stop", run.id, "--grace-period", "3s")
    home.wait_for_end(run.id)
    home.wait_for_all_processes()


def test_yes_allows_the_command_once_and_stop_ends_it(home: RealHome, cli: str) -> None:
    run = start_with_dialog(home, cli, f"touch zz && {LONG_COMMAND}")
    allowed = home.corral("send", run.id, "yes")
    assert allowed.returncode == 0, allowed
    wait_until((home.work / "zz").exists, "the command has run")
    pids = wait_until(lambda: find_long_commands(home), "the command is running")
    assert set(pids) <= set(home.processes_of(run)), "all processes belong to the run"
    home.corral("stop", run.id, "--grace-period", "3s")
    assert home.wait_for_end(run.id).state is RunState.CANCELLED
    assert find_long_commands(home) == []
    home.wait_for_all_processes()


def find_long_commands(home: RealHome) -> list[int]:
    """Return the user's processes that run the long command, wherever they belong."""
    result = processes_with_variable(f"HOME={home.machine.home}")
    return [
        pid
        for pid in result
        if read_command_line(pid) == LONG_COMMAND.replace(" ", "\0").encode() + b"\0"
    ]


def test_sent_text_is_submitted_and_an_idle_cli_quits(home: RealHome, cli: str) -> None:
    run = start_terminal(home, cli, {"text": "the first answer"}, options=("--idle-exit", "20s"))
    wait_until(home.requests, "the prompt reached the model")
    sent = home.corral("send", run.id, steps({"text": "the second answer"}))
    assert sent.returncode == 0, (sent, home.get(run.id))
    wait_until(lambda: "the second answer" in screen_of(home, run), "the agent answered again")
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.exit_code, ended.signal) == (RunState.COMPLETED, 0, None), ended
    assert ended.reason == "no activity within the idle timeout"
    home.wait_for_all_processes()


def screen_of(home: RealHome, run: Run) -> str:
    return home.output(run).decode(errors="replace")


def test_codex_leaves_no_process_outside_its_run(home: RealHome) -> None:
    home.install("codex")
    long_step = {"tool": "exec_command", "args": {"cmd": "sleep 300", "yield_time_ms": 60_000}}
    first = start_terminal(home, "codex", long_step, {"text": "done"}, options=("--yes", "all"))
    second = start_terminal(home, "codex", long_step, {"text": "done"}, options=("--yes", "all"))

    def find_sleeps(run: Run) -> list[int]:
        return [pid for pid in home.processes_of(run) if b"sleep\x00300" in read_command_line(pid)]

    wait_until(lambda: find_sleeps(first) and find_sleeps(second), "both run their command")
    home.corral("stop", first.id, "--grace-period", "3s")
    assert home.wait_for_end(first.id).state is RunState.CANCELLED
    assert find_sleeps(first) == []
    assert find_sleeps(second) != [], "the command of the other run continues"
    assert not list(home.machine.home.glob(".codex/packages/app-server-daemon")), "no daemon"
    home.corral("stop", second.id, "--grace-period", "3s")
    home.wait_for_end(second.id)
    home.wait_for_all_processes()


def test_stop_ends_a_codex_run_while_another_codex_is_open(home: RealHome) -> None:
    """The codex outside Corral starts the server that codex shares between its terminals."""
    home.install("codex")
    codex = registry.get_provider("codex")
    start = codex.build_command(LaunchRequest(None, interactive=True), program("codex"))
    assert "--no-daemon" in start.args
    shared = LaunchCommand([argument for argument in start.args if argument != "--no-daemon"])
    assert codex.screen
    outside = Terminal(shared, home.machine, codex.screen, set())
    try:
        outside.wait_until("ready", seconds=SECONDS)
        long_step = {"tool": "exec_command", "args": {"cmd": LONG_COMMAND, "yield_time_ms": 60_000}}
        run = start_terminal(home, "codex", long_step, {"text": "done"}, options=("--yes", "all"))
        pids = wait_until(lambda: find_long_commands(home), "the command is running")
        assert set(pids) <= set(home.processes_of(run))
        home.corral("stop", run.id, "--grace-period", "3s")
        assert home.wait_for_end(run.id).state is RunState.CANCELLED
        assert find_long_commands(home) == []
        count = len(home.requests())
        outside.wait_until("ready", seconds=SECONDS)
        assert len(home.requests()) == count, "no process of the run is left"
    finally:
        outside.close()


def read_command_line(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def test_gemini_works_in_a_folder_that_the_user_trusts(home: RealHome) -> None:
    home.install("gemini")
    write = {"tool": "write_file", "args": {"file_path": f"{home.work}/a.txt", "content": "hi"}}
    run = home.start_agent(
        "gemini",
        steps(write, {"text": "done"}),
        *("--yes", "edit", "--yes", "trust"),
    )
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.exit_code) == (RunState.COMPLETED, 0), home.log(ended)
    assert (home.work / "a.txt").read_text() == "hi"


def test_gemini_works_in_the_worktrees_of_a_race(home: RealHome) -> None:
    from tests.support.race_helpers import git

    home.install("gemini")
    git(home.work, "init", "-q", "-b", "main")
    (home.work / "file").write_text("x\n")
    git(home.work, "add", "-A")
    git(home.work, "commit", "-qm", "first")
    write = {"tool": "write_file", "args": {"file_path": "a.txt", "content": "hi"}}
    result = home.json(
        "race",
        "start",
        steps(write, {"text": "done"}),
        *("--agents", "gemini,gemini", "--check", "test -f a.txt", "--wait", "--json"),
    )
    states = [(item["state"], item["passed"]) for item in result["rounds"][0]["attempts"]]
    assert states == [("completed", True)] * 2, result


def test_attention_is_cleared_when_a_person_answers(home: RealHome) -> None:
    home.install("claude")
    ask_before_commands(home)
    run = start_with_dialog(home, "claude")
    assert run.attention is Attention.NEEDS_INPUT
    assert home.corral("send", run.id, "no").returncode == 0
    wait_until(lambda: home.get(run.id).attention is None, "no input is needed")
