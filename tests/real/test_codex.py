"""Codex: arguments, stream, usage, limits and transcripts of the real program."""

import os
import signal
import time
import uuid

from corral.adapters.providers.facts import LimitFact, ResultFact, SessionFact, TurnFact, UsageFact
from corral.adapters.providers.provider import LaunchRequest
from corral.adapters.transcripts import codex as transcripts
from tests.real.conftest import Agent
from tests.real.machine import Machine, end, read, steps, total

USAGE = {"input": 1000, "output": 50, "cache_read": 300}


def shell_step(command: str, **fields: object) -> dict[str, object]:
    return {"tool": "exec_command", "args": {"cmd": command}, **fields}


def test_version_is_detected(codex: Agent) -> None:
    assert codex.provider.probe_version(codex.program)


def test_prompt_tool_call_and_usage(codex: Agent, machine: Machine) -> None:
    prompt = steps(shell_step("echo hi > a.txt", text="I write it.", usage=USAGE), {"text": "done"})
    result = machine.run(
        codex.provider, codex.build_command(LaunchRequest(prompt, approvals=("all",)))
    )
    assert result.code == 0, result
    assert (machine.work / "a.txt").read_text() == "hi\n"
    assert [turn.role for turn in result.of(TurnFact)] == [
        "assistant",
        "assistant",
        "tool",
        "assistant",
    ]
    assert result.of(ResultFact) == [ResultFact(True)]
    assert total(result.of(UsageFact), cached_in_input=True) == machine.used()


def test_only_allowed_tools_run(codex: Agent, machine: Machine) -> None:
    prompt = steps(shell_step("touch b.txt"), {"text": "ok"})
    result = machine.run(codex.provider, codex.build_command(LaunchRequest(prompt)))
    assert result.code == 0, result
    assert not (machine.work / "b.txt").exists()


def test_resumed_thread_continues_and_adds_up_usage(codex: Agent, machine: Machine) -> None:
    first = machine.run(
        codex.provider, codex.build_command(LaunchRequest(steps({"text": "one", "usage": USAGE})))
    )
    thread = first.of(SessionFact)[0].id
    resume = codex.build_command(LaunchRequest(steps({"text": "two"}), session=thread, resume=True))
    second = machine.run(codex.provider, resume)
    assert second.code == 0, second
    assert second.of(SessionFact)[0].id == thread
    (used,) = second.of(UsageFact)
    assert used.counter == first.of(UsageFact)[0].counter
    assert total([used], cached_in_input=True) == machine.used()
    latest = machine.run(codex.provider, codex.build_command(LaunchRequest(None, latest=True)))
    assert latest.of(SessionFact)[0].id == thread, latest


def test_unknown_thread_exits_with_1(codex: Agent, machine: Machine) -> None:
    result = machine.run(
        codex.provider,
        codex.build_command(LaunchRequest("x", session=str(uuid.uuid4()), resume=True)),
    )
    assert result.code == 1
    assert b"no rollout found" in result.err


def test_killed_agent_continues_where_it_was(codex: Agent, machine: Machine) -> None:
    prompt = steps(
        shell_step("echo 1", text="first", usage=USAGE), {"text": "unreachable", "hang": 60}
    )
    start = codex.build_command(LaunchRequest(prompt, approvals=("all",)))
    process = machine.popen(start)
    try:
        assert process.stdin
        assert process.stdout
        process.stdin.write(prompt.encode())
        process.stdin.close()
        out = b""
        while b'"exit_code":0' not in out:
            line = process.stdout.readline()
            assert line, out
            out += line
        time.sleep(0.5)  # its transcript is written in parallel to the stream
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    finally:
        end(process)
    facts = read(codex.provider.create_parser(), out)
    (named,) = [fact for fact in facts if isinstance(fact, SessionFact)]
    assert not [fact for fact in facts if isinstance(fact, UsageFact | ResultFact)]
    result = machine.run(
        codex.provider, codex.build_command(LaunchRequest(None, session=named.id, resume=True))
    )
    assert result.code == 0, result
    assert result.of(SessionFact)[0].id == named.id
    # The thread's total includes the usage of the killed process.
    (used,) = result.of(UsageFact)
    assert used.cache_read == 300
    assert used.input >= 700


def test_rate_limit_has_its_reset_time(codex: Agent, machine: Machine) -> None:
    reset = int(time.time()) + 7_200
    error = {"type": "usage_limit_reached", "message": "limit", "resets_at": reset}
    error["plan_type"] = "plus"
    prompt = steps({"error": 429, "times": 99, "body": {"error": error}})
    result = machine.run(codex.provider, codex.build_command(LaunchRequest(prompt)))
    assert result.code == 1
    (limit,) = result.of(LimitFact)
    assert limit.reset_at is not None
    assert abs(limit.reset_at - reset * 1_000) <= 60_000  # its message contains the minute


def test_too_many_requests_is_a_limit(codex: Agent, machine: Machine) -> None:
    result = machine.run(
        codex.provider, codex.build_command(LaunchRequest(steps({"error": 429, "times": 99})))
    )
    assert len(result.of(LimitFact)) == 1


def test_prompt_of_a_megabyte_arrives_whole(codex: Agent, machine: Machine) -> None:
    prompt = "x" * 1_000_000 + "the end"
    result = machine.run(codex.provider, codex.build_command(LaunchRequest(prompt)))
    assert any(prompt in str(entry["body"]) for entry in machine.stub.seen if "body" in entry), (
        result
    )


def test_instructions_and_model_reach_the_model(codex: Agent, machine: Machine) -> None:
    ask = LaunchRequest(
        steps({"text": "ok"}), instructions='Be "--brief".\nAlways.', model="stub-2"
    )
    assert machine.run(codex.provider, codex.build_command(ask)).code == 0
    body = next(entry["body"] for entry in machine.stub.seen if "body" in entry)
    assert body["model"] == "stub-2"
    assert 'Be "--brief".\\nAlways.' in str(body["input"])


def test_transcript_matches_the_stream(codex: Agent, machine: Machine) -> None:
    prompt = steps(shell_step("echo 1", text="I run.", usage=USAGE), {"text": "done"})
    completed = machine.run(
        codex.provider, codex.build_command(LaunchRequest(prompt, approvals=("all",)))
    )
    (file,) = codex.provider.iter_transcripts(machine.home)
    assert codex.provider.find_transcript(machine.home, completed.of(SessionFact)[0].id) == file
    result = transcripts.read_head(file)
    assert result is not None
    assert (result.session, result.cwd) == (completed.of(SessionFact)[0].id, str(machine.work))
    items = list(transcripts.iter_items(file))
    used = [item.fact for item in items if isinstance(item.fact, UsageFact)]
    assert total(used[-1:], cached_in_input=True) == machine.used()
    assert used[-1].counter == completed.of(UsageFact)[0].counter
    turns = [item.fact.role for item in items if isinstance(item.fact, TurnFact)]
    assert turns == ["user", "assistant", "assistant", "tool", "assistant"]
