"""Runs of Claude Code and Codex: turns, effects and costs are kept when processes are killed."""

import os
import signal

import pytest

from corral.adapters.providers.provider import RESUME_PROMPT
from corral.domain.runs.model import Run, RunState
from tests.real.home import USAGE, AgentKind, RealHome, wait_until
from tests.real.machine import steps
from tests.support.home import is_alive


def kill_process(pid: int | None) -> None:
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), "the killed process is gone")


def open_gate(home: RealHome) -> None:
    home.stub.gate("go").set()


def resume(home: RealHome, run: Run, *arguments: str) -> Run:
    result = home.json("resume", "-d", "--json", run.id, *arguments)
    return home.wait_for_end(result["id"])


def check_continued(home: RealHome, before: Run, after: Run, mark: str) -> None:
    """Check that the same conversation ended, with its first prompt in it once."""
    assert (after.state, after.exit_code) == (RunState.COMPLETED, 0), after
    assert after.session_id == before.session_id
    assert home.texts(after) == ["I begin.", "I finished."]
    assert home.count_prompts(mark) == 1
    assert [t.role for t in home.turns(after)].count("user") == 1
    calls = [turn.tool_call_id for turn in home.turns(after) if turn.role == "tool"]
    assert len(calls) == len(set(calls)) == 1
    transcripts = [*home.machine.home.glob(".claude/projects/*/*.jsonl")]
    transcripts += home.machine.home.glob(".codex/sessions/**/*.jsonl")
    assert len(transcripts) == 1, "one conversation"
    home.wait_for_all_processes()


def test_prompt_tool_call_and_cost(home: RealHome, kind: AgentKind) -> None:
    first = kind.write("a.txt", text="I write it.", usage=USAGE)
    prompt = steps(first, {"text": "It is written."})
    run = home.start_agent(kind.name, prompt, *kind.approvals)
    ended = home.wait_for_end(run.id)
    assert (ended.state, ended.exit_code) == (RunState.COMPLETED, 0), home.log(run)
    assert (home.work / "a.txt").read_text() == "hi"
    assert ended.provider == kind.name
    assert ended.provider_version
    session = home.session_of(ended)
    assert session.provider_session

    turns = home.json("session", "turns", session.id, "--json")
    roles = [(turn["role"], bool(turn["tool_name"])) for turn in turns]
    assert roles == [
        ("user", False),
        ("assistant", False),
        ("assistant", True),
        ("tool", True),
        ("assistant", False),
    ]
    assert turns[0]["content"] == prompt
    assert [turns[index]["content"] for index in (1, 4)] == ["I write it.", "It is written."]
    assert turns[2]["tool_call_id"] == turns[3]["tool_call_id"] is not None
    assert "a.txt" in str(turns[2]["arguments"])
    assert {turn["run_id"] for turn in turns} == {run.id}

    used = kind.used()
    assert home.charged(f"run:{run.id}") == home.charged(f"session:{session.id}") == used
    assert home.charged("all") == used
    assert ended.tokens == sum(used)
    charges = home.json("charge", "list", "--run", run.id, "--json")
    names = ("input", "output", "cache_read", "cache_write")
    assert tuple(sum(charge[name] for charge in charges) for name in names) == used
    costs = [charge["cost_micros"] for charge in charges]
    if kind.name == "claude":
        assert ended.cost_micros == sum(costs) > 0
        assert ended.model
    else:
        assert set(costs) == {None}, "an unknown model has no price"
        assert ended.cost_micros is None
    home.wait_for_all_processes()


def test_killed_agent_is_resumed_in_its_conversation(home: RealHome, kind: AgentKind) -> None:
    run, mark = kind.begin_long()
    kill_process(run.pid)
    crashed = home.wait_for_end(run.id)
    assert (crashed.state, crashed.signal, crashed.exit_code) == (RunState.CRASHED, 9, None)
    before = home.session_of(run).provider_session
    open_gate(home)
    after = resume(home, crashed)
    assert home.count_prompts(RESUME_PROMPT) == 1
    assert home.session_of(after).provider_session == before
    check_continued(home, crashed, after, mark)
    assert after.id != run.id


def test_resumed_conversation_gets_the_new_prompt(home: RealHome, kind: AgentKind) -> None:
    run = home.wait_for_end(home.start_agent(kind.name, "one-prompt " + steps({"text": "one"})).id)
    assert run.state is RunState.COMPLETED, home.log(run)
    after = resume(home, run, "two-prompt " + steps({"text": "two"}))
    assert after.state is RunState.COMPLETED, home.log(after)
    assert home.texts(after) == ["one", "two"]
    assert (home.count_prompts("one-prompt"), home.count_prompts("two-prompt")) == (1, 1)
    session = home.session_of(after)
    assert home.charged(f"session:{session.id}") == kind.used()
    assert home.charged(f"run:{run.id}") != home.charged(f"run:{after.id}")


def test_agent_survives_its_supervisor_and_nothing_is_stored_twice(
    home: RealHome, kind: AgentKind
) -> None:
    run, mark = kind.begin_long()
    kill_process(run.supervisor_pid)
    home.recover()
    assert home.get(run.id).state is RunState.RUNNING
    assert home.get(run.id).supervisor_pid != run.supervisor_pid
    open_gate(home)
    check_continued(home, run, home.wait_for_end(run.id), mark)
    assert home.charged(f"run:{run.id}") == kind.used()


def test_killed_agent_and_supervisor_are_resumed(home: RealHome, kind: AgentKind) -> None:
    run, mark = kind.begin_long()
    kill_process(run.supervisor_pid)
    kill_process(run.pid)
    home.recover()
    crashed = home.wait_for_end(run.id)
    assert (crashed.state, crashed.signal) == (RunState.CRASHED, 9), crashed
    before = home.session_of(run).provider_session
    open_gate(home)
    after = resume(home, crashed)
    assert home.session_of(after).provider_session == before
    check_continued(home, crashed, after, mark)


def test_restart_continues_the_conversation(home: RealHome, kind: AgentKind) -> None:
    run, mark = kind.begin_long("--restart", "on-failure:1")
    before = home.session_of(run).provider_session
    open_gate(home)
    kill_process(run.pid)
    ended = home.wait_for_end(run.id)
    assert ended.attempts == 2
    assert home.session_of(run).provider_session == before
    assert home.count_prompts(RESUME_PROMPT) == 1
    check_continued(home, run, ended, mark)


def test_foreground_run_prints_text_and_returns_the_exit_code(
    home: RealHome, kind: AgentKind
) -> None:
    prompt = steps(kind.write("a.txt", text="I write it."), {"text": "It is written."})
    result = home.corral("run", "--agent", kind.name, *kind.approvals, prompt)
    text = result.stdout.decode()
    assert result.returncode == 0, result
    # Codex prints a warning about an unknown model.
    lines = [line for line in text.splitlines() if not line.startswith("! Model metadata")]
    assert lines[0] == "I write it."
    assert lines[-1] == "It is written."
    assert lines[1].startswith("· ")
    assert not [line for line in lines if line.startswith("{")]
    # Codex's own warnings are text too; Corral adds nothing.
    assert b"corral" not in result.stderr.replace(str(home.folder).encode(), b"")
    logged = home.corral("logs", home.only_run().id).stdout.decode()
    assert logged == text
    failed = home.corral("run", "--agent", kind.name, steps({"error": 400, "times": 99}))
    assert failed.returncode == 1
    assert b"stub error" in failed.stdout
    with home.store() as store:
        (last,) = store.runs.list(limit=1).items
    assert last.state is RunState.FAILED
    assert "stub error" in (last.reason or "")


@pytest.mark.parametrize("name", ["claude", "codex"])
def test_missing_program_fails_with_127(home: RealHome, name: str) -> None:
    result = home.corral("run", "--agent", name, "hello")
    assert result.returncode == 127, result
    assert name in result.stderr.decode()
    assert home.only_run().state is RunState.FAILED
