"""Claude Code: arguments, stream, usage, limits and transcripts of the real program."""

import os
import signal
import time
import uuid

from corral.adapters.providers.facts import (
    LimitFact,
    LogFact,
    ResultFact,
    SessionFact,
    TurnFact,
    UsageFact,
)
from corral.adapters.providers.provider import LaunchRequest
from corral.adapters.transcripts import claude as transcripts
from tests.real.conftest import Agent
from tests.real.machine import Machine, end, read, steps, total

USAGE = {"input": 1000, "output": 50, "cache_read": 300, "cache_write": 20}


def test_version_is_detected(claude: Agent) -> None:
    version = claude.provider.probe_version(claude.program)
    assert version is not None
    assert int(version.split(".")[0]) >= 2


def test_prompt_tool_call_and_usage(claude: Agent, machine: Machine) -> None:
    session = str(uuid.uuid4())
    write = {"tool": "Write", "args": {"file_path": f"{machine.work}/a.txt", "content": "hi"}}
    prompt = steps({"text": "I write it.", **write, "usage": USAGE}, {"text": "done"})
    result = machine.run(
        claude.provider,
        claude.build_command(LaunchRequest(prompt, session=session, approvals=("edit",))),
    )
    assert result.code == 0, result
    assert (machine.work / "a.txt").read_text() == "hi"
    (named,) = result.of(SessionFact)
    assert named.id == session
    assert named.version == claude.provider.probe_version(claude.program)
    assert [turn.role for turn in result.of(TurnFact)] == [
        "assistant",
        "assistant",
        "tool",
        "assistant",
    ]
    assert result.of(ResultFact) == [ResultFact(True, "done")]
    assert total(result.of(UsageFact)) == machine.used()
    assert all(used.cost_micros for used in result.of(UsageFact))


def test_only_allowed_tools_run(claude: Agent, machine: Machine) -> None:
    call = {"tool": "Bash", "args": {"command": f"touch {machine.work}/b"}}
    start = claude.build_command(
        LaunchRequest(steps(call, {"text": "ok"}), approvals=("edit",), deny=("WebFetch",))
    )
    result = machine.run(claude.provider, start)
    assert result.code == 0, result
    assert not (machine.work / "b").exists()
    assert [turn.is_error for turn in result.of(TurnFact) if turn.role == "tool"] == [True]
    assert result.of(LogFact)
    allowed = machine.run(
        claude.provider, claude.build_command(LaunchRequest(steps(call), approvals=("run",)))
    )
    assert (machine.work / "b").exists(), allowed


def test_resumed_conversation_remembers_and_is_charged_for_new_tokens(
    claude: Agent, machine: Machine
) -> None:
    session = str(uuid.uuid4())
    first = machine.run(
        claude.provider,
        claude.build_command(LaunchRequest(steps({"text": "one"}), session=session)),
    )
    resume = claude.build_command(
        LaunchRequest(steps({"text": "two"}), session=session, resume=True)
    )
    second = machine.run(claude.provider, resume)
    assert second.code == 0, second
    assert second.of(SessionFact)[0].id == session
    assert machine.stub.seen[-1]["entries"] >= 3
    assert total([*first.of(UsageFact), *second.of(UsageFact)]) == machine.used()


def test_latest_conversation_of_the_folder_continues(claude: Agent, machine: Machine) -> None:
    first = machine.run(
        claude.provider, claude.build_command(LaunchRequest(steps({"text": "one"})))
    )
    second = machine.run(
        claude.provider, claude.build_command(LaunchRequest(steps({"text": "two"}), latest=True))
    )
    assert second.of(SessionFact)[0].id == first.of(SessionFact)[0].id


def test_unknown_session_is_a_failure(claude: Agent, machine: Machine) -> None:
    result = machine.run(
        claude.provider,
        claude.build_command(LaunchRequest("hi", session=str(uuid.uuid4()), resume=True)),
    )
    assert result.code == 1
    assert "No conversation found" in result.of(ResultFact)[0].message


def test_killed_agent_continues_where_it_was(claude: Agent, machine: Machine) -> None:
    session = str(uuid.uuid4())
    prompt = steps(
        {"text": "first", "tool": "Bash", "args": {"command": "echo 1"}, "usage": USAGE},
        {"text": "unreachable", "hang": 60},
    )
    start = claude.build_command(LaunchRequest(prompt, session=session, approvals=("run",)))
    process = machine.popen(start)
    try:
        assert process.stdin
        assert process.stdout
        process.stdin.write(prompt.encode())
        process.stdin.close()
        out = b""
        while b"tool_result" not in out:
            line = process.stdout.readline()
            assert line, out
            out += line
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    finally:
        end(process)
    facts = read(claude.provider.create_parser(), out)
    assert not [fact for fact in facts if isinstance(fact, ResultFact)]
    (used,) = [fact for fact in facts if isinstance(fact, UsageFact)]
    assert (used.input, used.cache_read) == (1000, 300)
    result = machine.run(
        claude.provider, claude.build_command(LaunchRequest(None, session=session, resume=True))
    )
    assert result.code == 0, result
    assert result.of(SessionFact)[0].id == session
    assert result.of(ResultFact)[0].ok


def test_rate_limit_has_its_reset_time(claude: Agent, machine: Machine) -> None:
    reset = int(time.time()) + 7_200
    headers = {
        "anthropic-ratelimit-unified-status": "rejected",
        "anthropic-ratelimit-unified-reset": str(reset),
        "anthropic-ratelimit-unified-representative-claim": "five_hour",
    }
    machine.env["CLAUDE_CODE_OAUTH_TOKEN"] = "dummy"
    del machine.env["ANTHROPIC_API_KEY"]
    prompt = steps({"error": 429, "times": 99, "headers": headers})
    result = machine.run(claude.provider, claude.build_command(LaunchRequest(prompt)))
    assert result.code == 1
    (limit,) = result.of(LimitFact)
    assert limit.reset_at == reset * 1_000
    assert not result.of(ResultFact)[0].ok


def test_too_many_requests_without_a_quota_is_a_limit(claude: Agent, machine: Machine) -> None:
    result = machine.run(
        claude.provider, claude.build_command(LaunchRequest(steps({"error": 429, "times": 99})))
    )
    assert len(result.of(LimitFact)) == 1
    assert result.of(LimitFact)[0].reset_at is None


def test_prompt_of_a_megabyte_arrives_whole(claude: Agent, machine: Machine) -> None:
    prompt = "x" * 1_000_000 + "the end"
    result = machine.run(claude.provider, claude.build_command(LaunchRequest(prompt)))
    assert result.code == 0, result
    assert any(prompt in str(entry["body"]) for entry in machine.stub.seen if "body" in entry)


def test_instructions_and_model_reach_the_model(claude: Agent, machine: Machine) -> None:
    ask = LaunchRequest(
        steps({"text": "ok"}), instructions="Be --brief.\nAlways.", model="claude-haiku-9"
    )
    assert machine.run(claude.provider, claude.build_command(ask)).code == 0
    body = next(entry["body"] for entry in machine.stub.seen if "body" in entry)
    assert body["model"] == "claude-haiku-9"
    assert "Be --brief.\\nAlways." in str(body["system"])


def test_transcript_matches_the_stream(claude: Agent, machine: Machine) -> None:
    session = str(uuid.uuid4())
    call = {"text": "I run.", "tool": "Bash", "args": {"command": "echo 1"}, "usage": USAGE}
    prompt = steps(call, {"text": "done", "usage": {"input": 5, "output": 6}})
    machine.run(
        claude.provider,
        claude.build_command(LaunchRequest(prompt, session=session, approvals=("run",))),
    )
    (file,) = claude.provider.iter_transcripts(machine.home)
    assert claude.provider.find_transcript(machine.home, session) == file
    assert claude.provider.find_transcript(machine.home, "../*") is None
    result = transcripts.read_head(file)
    assert result is not None
    assert (result.session, result.cwd) == (session, str(machine.work))
    items = list(transcripts.iter_items(file))
    used = [item.fact for item in items if isinstance(item.fact, UsageFact)]
    assert total(used) == machine.used()
    turns = [item.fact.role for item in items if isinstance(item.fact, TurnFact)]
    assert turns == ["user", "assistant", "assistant", "tool", "assistant"]
    assert list(transcripts.iter_files(machine.home / transcripts.FOLDER)) == [file]
