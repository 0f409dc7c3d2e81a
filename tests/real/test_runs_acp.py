"""Whole runs of real agents over the Agent Client Protocol."""

from typing import Any

import pytest

from corral.domain.runs.model import Attention, RunMode, RunState
from tests.real.home import RealHome, wait_until
from tests.real.machine import program, steps
from tests.real.test_runs_usage import EXPENSIVE, MODELS

PROGRAMS = {
    "claude": "claude-agent-acp",
    "codex": "codex-acp",
    "gemini": "gemini",
    "qwen": "qwen",
    "opencode": "opencode",
    "copilot": "copilot",
}


@pytest.fixture(params=PROGRAMS)
def agent(request: pytest.FixtureRequest, home: RealHome) -> str:
    name = str(request.param)
    home.install(PROGRAMS[name])
    if name == "claude":
        home.env["CLAUDE_CODE_EXECUTABLE"] = str(program("claude"))
    # The npm package of codex-acp lacks the sandbox that it needs.
    home.machine.configure(sandbox="danger-full-access")
    return name


def write_step(home: RealHome, agent: str, name: str) -> dict[str, Any]:
    if agent == "codex":
        return {"tool": "~exec_command|shell", "args": {"cmd": f"printf hi > {name}"}}
    file = f"{home.work}/{name}"
    if agent == "copilot":
        return {"tool": "create", "args": {"path": file, "file_text": "hi"}}
    args = {"file_path": file, "filePath": file, "content": "hi"}
    if agent == "claude":
        del args["filePath"]
    return {"tool": "~^(.*__)?write(_file)?$", "args": args}


def test_spent_budget_stops_the_run(home: RealHome, agent: str) -> None:
    home.machine.env |= {"COPILOT_MODEL": MODELS["copilot"], "OPENAI_MODEL": MODELS["qwen"]}
    config = home.machine.home / ".config/opencode/opencode.json"
    config.write_text(config.read_text().replace('"stub": {"name"', '"gpt-5": {"name"'))
    config.write_text(config.read_text().replace("stub/stub", "stub/gpt-5"))
    # The protocol does not pass the agent's model to codex.
    config = home.machine.home / ".codex/config.toml"
    config.write_text(config.read_text().replace('model = "stub"', f'model = "{MODELS["codex"]}"'))
    home.corral("agent", "create", "ada", "--provider", agent, "--model", MODELS[agent])
    first = write_step(home, agent, "a.txt") | {"usage": EXPENSIVE}
    prompt = steps(first, {"text": "unreachable", "gate": "never"})
    limits = ("--budget", "0.05", "--grace-period", "2s")
    ended = home.wait_for_end(home.start_agent("ada", prompt, "--acp", "--yes", "all", *limits).id)
    assert ended.state is RunState.CANCELLED, (ended, home.log(ended))
    assert str(ended.reason).startswith("its budget is spent: $"), ended.reason
    assert (ended.cost_micros or 0) >= 50_000, ended
    assert len(home.requests()) <= 3
    home.wait_for_all_processes()


def test_agent_uses_a_tool_and_its_session_continues(home: RealHome, agent: str) -> None:
    prompt = "first-prompt " + steps(write_step(home, agent, "a.txt"), {"text": "one"})
    run = home.start_agent(agent, prompt, "--acp", "--yes", "all")
    ended = home.wait_for_end(run.id)
    assert ended.mode is RunMode.ACP
    assert ended.state is RunState.COMPLETED, (ended, home.log(run))
    assert (home.work / "a.txt").read_text() == "hi"
    roles = [turn.role.value for turn in home.turns(ended)]
    assert roles[0] == "user"
    assert "tool" in roles
    assert home.texts(ended)[-1].endswith("one")
    session = home.session_of(ended).provider_session
    assert session
    home.wait_for_all_processes()
    if agent == "gemini":
        pytest.skip("gemini 0.61 does not load a session that it wrote in the same minute")
    result = home.json("resume", "-d", "--json", run.id, steps({"text": "two"}))
    after = home.wait_for_end(result["id"])
    assert after.state is RunState.COMPLETED, (after, home.log(after))
    assert after.mode is RunMode.ACP
    assert home.texts(after)[-1].endswith("two")
    assert home.count_prompts("first-prompt") == 1
    assert home.session_of(after).provider_session == session
    home.wait_for_all_processes()


def test_permission_request_waits_for_a_person(home: RealHome, agent: str) -> None:
    if agent in ("codex", "opencode"):
        pytest.skip(f"{agent} asks by its own configuration, which allows this")
    prompt = steps(write_step(home, agent, "b.txt"), {"text": "done"})
    run = home.start_agent(agent, prompt, "--acp")
    wait_until(lambda: home.get(run.id).attention is Attention.NEEDS_INPUT, "the agent asks")
    assert not (home.work / "b.txt").exists()
    assert home.corral("send", run.id, "no").returncode == 0
    home.wait_for_end(run.id)
    assert not (home.work / "b.txt").exists()
    assert any(line.startswith("The agent asks") for line in home.log(run))
    home.wait_for_all_processes()
