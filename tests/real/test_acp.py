"""Real agents that speak the Agent Client Protocol."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from corral.adapters.providers.facts import (
    LogFact,
    PermissionFact,
    SessionFact,
    TurnFact,
    UsageFact,
)
from tests.real.conftest import Agent
from tests.real.machine import INSTALL_HINT, Machine, program, steps
from tests.support.acp_client import AcpRun

OpenRun = Callable[..., AcpRun]


def write_step(agent: str, machine: Machine, name: str) -> dict[str, Any]:
    if agent == "codex-acp":
        return {"tool": "~exec_command|shell", "args": {"cmd": f"echo hi > {name}"}}
    if agent == "claude-agent-acp":
        file = f"{machine.work}/{name}"
        return {"tool": "~Write$", "args": {"file_path": file, "content": "hi\n"}}
    file = {"file_path": f"{machine.work}/{name}", "content": "hi\n"}
    return {"tool": "~^write(_file)?$", "args": {**file, "filePath": file["file_path"]}}


@pytest.fixture(params=["claude-agent-acp", "codex-acp", "gemini", "qwen", "opencode"])
def agent(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if program(name) is None:
        pytest.skip(f"{name} is not installed: {INSTALL_HINT}")
    return name


@pytest.fixture
def open_run(agent: str, machine: Machine) -> Iterator[OpenRun]:
    if agent == "claude-agent-acp":
        result = program("claude")
        if result:
            machine.env["CLAUDE_CODE_EXECUTABLE"] = result
    # The npm package of codex-acp lacks the sandbox that it needs.
    machine.configure(sandbox="danger-full-access")
    arguments = {
        "gemini": ["--acp", "--skip-trust", "-m", "gemini-2.5-pro"],
        "qwen": ["--acp", "--approval-mode=default"],
        "opencode": ["acp"],
    }
    runs: list[AcpRun] = []

    def start(**options: Any) -> AcpRun:
        args = [str(program(agent)), *arguments.get(agent, [])]
        runs.append(AcpRun(args, cwd=str(machine.work), env=machine.env, **options))
        return runs[-1]

    yield start
    for run in runs:
        run.__exit__(None, None, None)


def list_facts(run: AcpRun, kind: type) -> list[Any]:
    return [fact for fact in run.facts if isinstance(fact, kind)]


def test_agent_answers_and_its_session_continues_in_another_process(
    agent: str, open_run: OpenRun, machine: Machine
) -> None:
    first = open_run(prompt=steps({"text": "one"}))
    assert first.done().ok
    assert list_facts(first, TurnFact)[-1].content.endswith("one")
    (named,) = list_facts(first, SessionFact)
    first.talk.prompt(steps({"text": "more"}))
    assert first.done().ok
    first.end()
    if agent == "gemini":
        pytest.skip("gemini 0.61 does not load a session that it wrote in the same minute")
    second = open_run(prompt=steps({"text": "two"}), session=named.id)
    assert second.done().ok, second.facts
    assert [turn.content[-3:] for turn in list_facts(second, TurnFact)] == ["two"]
    usages = [entry["usage"] for entry in machine.stub.seen if "usage" in entry and entry["tools"]]
    for used in [*list_facts(first, UsageFact), *list_facts(second, UsageFact)]:
        assert (used.input, used.output) in [(usage["input"], usage["output"]) for usage in usages]


def test_tool_is_used_when_the_policy_allows_it(
    agent: str, open_run: OpenRun, machine: Machine
) -> None:
    prompt = steps(write_step(agent, machine, "a.txt"), {"text": "done"})
    run = open_run(prompt=prompt, policy=frozenset({"all"}))
    assert run.done().ok
    assert (machine.work / "a.txt").exists(), run.facts
    roles = [turn.role for turn in list_facts(run, TurnFact)]
    assert "tool" in roles
    assert list_facts(run, PermissionFact) == []


def test_person_is_asked_when_the_policy_does_not_allow_a_tool(
    agent: str, open_run: OpenRun, machine: Machine
) -> None:
    if agent in ("codex-acp", "opencode"):
        pytest.skip(f"{agent} asks by its own configuration, which allows this")
    prompt = steps(write_step(agent, machine, "b.txt"), {"text": "done"})
    run = open_run(prompt=prompt)
    request = run.wait_for_permission_request()
    assert request.options
    run.talk.answer(request.id, False)
    run.done()
    assert not (machine.work / "b.txt").exists()
    assert not [fact for fact in list_facts(run, LogFact) if "Granted" in fact.message]


def test_turn_can_be_cancelled(agent: str, open_run: OpenRun, machine: Machine) -> None:
    run = open_run(prompt=steps({"text": "a long answer, " * 20, "hang": 60}))
    run.wait_until(SessionFact)
    while not any("usage" in entry for entry in machine.stub.seen):
        pass
    run.talk.cancel()
    assert run.done(30).reason == "cancelled"


def test_real_agents_are_found_by_name(claude: Agent) -> None:
    assert program("claude") == claude.program
