"""A sandboxed race with each agent CLI: it works in its private home, and its session is kept."""

import json
import shutil
from typing import Any

import pytest

from corral.domain.runs.model import Run, RunState
from tests.real.home import RealHome
from tests.real.machine import steps
from tests.real.test_runs_usage import ALL, EXPENSIVE, MODELS, SMALL
from tests.support.race_helpers import git

SHELL: dict[str, tuple[str, str, dict[str, Any]]] = {
    "claude": ("Bash", "command", {}),
    "codex": ("exec_command", "cmd", {}),
    "copilot": ("bash", "command", {"description": "x"}),
    "gemini": ("run_shell_command", "command", {}),
    "opencode": ("bash", "command", {"description": "x"}),
    "qwen": ("run_shell_command", "command", {"is_background": False}),
}
COMMIT = "echo hi > a.txt && git add a.txt && git commit -qm 'made in the sandbox'"


def shell_step(name: str, command: str, **fields: Any) -> dict[str, Any]:
    tool, argument, rest = SHELL[name]
    return {"tool": tool, "args": {argument: command, **rest}, **fields}


@pytest.fixture(params=ALL)
def name(request: pytest.FixtureRequest, home: RealHome) -> str:
    """The CLI is configured in the user's home folder, with a model that has a price."""
    name: str = request.param
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed; make test-real installs it as root")
    home.install(name)
    machine = home.machine
    machine.env |= {"COPILOT_MODEL": MODELS["copilot"], "OPENAI_MODEL": MODELS["qwen"]}
    config = machine.home / ".config/opencode/opencode.json"
    config.write_text(config.read_text().replace('"stub": {"name"', '"gpt-5": {"name"'))
    # Only variables meant for the CLI enter the sandbox.
    config = machine.home / ".codex/config.toml"
    config.write_text(config.read_text().replace("STUB_KEY", "OPENAI_API_KEY"))
    machine.write(".gitconfig", "[user]\n\tname = Ada\n\temail = ada@example.org\n")
    git(home.work, "init", "-q", "-b", "main")
    (home.work / "README").write_text("hello\n")
    git(home.work, "add", "-A")
    git(home.work, "commit", "-qm", "first")
    home.corral("agent", "create", "ada", "--provider", name, "--model", MODELS[name])
    return name


def run_race(home: RealHome, prompt: str, *options: str) -> tuple[dict[str, Any], Run]:
    result = home.corral(
        *("race", "start", prompt, "--agents", "ada", "--sandbox", "bubblewrap"),
        *("--wait", "--json", *options),
    )
    assert result.stdout, result.stderr
    (attempt,) = json.loads(result.stdout)["rounds"][0]["attempts"]
    return attempt, home.get(attempt["run_id"])


def describe_failure(home: RealHome, run: Run) -> Any:
    """Describe a run that failed, for the assertion message."""
    errors = home.output(run, "stderr")[-2_000:]
    return run.state, run.reason, home.log(run), home.output(run)[-2_000:], errors


def test_agent_edits_commits_and_is_resumed(home: RealHome, name: str) -> None:
    before = {path for path in home.machine.home.rglob("*") if path.is_file()}
    prompt = "first prompt " + steps(
        shell_step(name, COMMIT, usage=SMALL), {"text": "It is made.", "usage": SMALL}
    )
    attempt, run = run_race(home, prompt, "--yes", "all")
    assert run.state is RunState.COMPLETED, describe_failure(home, run)
    assert git(home.work, "log", "-1", "--format=%s by %an", attempt["branch"]) == (
        "made in the sandbox by Ada"
    )
    assert home.texts(run)[-1] == "It is made."
    assert [turn.role for turn in home.turns(run)][-2:] == ["tool", "assistant"]
    assert run.tokens >= 2_100, run
    assert (run.cost_micros or 0) > 0
    session = home.session_of(run)
    assert (session.provider, bool(session.provider_session)) == (name, True)
    added = {path for path in home.machine.home.rglob("*") if path.is_file()} - before
    assert added, "its transcript is written back"
    count = len(home.requests())
    next_prompt = steps({"text": "the second answer"})
    result = home.json("resume", "-d", "--json", run.id, next_prompt)
    after = home.wait_for_end(result["id"])
    assert after.state is RunState.COMPLETED, describe_failure(home, after)
    assert home.texts(after)[-1] == "the second answer"
    assert len(home.requests()) > count
    assert home.count_prompts("first prompt") == 1
    assert home.session_of(after).provider_session == session.provider_session
    home.wait_for_all_processes()


def test_budget_is_enforced(home: RealHome, name: str) -> None:
    prompt = steps(
        shell_step(name, "true", usage=EXPENSIVE), {"text": "unreachable", "gate": "never"}
    )
    _, run = run_race(home, prompt, "--yes", "all", "--budget", "0.05")
    ended = home.wait_for_end(run.id)
    assert ended.state is RunState.CANCELLED, describe_failure(home, ended)
    # The supervisor of the run and the driver of the race enforce the same budget.
    spent = (
        "its budget is spent: $",
        "the attempt was cancelled: the budget of the round is spent",
    )
    assert str(ended.reason).startswith(spent), ended.reason
    assert (ended.cost_micros or 0) >= 50_000
    assert len(home.requests()) <= 3
    home.wait_for_all_processes()


def test_denied_calls_are_counted(home: RealHome, name: str) -> None:
    call = shell_step(name, "touch denied.txt", force=True)
    if name == "opencode":
        config = home.machine.home / ".config/opencode/opencode.json"
        result = json.loads(config.read_text()) | {"permission": {"bash": "ask"}}
        config.write_text(json.dumps(result))
    _, run = run_race(home, steps(call, {"text": "done"}))
    assert run.state is RunState.COMPLETED, describe_failure(home, run)
    assert run.denied == {call["tool"]: 1}, (home.log(run), home.turns(run))
