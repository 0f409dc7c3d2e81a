"""Claude Code in a supervised terminal: screen reading, typing, and answers by policy only."""

import json
from contextlib import suppress

import pytest

from corral.domain.runs.model import Attention, Run, RunMode, RunState
from tests.real.home import SECONDS, AgentKind, RealHome, wait_until
from tests.real.machine import steps
from tests.support.home import wait_until as soon
from tests.support.screen import Screen


@pytest.fixture
def claude(home: RealHome) -> AgentKind:
    home.install("claude")
    # By default claude decides which dialogs to skip.
    setting = {"permissions": {"defaultMode": "manual"}}
    home.machine.write(".claude/settings.json", json.dumps(setting))
    return AgentKind("claude", home)


def wait_for_dialog(home: RealHome, run: Run) -> None:
    wait_until(lambda: home.get(run.id).attention is Attention.NEEDS_INPUT, "the agent asks")


def list_answers(home: RealHome, run: Run) -> list[str]:
    return [line for line in home.log(run) if line.startswith("Answered")]


def screen_of(home: RealHome, run: Run) -> str:
    return home.output(run).decode(errors="replace")


def run_until_answered(home: RealHome, prompt: str, text: str) -> Run:
    """Start a terminal run, wait for its answer, and stop it."""
    run = home.start_agent("claude", prompt, "--pty")
    wait_until(lambda: text in screen_of(home, run), "the agent answered")
    # Its transcript is written in parallel to the screen.
    session = home.session_of(run).provider_session
    name = f".claude/projects/*/{session}.jsonl"
    wait_until(
        lambda: [f for f in home.machine.home.glob(name) if f'"text":"{text}"' in f.read_text()],
        "the answer is in the transcript",
    )
    home.corral("stop", run.id)
    return home.wait_for_end(run.id)


def test_dialog_requests_attention_and_is_not_answered(home: RealHome, claude: AgentKind) -> None:
    prompt = steps(claude.write("a.txt"), {"text": "done"})
    run = home.start_agent("claude", prompt, "--pty")
    assert run.mode is RunMode.PTY
    wait_for_dialog(home, run)
    assert list_answers(home, run) == []
    assert not (home.work / "a.txt").exists()
    listed = home.json("ps", "--json")
    assert [row["attention"] for row in listed] == ["needs_input"]
    # A person answers, and the attention is cleared.
    assert home.corral("send", run.id, "1").returncode == 0
    wait_until((home.work / "a.txt").exists, "the file is written")
    wait_until(lambda: home.get(run.id).attention is None, "no input is needed")
    assert list_answers(home, run) == []
    assert home.corral("stop", run.id, "--grace-period", "3s").returncode == 0
    assert home.wait_for_end(run.id).state is RunState.CANCELLED
    home.wait_for_all_processes()


def test_allowed_dialog_is_answered_once_and_logged(home: RealHome, claude: AgentKind) -> None:
    text = "1. Yes\n2. Do you want to proceed?\n3. No"
    prompt = steps(
        {"text": text, **claude.write("a.txt")},
        claude.shell("rm -rf build"),
        {"text": "done"},
    )
    run = home.start_agent(
        "claude", prompt, "--pty", "--yes", "edit", "--idle-exit", "120s", "--grace-period", "3s"
    )
    wait_until((home.work / "a.txt").exists, "the file is written")
    wait_for_dialog(home, run)
    log = home.json("logs", "--log", run.id, "--json")
    results = [line for line in log if line["message"].startswith("Answered")]
    assert len(results) == 1, log
    assert results[0]["metadata"]["class"] == "edit"
    assert "a.txt" in results[0]["metadata"]["question"]
    assert results[0]["metadata"]["keys"] == "\r"
    home.corral("stop", run.id)
    assert home.wait_for_end(run.id).state is RunState.CANCELLED


def test_input_is_typed_when_ready_and_an_idle_agent_quits(
    home: RealHome, claude: AgentKind
) -> None:
    # In its default mode claude opens a dialog after the first answer, which rejects text.
    (home.machine.home / ".claude/settings.json").unlink()
    run = home.start_agent(
        "claude", steps({"text": "the first answer"}), "--pty", "--idle-exit", "15s"
    )
    wait_until(lambda: "the first answer" in screen_of(home, run), "the agent answered")
    assert home.get(run.id).attention is None
    typed = home.corral("send", run.id, steps({"text": "the second answer"}))
    assert typed.returncode == 0, typed
    wait_until(lambda: len(home.requests()) >= 2, "the typed text reached the model")
    wait_until(lambda: "the second answer" in screen_of(home, run), "the agent answered again")
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.exit_code) == (RunState.COMPLETED, 0), ended
    assert ended.reason == "no activity within the idle timeout"
    assert "/exit" in screen_of(home, run)
    home.wait_for_all_processes()


def start_with_long_prompt(home: RealHome) -> Run:
    """Start with a prompt that is too long for an argument and must be typed."""
    prompt = "x" * 110_000 + " the-end " + steps({"text": "all of it read"})
    (home.work / "prompt").write_text(prompt)
    return home.start_agent("claude", "@prompt", "--pty")


def test_long_prompt_is_typed_once_the_screen_is_ready(home: RealHome, claude: AgentKind) -> None:
    (home.machine.home / ".claude/settings.json").unlink()
    run = start_with_long_prompt(home)
    wait_until(lambda: home.requests(), "the prompt reached the model")
    assert home.count_prompts("the-end") == 1
    assert home.count_prompts("x" * 110_000) == 1
    wait_until(lambda: "all of it read" in screen_of(home, run), "the agent answered")
    assert home.log(run) == ["Typed the prompt."]
    home.corral("stop", run.id, "--grace-period", "3s")
    home.wait_for_end(run.id)


def test_no_prompt_is_typed_into_a_dialog(home: RealHome, claude: AgentKind) -> None:
    # In this mode, claude first asks whether to change it.
    run = start_with_long_prompt(home)
    screen = Screen.corral(home, "attach", run.id)
    try:
        screen.wait_until(b"keep", seconds=SECONDS)
        screen.type(b"\x1b[B")
        screen.forget()
        screen.wait_until(b"\xe2\x9d\xaf", seconds=SECONDS)  # the selection moves
        assert home.log(run) == []
        for _ in range(3):  # an Enter during a redraw may be lost
            screen.type(b"\r")
            with suppress(AssertionError):
                soon(lambda: home.log(run), "the prompt is typed", 20)
                break
        wait_until(lambda: home.requests(), "the prompt reached the model")
    finally:
        screen.end()
    assert home.count_prompts("the-end") == 1
    settings = json.loads((home.machine.home / ".claude/settings.json").read_text())
    assert settings["permissions"] == {"defaultMode": "manual"}


def test_terminal_conversation_is_resumed(home: RealHome, claude: AgentKind) -> None:
    prompt = "first-prompt " + steps({"text": "the first answer"})
    ended = run_until_answered(home, prompt, "the first answer")
    session = home.session_of(ended).provider_session
    result = home.json("resume", "-d", "--json", ended.id, steps({"text": "the second answer"}))
    after = home.wait_for_end(result["id"])
    assert after.state is RunState.COMPLETED, home.log(after)
    assert home.count_prompts("first-prompt") == 1
    assert home.session_of(after).provider_session == session


def test_turns_and_usage_of_a_terminal_conversation_are_stored(
    home: RealHome, claude: AgentKind
) -> None:
    usage = {"input": 1_000, "output": 50}
    prompt = steps({"text": "the only answer", "usage": usage})
    ended = run_until_answered(home, prompt, "the only answer")
    assert home.texts(ended) == ["the only answer"]
    assert home.charged(f"run:{ended.id}") == claude.used()
    assert ended.tokens == sum(claude.used())


def test_person_at_the_terminal_sees_claude_itself(home: RealHome, claude: AgentKind) -> None:
    screen = Screen.corral(
        home, "run", "--agent", "claude", steps({"text": "an answer"}), rows=40, columns=100
    )
    try:
        screen.wait_until(b"an answer", seconds=SECONDS)
        assert home.only_run().mode is RunMode.PTY
        assert b'{"type"' not in screen.seen
        screen.type(b"/exit")
        screen.wait_until(b"/exit", seconds=SECONDS)
        screen.type(b"\r")
        assert screen.exit_code(SECONDS) == 0
        assert home.wait_for_end(home.only_run().id).state is RunState.COMPLETED
    finally:
        screen.end()
