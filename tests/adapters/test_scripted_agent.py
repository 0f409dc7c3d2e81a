"""The bundled scripted agent: prompts, streams, terminal and exit codes."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from corral.adapters.providers import registry
from corral.adapters.providers.facts import (
    LimitFact,
    ProviderFact,
    ResultFact,
    SessionFact,
    TurnFact,
    UsageFact,
)
from corral.adapters.providers.limits import parse_limit
from corral.adapters.providers.provider import LaunchRequest
from corral.kernel.prompt import Quote, render
from tests.support.threads import SECONDS

AGENT = [sys.executable, "-m", "corral.demo.agent"]
SRC = str(Path(__file__).parents[2] / "src")


@pytest.fixture(autouse=True)
def _agent_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORRAL_AGENT_HOME", str(tmp_path / "agent"))
    monkeypatch.setenv("PYTHONPATH", SRC)
    monkeypatch.chdir(tmp_path)


def run(*args: str, stdin: str = "", env: dict[str, str] | None = None) -> Any:
    return subprocess.run(
        [*AGENT, *args],
        input=stdin,
        env=os.environ | (env or {}),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def stream(ask: LaunchRequest) -> tuple[list[ProviderFact], int]:
    provider = registry.get_provider("scripted")
    start = provider.build_command(ask)
    result = subprocess.run(
        start.args,
        input=(start.stdin or "").encode(),
        capture_output=True,
        timeout=SECONDS,
        check=False,
    )
    parser = provider.create_parser()
    facts = [fact for line in result.stdout.splitlines() for fact in parser.feed(line)]
    return facts + parser.close(), result.returncode


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--wrong"], "unknown option --wrong"),
        (["--resume"], "--resume needs a value"),
        (["--json", "--resume", "gone", "x"], "No conversation found"),
        (["--json", "--continue", "x"], "No conversation found"),
    ],
)
def test_wrong_command_line_is_one_clear_error(args: list[str], message: str) -> None:
    result = run(*args)
    assert result.returncode == 1
    assert message in result.stderr


def test_prompt_comes_from_three_places() -> None:
    assert run("say", "hi").stdout == "hi\n"
    assert run(env={"CORRAL_PROMPT": "say hi"}).stdout == "hi\n"
    assert run(stdin="say a; say b\nwhat?").stdout == "a\nb\nYou said: what?\n"


def test_agent_waits_for_a_file(tmp_path: Path) -> None:
    prompt = f"say before; await {tmp_path}/go; say after"
    with subprocess.Popen([*AGENT, prompt], stdout=subprocess.PIPE, text=True) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == "before\n"
        assert agent.poll() is None
        (tmp_path / "go").touch()
        assert agent.stdout.readline() == "after\n"
    assert agent.returncode == 0


def test_fence_lines_of_a_prompt_are_not_answered() -> None:
    prompt = render([Quote("scheduled prompt sch_1", "say hi; say there")])
    assert run(stdin=prompt).stdout == "hi\nthere\n"


def test_agent_ends_as_scripted() -> None:
    assert run("crash 7").returncode == 7
    assert run("kill TERM").returncode == -signal.SIGTERM
    assert run("fail 2 count").returncode == 1
    assert run("fail 2 count").returncode == 1
    assert run("fail 2 count; say at last").stdout == "at last\n"


def test_agent_asks_and_reads_the_answer() -> None:
    assert run("ask ready?", stdin="sure\n").stdout == "ready? Answered: sure\n"
    assert run("ask ready?").stdout == "ready? No answer.\n"


def test_agent_leaves_a_child_behind() -> None:
    child = subprocess.Popen(
        [*AGENT, "fork 3600; say gone"], stdout=subprocess.DEVNULL, start_new_session=True
    )
    assert child.wait(SECONDS) == 0
    os.killpg(child.pid, signal.SIGKILL)  # the remaining child


def test_agent_ignores_a_signal() -> None:
    child = subprocess.Popen(
        [*AGENT, "ignore TERM; say deaf; hang"], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout
    assert child.stdout.readline() == "deaf\n"
    child.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.3)
    child.kill()
    child.wait()
    child.stdout.close()


def test_quota_is_reported_with_its_reset() -> None:
    result = run("--quota", "3600")
    assert result.returncode == 1
    limit = parse_limit(result.stdout, int(time.time() * 1_000))
    assert limit is not None
    assert limit.reset_at is not None


def test_stream_is_parsed_like_claude() -> None:
    facts, code = stream(
        LaunchRequest("say hi; write a.txt text; spend 1000 100 big", session="s-1")
    )
    assert code == 0
    assert facts[0] == SessionFact("s-1", model="scripted-1")
    call, answer = [fact for fact in facts if isinstance(fact, TurnFact)][1:]
    assert (call.tool_name, answer.tool_name) == ("write", "write")
    (used,) = [fact for fact in facts if isinstance(fact, UsageFact)]
    assert (used.model, used.input, used.output, used.cost_micros) == ("big", 1000, 100, 4500)
    assert facts[-1] == ResultFact(True, "hi")


def test_conversations_can_be_resumed() -> None:
    stream(LaunchRequest("say one", session="s-2"))
    _, code = stream(LaunchRequest("say two", session="s-2"))
    assert code == 1  # the id is taken
    facts, code = stream(LaunchRequest(None, session="s-2", resume=True))
    assert code == 0
    assert facts[0] == SessionFact("s-2", model="scripted-1")
    facts, _ = stream(LaunchRequest("say three", latest=True))
    assert facts[0] == SessionFact("s-2", model="scripted-1")


def test_stream_reports_a_quota() -> None:
    facts, code = stream(LaunchRequest("quota 60"))
    assert code == 1
    (limit,) = [fact for fact in facts if isinstance(fact, LimitFact)]
    assert limit.reset_at is not None
    assert isinstance(facts[-1], ResultFact)
    assert not facts[-1].ok


def test_agent_works_at_a_terminal() -> None:
    master, slave = pty.openpty()
    with subprocess.Popen([*AGENT, "--interactive", "say hi"], stdin=slave, stdout=slave) as agent:
        os.close(slave)
        read_until(master, "hi")
        os.write(master, b"ask may I\n")
        assert "Do you want to proceed?" in read_until(master, "Esc to cancel")
        os.write(master, b"\r")
        read_until(master, "Answered: yes")
        os.write(master, b"say bye\nexit\n")
        read_until(master, "bye\r\n❯")  # noqa: RUF001
        assert agent.wait(SECONDS) == 0
    os.close(master)


def read_until(terminal: int, text: str) -> str:
    """Read the terminal up to a text; raises EOFError if the program exits before it."""
    output = ""
    while text not in output:
        try:
            output += os.read(terminal, 4_096).decode(errors="replace")
        except OSError:
            raise EOFError(output) from None
    return output


LIST_MODULES = """
import runpy, sys
sys.argv = ["agent", "say hi"]
try:
    runpy.run_module("corral.demo.agent", run_name="__main__")
except SystemExit:
    print(*sys.modules)
"""


def test_agent_needs_only_the_standard_library() -> None:
    result = subprocess.run(
        [sys.executable, "-c", LIST_MODULES], capture_output=True, text=True, check=True
    )
    assert not {"msgspec", "click", "rich", "asyncio", "argparse"} & set(result.stdout.split())
