"""Usage, budgets and denials of every agent CLI, measured while it runs."""

from typing import Any

import pytest

from corral.domain.runs.model import Run, RunState
from tests.real.home import RealHome, wait_until
from tests.real.machine import steps

ALL = ["claude", "codex", "copilot", "gemini", "opencode", "qwen"]
# A model with a known price; each stub accepts any name.
MODELS = {
    "claude": "claude-opus-5-5",
    "codex": "gpt-5-codex",
    "copilot": "gpt-5",
    "gemini": "gemini-2.5-pro",
    "opencode": "stub/gpt-5",
    "qwen": "gpt-5",
}
# Exceeds the budgets, but too little for a CLI to compact or end the conversation.
EXPENSIVE = {"input": 100_000, "output": 10}
SMALL = {"input": 1_000, "output": 50}


def tool_step(name: str, home: RealHome) -> dict[str, Any]:
    """Return a harmless tool call, which leads to another model request."""
    path = str(home.work / "a.txt")
    return {
        "claude": {"tool": "Write", "args": {"file_path": path, "content": "hi"}},
        "codex": {"tool": "exec_command", "args": {"cmd": "printf hi > a.txt"}},
        "copilot": {"tool": "create", "args": {"path": path, "file_text": "hi"}},
        "gemini": {"tool": "write_file", "args": {"file_path": path, "content": "hi"}},
        "opencode": {"tool": "write", "args": {"filePath": path, "content": "hi"}},
        "qwen": {"tool": "write_file", "args": {"file_path": path, "content": "hi"}},
    }[name]


@pytest.fixture(params=ALL)
def name(request: pytest.FixtureRequest, home: RealHome) -> str:
    home.install(request.param)
    if request.param == "opencode":
        config = home.machine.home / ".config/opencode/opencode.json"
        config.write_text(config.read_text().replace('"stub": {"name"', '"gpt-5": {"name"'))
    home.machine.env["COPILOT_MODEL"] = MODELS["copilot"]
    home.machine.env["OPENAI_MODEL"] = MODELS["qwen"]
    model = MODELS[request.param]
    home.corral("agent", "create", "ada", "--provider", request.param, "--model", model)
    return str(request.param)


def approvals(name: str) -> tuple[str, ...]:
    """Return approvals. Claude at a terminal asks before `all`, and rejects it as root."""
    return ("--yes", "edit") if name == "claude" else ("--yes", "all")


def start_ada(home: RealHome, prompt: str, *options: str) -> Run:
    return home.start_agent("ada", prompt, *options)


@pytest.mark.parametrize("mode", [(), ("--pty",)], ids=["headless", "terminal"])
def test_spent_budget_stops_the_run(home: RealHome, name: str, mode: tuple[str, ...]) -> None:
    prompt = steps(
        tool_step(name, home) | {"usage": EXPENSIVE}, {"text": "unreachable", "gate": "never"}
    )
    options = ("--budget", "0.05", "--grace-period", "2s")
    run = start_ada(home, prompt, *mode, *approvals(name), *options)
    ended = home.wait_for_end(run.id)
    assert ended.state is RunState.CANCELLED, (ended, home.log(run))
    assert str(ended.reason).startswith("its budget is spent: $"), ended.reason
    assert (ended.cost_micros or 0) >= 50_000, ended
    assert len(home.requests()) <= 3
    home.wait_for_all_processes()


def test_project_budget_stops_a_run_without_its_own(home: RealHome, name: str) -> None:
    home.corral("budget", "set", "all", "0.05")
    prompt = steps(
        tool_step(name, home) | {"usage": EXPENSIVE}, {"text": "unreachable", "gate": "never"}
    )
    ended = home.wait_for_end(start_ada(home, prompt, *approvals(name), "--grace-period", "2s").id)
    assert ended.state is RunState.CANCELLED, home.log(ended)
    assert str(ended.reason).startswith("the budget of everything is spent: $"), ended.reason


@pytest.mark.parametrize("raw", [False, True], ids=["agent", "command"])
def test_terminal_run_is_recorded_while_it_continues(home: RealHome, name: str, raw: bool) -> None:
    prompt = steps({"text": "the first answer", "usage": SMALL})
    if raw:
        run = start_command(home, name, prompt)
    else:
        run = start_ada(home, prompt, "--pty", *approvals(name))
    try:
        live = wait_until(
            lambda: find_run_with_text(home, run, "the first answer"), "the answer is recorded"
        )
        assert live.is_live
        live = wait_until(lambda: find_charged_run(home, run), "the usage is recorded")
        assert live.is_live
        assert (live.cost_micros or 0) > 0
        turns = home.turns(live)
        assert [turn.role for turn in turns] == ["user", "assistant"], turns
        assert turns[0].at <= turns[1].at
        session = home.session_of(live)
        assert (session.provider, bool(session.provider_session)) == (name, True)
    finally:
        home.corral("stop", run.id, "--grace-period", "2s")
    ended = home.wait_for_end(run.id)
    assert home.turns(ended) == turns, "nothing is recorded twice"
    if name in ("claude", "codex"):
        before = home.charged("all")
        report = home.json("import", name, "--json")
        assert (report["own"], report["turns"], report["charges"]) == (1, 0, 0)
        assert home.charged("all") == before
        with home.store() as store:
            assert len(store.sessions.list().items) == 1


def start_command(home: RealHome, name: str, prompt: str) -> Run:
    arguments = {
        "claude": ["--model", MODELS[name], prompt],
        "codex": ["--no-daemon", "-m", MODELS[name], prompt],
        "copilot": ["-i", prompt],
        "gemini": ["-m", MODELS[name], "-i", prompt],
        "opencode": ["--model", MODELS[name], f"--prompt={prompt}"],
        "qwen": ["-i", prompt],
    }[name]
    result = home.json("run", "-d", "--pty", "--yes", "trust", "--json", "--", name, *arguments)
    return home.get(result["id"])


def test_headless_command_is_recorded_with_its_session(home: RealHome, name: str) -> None:
    # Without spaces: opencode quotes arguments with spaces, and the stub cannot parse that.
    prompt = steps({"text": "the-only-answer", "usage": SMALL}).replace(" ", "")
    arguments = {
        "claude": ["-p", "--model", MODELS[name], prompt],
        "codex": ["exec", "--skip-git-repo-check", "-m", MODELS[name], prompt],
        "copilot": ["-p", prompt],
        "gemini": ["--skip-trust", "-m", MODELS[name], "-p", prompt],
        "opencode": ["run", "--model", MODELS[name], prompt],
        "qwen": ["-p", prompt],
    }[name]
    result = home.json("run", "-d", "--json", "--", name, *arguments)
    ended = home.wait_for_end(result["id"])
    assert ended.state is RunState.COMPLETED, home.output(ended)
    assert home.texts(ended) == ["the-only-answer"], home.log(ended)
    assert (ended.cost_micros or 0) > 0
    assert home.session_of(ended).provider == name


def find_run_with_text(home: RealHome, run: Run, text: str) -> Run | None:
    result = home.get(run.id)
    if not result.is_live:
        pytest.fail(f"the run ended: {result} {home.output(result)[-2000:]!r}")
    return result if result.session_id and text in home.texts(result) else None


def find_charged_run(home: RealHome, run: Run) -> Run | None:
    result = home.get(run.id)
    return result if result.tokens else None


def test_denied_calls_are_counted(home: RealHome, name: str) -> None:
    call = tool_step(name, home) | {"force": True}
    if name == "opencode":  # it allows everything that needs no confirmation
        config = home.machine.home / ".config/opencode/opencode.json"
        config.write_text(config.read_text().replace('{"', '{"permission": {"bash": "ask"}, "', 1))
        call = {"tool": "bash", "args": {"command": "touch a.txt", "description": "Make a.txt"}}
    ended = home.wait_for_end(start_ada(home, steps(call, {"text": "done"}), "--yes", "trust").id)
    assert ended.state is RunState.COMPLETED, (ended, home.log(ended))
    assert not (home.work / "a.txt").exists()
    assert ended.denied == {call["tool"]: 1}, home.log(ended)
    result = home.corral("show", ended.id).stdout.decode()
    assert f"completed, 1 denied ({call['tool']})" in result
    assert f"corral resume {ended.id}" in result


def test_model_without_a_price_has_no_budget(home: RealHome, name: str) -> None:
    if name not in ("codex", "copilot"):
        pytest.skip(
            "covered by one CLI with usage in the stream and one with usage in the transcript"
        )
    home.machine.env["COPILOT_MODEL"] = "stub"
    home.corral("agent", "create", "bob", "--provider", name, "--model", "stub")
    prompt = steps(
        tool_step(name, home) | {"usage": SMALL}, {"text": "unreachable", "gate": "never"}
    )
    run = home.start_agent("bob", prompt, "--yes", "all", "--budget", "5", "--grace-period", "2s")
    ended = home.wait_for_end(run.id)
    assert ended.state is RunState.CANCELLED, home.log(ended)
    assert "price of stub is unknown" in str(ended.reason)
