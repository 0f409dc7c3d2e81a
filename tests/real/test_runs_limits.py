"""Runs of Claude Code and Codex at their limits: quotas, budgets, denied tools."""

import os
import time
from typing import Any

import pytest

from corral.domain.runs.model import Attention, Run, RunState
from tests.real.home import AgentKind, RealHome, wait_until
from tests.real.machine import steps

MINUTE_MS = 60_000


def claude_quota(home: RealHome, reset: int) -> dict[str, Any]:
    """Return the response of Anthropic's server when a subscriber's quota is used up."""
    home.env["CLAUDE_CODE_OAUTH_TOKEN"] = "dummy"
    home.env.pop("ANTHROPIC_API_KEY", None)
    headers = {
        "anthropic-ratelimit-unified-status": "rejected",
        "anthropic-ratelimit-unified-reset": str(reset),
        "anthropic-ratelimit-unified-representative-claim": "five_hour",
    }
    return {"error": 429, "headers": headers}


def codex_quota(reset: int) -> dict[str, Any]:
    error = {"type": "usage_limit_reached", "message": "limit", "resets_at": reset}
    return {"error": 429, "body": {"error": {**error, "plan_type": "plus"}}}


def wait_for_parked(home: RealHome, run: Run) -> Run:
    def find_parked() -> Run | None:
        current = home.get(run.id)
        assert current.is_live, (current, home.log(run))
        return current if current.attention is Attention.PARKED else None

    result = wait_until(find_parked, "the run is parked")
    assert result.state is RunState.QUEUED
    return result


def test_claude_waits_for_its_quota_and_continues(home: RealHome) -> None:
    home.install("claude")
    reset = int(time.time()) + 20
    fault = claude_quota(home, reset)
    reply = {"text": "The quota is available again.", "gate": "quota"}
    prompt = "first-prompt " + steps({**fault, **reply}, reply, reply)
    run = home.start_agent("claude", prompt)
    waiting = wait_for_parked(home, run)
    assert waiting.due_at == reset * 1_000
    session = home.session_of(run).provider_session
    listed = home.json("ps", "--json")
    assert [row["attention"] for row in listed] == ["parked"]
    home.stub.gate("quota").set()
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.exit_code, ended.attempts) == (RunState.COMPLETED, 0, 2), (
        ended.reason,
        home.events(run),
        home.log(run),
    )
    assert ended.attention is None
    assert (ended.ended_at or 0) >= reset * 1_000
    assert home.texts(ended)[-1] == "The quota is available again."
    assert home.count_prompts("first-prompt") == 1
    assert home.session_of(run).provider_session == session
    assert "requeue" in home.events(run)


def test_codex_waits_for_its_reset_time(home: RealHome) -> None:
    home.install("codex")
    reset = int(time.time()) + 7_200
    run = home.start_agent("codex", steps({**codex_quota(reset), "times": 99}))
    waiting = wait_for_parked(home, run)
    assert abs(waiting.due_at - reset * 1_000) <= MINUTE_MS, waiting
    assert home.session_of(run).provider_session
    assert home.corral("stop", run.id).returncode == 0
    assert home.wait_for_end(run.id).state is RunState.CANCELLED
    home.wait_for_all_processes()


def test_limit_without_a_reset_time_is_retried_after_five_minutes(
    home: RealHome, kind: AgentKind
) -> None:
    before = int(time.time() * 1_000)
    run = home.start_agent(kind.name, steps({"error": 429, "times": 99}))
    waiting = wait_for_parked(home, run)
    now = int(time.time() * 1_000)
    assert before + 5 * MINUTE_MS <= waiting.due_at <= now + 5 * MINUTE_MS
    home.corral("stop", run.id)
    assert home.wait_for_end(run.id).state is RunState.CANCELLED


def test_spent_budget_stops_claude_during_a_turn(home: RealHome) -> None:
    home.install("claude")
    kind = AgentKind("claude", home)
    usage = {"input": 2_000_000, "output": 10}
    prompt = steps(kind.shell("true", usage=usage), {"text": "unreachable", "gate": "never"})
    run = home.start_agent(
        "claude", prompt, *kind.approvals, "--budget", "0.05", "--grace-period", "2s"
    )
    ended = home.wait_for_end(run.id)
    assert ended.state is RunState.CANCELLED
    assert str(ended.reason).startswith("its budget is spent: $"), ended.reason
    assert (ended.cost_micros or 0) >= 50_000
    assert ended.tokens == sum(home.charged(f"run:{run.id}"))
    refused = home.corral("run", "-d", "--agent", "claude", "--budget", "-1", "x")
    assert refused.returncode != 0


def test_spent_project_budget_rejects_the_next_run(home: RealHome) -> None:
    home.install("claude")
    usage = {"input": 2_000_000, "output": 10}
    first = home.wait_for_end(
        home.start_agent("claude", steps({"text": "expensive", "usage": usage})).id
    )
    assert (first.cost_micros or 0) > 1_000_000
    assert home.corral("budget", "set", "all", "1").returncode == 0
    second = home.corral("run", "--agent", "claude", "--budget", "0.5", steps({"text": "more"}))
    assert second.returncode != 0, second
    assert b"budget" in second.stderr
    assert len(home.requests()) == 1, "the model got no request"


def test_codex_with_a_known_model_has_a_price(home: RealHome) -> None:
    home.install("codex")
    result = home.corral("agent", "create", "ada", "--provider", "codex", "--model", "gpt-5-codex")
    assert result.returncode == 0, result
    usage = {"input": 1_000_000, "output": 1_000}
    run = home.wait_for_end(
        home.start_agent("ada", steps({"text": "expensive", "usage": usage})).id
    )
    assert run.state is RunState.COMPLETED, home.log(run)
    assert run.model == "gpt-5-codex"
    # 1.25 dollars per million input tokens, 10 per million output tokens.
    assert run.cost_micros == 1_260_000


def test_denied_tool_is_denied_and_logged(home: RealHome) -> None:
    home.install("claude")
    kind = AgentKind("claude", home)
    home.corral("agent", "create", "ada", "--provider", "claude")
    assert home.corral("agent", "grant", "ada", "Bash(touch *)", "--deny").returncode == 0
    assert home.corral("agent", "grant", "ada", "Write", "--deny").returncode == 0
    assert home.corral("agent", "grant", "ada", "Bash").returncode == 0
    prompt = steps(
        kind.shell("touch denied.txt"),
        kind.write("b.txt", force=True),
        kind.shell("echo hi > allowed.txt"),
        {"text": "I could do one of them."},
    )
    run = home.wait_for_end(home.start_agent("ada", prompt).id)
    assert run.state is RunState.COMPLETED, home.log(run)
    assert (home.work / "allowed.txt").exists()
    assert not (home.work / "denied.txt").exists()
    assert not (home.work / "b.txt").exists()
    answers = [turn for turn in home.turns(run) if turn.role == "tool"]
    assert [turn.is_error for turn in answers] == [True, True, False]
    offered = home.requests()[0]["tools"]
    assert "Write" not in offered
    log = home.corral("logs", "--log", run.id).stdout.decode()
    assert "Bash" in log, log
    assert run.agent_version is not None


def test_tool_that_is_not_allowed_is_denied_and_logged(home: RealHome, kind: AgentKind) -> None:
    run = home.wait_for_end(
        home.start_agent(kind.name, steps(kind.write("a.txt"), {"text": "ok"})).id
    )
    assert run.state is RunState.COMPLETED, home.log(run)
    assert not (home.work / "a.txt").exists()
    result = [entry["last"] for entry in home.requests()][-1]
    assert result[0] == "tool"
    if kind.name == "codex":
        # Its stream does not report a command that its sandbox blocked or that could not be run
        # without one.
        assert "exited with code" in result[1]
        assert "exited with code 0" not in result[1]
    else:
        assert [turn.is_error for turn in home.turns(run) if turn.role == "tool"] == [True]
        assert "Write" in home.corral("logs", "--log", run.id).stdout.decode()


@pytest.mark.skipif(os.geteuid() != 0, reason="claude refuses this only as root")
@pytest.mark.parametrize("mode", [(), ("--pty",)], ids=["headless", "terminal"])
def test_claude_as_root_is_not_started_with_all_approvals(
    home: RealHome, mode: tuple[str, ...]
) -> None:
    home.install("claude")
    result = home.corral("run", "-d", "--agent", "claude", "--yes", "all", *mode, "hello")
    assert result.returncode != 0
    assert b"--yes edit" in result.stderr
    assert home.only_run().state is RunState.FAILED
    home.env["IS_SANDBOX"] = "1"  # what a user sets in a container
    if not mode:
        run = home.wait_for_end(
            home.start_agent("claude", steps({"text": "ok"}), "--yes", "all").id
        )
        assert run.state is RunState.COMPLETED, home.log(run)


def test_codex_is_not_started_with_an_unsupported_deny_rule(home: RealHome) -> None:
    home.install("codex")
    home.corral("agent", "create", "ada", "--provider", "codex")
    home.corral("agent", "grant", "ada", "shell", "--deny")
    result = home.corral("run", "-d", "--agent", "ada", "hello")
    assert result.returncode != 0
    assert b"cannot disable single tools" in result.stderr
    assert home.only_run().state is RunState.FAILED
    assert home.requests() == []
