"""The other CLIs, if installed: their arguments work and their streams are parsed."""

import uuid

import pytest

from corral.adapters.providers.facts import ResultFact, SessionFact, TurnFact, UsageFact
from corral.adapters.providers.provider import LaunchRequest
from tests.real.conftest import Agent
from tests.real.machine import Machine, steps

USAGE = {"input": 1000, "output": 50, "cache_read": 300}
WRITE = {
    "gemini": ("write_file", {"file_path": "{}/a.txt", "content": "hi"}),
    "qwen": ("write_file", {"file_path": "{}/a.txt", "content": "hi"}),
    "opencode": ("write", {"filePath": "{}/a.txt", "content": "hi"}),
    "copilot": ("create", {"path": "{}/a.txt", "file_text": "hi"}),
}
MODELS = {"gemini": "gemini-2.5-pro"}


@pytest.fixture(params=sorted(WRITE))
def agent(request: pytest.FixtureRequest) -> Agent:
    return Agent(request.param)


def write_step(agent: Agent, machine: Machine) -> dict[str, object]:
    tool, arguments = WRITE[agent.provider.name]
    args = {name: value.format(machine.work) for name, value in arguments.items()}
    return {"text": "I write it.", "tool": tool, "args": args, "usage": USAGE}


def test_prompt_tool_call_and_resume(agent: Agent, machine: Machine) -> None:
    name, model = agent.provider.name, MODELS.get(agent.provider.name)
    chosen = None if name == "opencode" else str(uuid.uuid4())
    prompt = steps(write_step(agent, machine), {"text": "done", "usage": {"input": 5, "output": 6}})
    ask = LaunchRequest(prompt, session=chosen, model=model, approvals=("all",))
    result = machine.run(agent.provider, agent.build_command(ask))
    assert result.code == 0, result
    assert (machine.work / "a.txt").read_text() == "hi"
    session = result.of(SessionFact)[0].id
    assert session == (chosen or session)
    roles = [turn.role for turn in result.of(TurnFact)]
    assert roles == ["assistant", "assistant", "tool", "assistant"]
    assert result.of(ResultFact)[-1].ok
    if name != "copilot":  # whose stream reports no tokens
        assert sum(used.input for used in result.of(UsageFact)) >= 705
        assert sum(used.cache_read for used in result.of(UsageFact)) == 300
    resume = LaunchRequest(
        steps({"text": "two"}), session=session, resume=True, model=model, approvals=("trust",)
    )
    second = machine.run(agent.provider, agent.build_command(resume))
    assert second.code == 0, second
    assert second.of(SessionFact)[0].id == session
    assert second.of(TurnFact)[-1].content == "two"


def test_without_approval_nothing_is_written(agent: Agent, machine: Machine) -> None:
    model = MODELS.get(agent.provider.name)
    prompt = steps(write_step(agent, machine), {"text": "done"})
    result = machine.run(
        agent.provider,
        agent.build_command(LaunchRequest(prompt, model=model, approvals=("trust",))),
    )
    if agent.provider.name == "opencode":
        pytest.skip("opencode allows edits by its own default; a denial is its own test")
    assert not (machine.work / "a.txt").exists(), result


def test_approved_edit_is_made(agent: Agent, machine: Machine) -> None:
    model = MODELS.get(agent.provider.name)
    prompt = steps(write_step(agent, machine), {"text": "done"})
    allowed = ("edit", "trust")
    result = machine.run(
        agent.provider, agent.build_command(LaunchRequest(prompt, model=model, approvals=allowed))
    )
    assert (machine.work / "a.txt").exists(), result


def test_denied_tool_is_not_used(agent: Agent, machine: Machine) -> None:
    if agent.provider.name == "gemini":
        pytest.skip("gemini cannot disable single tools")
    tool = {"opencode": "edit", "qwen": "write_file", "copilot": "write"}[agent.provider.name]
    prompt = steps(write_step(agent, machine), {"text": "done"})
    machine.run(
        agent.provider, agent.build_command(LaunchRequest(prompt, approvals=("all",), deny=(tool,)))
    )
    assert not (machine.work / "a.txt").exists()


def test_error_of_the_server_is_a_failure(agent: Agent, machine: Machine) -> None:
    model = MODELS.get(agent.provider.name)
    result = machine.run(
        agent.provider,
        agent.build_command(
            LaunchRequest(steps({"error": 400, "times": 99}), model=model, approvals=("trust",))
        ),
    )
    assert result.of(ResultFact)[-1].ok is False, result
