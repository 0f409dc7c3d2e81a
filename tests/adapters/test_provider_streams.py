"""Parsers of the agent CLIs' streams, with recorded output."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.adapters.providers import registry
from corral.adapters.providers.facts import (
    DenialFact,
    LimitFact,
    LogFact,
    ProviderFact,
    ResultFact,
    SessionFact,
    TurnFact,
    UsageFact,
)
from corral.adapters.providers.json_lines import MAX_LINE
from corral.adapters.providers.provider import StreamParser
from corral.kernel.clock import ManualClock

RECORDED = Path(__file__).parents[1] / "fixtures" / "providers"
NOW = 1_794_785_700_000  # the time of the recordings
STRUCTURED = ["claude", "codex", "copilot", "gemini", "opencode", "qwen", "scripted"]
EXAMPLES = int(os.environ.get("CORRAL_FUZZ", "100"))
FILES = sorted(RECORDED.glob("*.jsonl"))


def parser_for(name: str) -> StreamParser:
    return registry.get_provider(name.partition("-")[0]).create_parser(ManualClock(NOW))


def read_facts(name: str) -> list[ProviderFact]:
    parser = parser_for(name)
    facts = [
        fact
        for line in (RECORDED / f"{name}.jsonl").read_bytes().splitlines(keepends=True)
        for fact in parser.feed(line)
    ]
    return facts + parser.close()


def list_facts(facts: list[ProviderFact], kind: type) -> list[Any]:
    return [fact for fact in facts if isinstance(fact, kind)]


# -- invalid input -------------------------------------------------------------------------------

WRONG: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)


@pytest.mark.parametrize("name", STRUCTURED)
@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"{",
        b"\xff\xfe\x00",
        b"null",
        b"[1]",
        b'"x"',
        b"{}",
        b'{"type":null}',
        b'{"type":["result"]}',
        b'{"type":"result"}',
        b'{"type":"assistant","message":{"content":[{"type":"text","text":"\\ud800"}]}}',
        b'{"type":"turn.completed","usage":{"input_tokens":1e999}}',
        b'{"type":"turn.completed","usage":{"input_tokens":-5,"output_tokens":true}}',
        b'{"a":' * 50_000,
        b"x" * (MAX_LINE + 1),
    ],
)
def test_no_line_breaks_a_parser(name: str, line: bytes) -> None:
    parser = parser_for(name)
    parser.feed(line)
    parser.close()
    assert parser.close() == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_stream_cut_at_any_byte_is_read_up_to_the_cut(file: Path) -> None:
    data = file.read_bytes()
    for end in range(0, len(data), max(1, len(data) // 60)):
        parser = parser_for(file.stem)
        for line in data[:end].splitlines():
            parser.feed(line)
        parser.close()


@settings(max_examples=EXAMPLES, deadline=None)
@given(data=st.data())
def test_values_of_other_types_break_no_parser(data: st.DataObject) -> None:
    file = data.draw(st.sampled_from(FILES))
    lines = [json.loads(line) for line in file.read_bytes().splitlines()]
    line = data.draw(st.sampled_from(lines))
    place = line
    while isinstance(place, dict) and place:
        key = data.draw(st.sampled_from(sorted(place)))
        if not isinstance(place[key], dict) or data.draw(st.booleans()):
            place[key] = data.draw(WRONG)
            break
        place = place[key]
    facts = parser_for(file.stem).feed(json.dumps(line).encode())
    for used in list_facts(facts, UsageFact):
        assert min(used.input, used.output, used.cache_read, used.cache_write) >= 0


def test_nul_bytes_do_not_reach_the_store() -> None:
    line = (
        b'{"type":"assistant","message":{"id":"m","content":[{"type":"text","text":"a\\u0000b"}]}}'
    )
    assert parser_for("claude").feed(line) == [TurnFact("assistant", "a\ufffdb")]


@pytest.mark.parametrize("half", [rb"\ud83d", b"\xf0\x9f"])
def test_partial_character_loses_no_line(half: bytes) -> None:
    """A CLI may cut a text inside an emoji, on a line that also has usage."""
    line = b'{"type":"assistant","message":{"id":"m","content":[{"type":"text","text":"a%s b"}]}}'
    ((turn),) = parser_for("claude").feed(line % half)
    assert isinstance(turn, TurnFact)
    assert turn.content in ("a? b", "a\ufffd b")


def test_huge_answer_is_truncated_with_a_note() -> None:
    line = b'{"type":"item.completed","item":{"type":"agent_message","text":"%s"}}' % (b"x" * 10**6)
    (turn,) = parser_for("codex").feed(line)
    assert isinstance(turn, TurnFact)
    assert len(turn.content) < 300_000
    assert "characters left out" in turn.content


# -- claude ---------------------------------------------------------------------------------------


def test_claude_reports_session_turns_tools_usage_and_end() -> None:
    facts = read_facts("claude-tool")
    (named,) = list_facts(facts, SessionFact)
    assert (named.model, named.version) == ("claude-opus-5-5", "2.1.325")
    first, call, answer, last = list_facts(facts, TurnFact)
    assert (first.content, last.content) == ("I write it.", "done")
    assert (call.tool_name, call.arguments["content"]) == ("Write", "hi")
    assert (answer.role, answer.tool_name, answer.tool_call_id) == (
        "tool",
        "Write",
        call.tool_call_id,
    )
    assert list_facts(facts, ResultFact) == [ResultFact(True, "done")]


def test_claude_usage_counts_each_message_once() -> None:
    (used,) = list_facts(read_facts("claude-tool"), UsageFact)
    assert (used.input, used.output, used.cache_read, used.cache_write) == (3000, 60, 1300, 20)
    assert used.cost_micros == 13560


def test_claude_charges_only_the_new_usage_of_a_resumed_session() -> None:
    (used,) = list_facts(read_facts("claude-resume"), UsageFact)
    assert (used.model, used.input, used.cost_micros) == ("claude-sonnet-4-5", 3000, 9075)


def test_claude_charges_each_turn_of_one_process() -> None:
    used = list_facts(read_facts("claude-stdin-two"), UsageFact)
    assert [(usage.input, usage.cost_micros) for usage in used] == [(1000, 5060), (1000, 5060)]
    assert len({usage.key for usage in used}) == 2
    assert len(list_facts(read_facts("claude-stdin-two"), SessionFact)) == 1


def test_killed_claude_has_usage() -> None:
    facts = read_facts("claude-killed")
    assert list_facts(facts, ResultFact) == []
    (used,) = list_facts(facts, UsageFact)
    assert (used.input, used.cache_read) == (1000, 300)
    (after,) = list_facts(read_facts("claude-after-kill"), UsageFact)
    assert (after.input, after.output) == (2000, 10)


def test_claude_has_no_pending_usage_after_the_result() -> None:
    parser = parser_for("claude")
    *before, result = (RECORDED / "claude-tool.jsonl").read_bytes().splitlines()
    for line in before:
        parser.feed(line)
    assert sum(used.input for used in parser.pending()) == 3000
    parser.feed(result)
    assert parser.pending() == []


def test_claude_failure_reported_as_success_is_a_failure() -> None:
    (finished,) = list_facts(read_facts("claude-400"), ResultFact)
    assert not finished.ok
    assert "stub error" in finished.message
    (finished,) = list_facts(read_facts("claude-unknown-resume"), ResultFact)
    assert "No conversation found" in finished.message


def test_claude_at_its_limit_reports_the_reset_once() -> None:
    facts = read_facts("claude-limit")
    assert list_facts(facts, LimitFact) == [
        LimitFact("The five hour limit is reached.", 1_794_792_942_000)
    ]
    assert len(list_facts(read_facts("claude-429"), LimitFact)) == 1
    assert list_facts(facts, TurnFact) == []


def test_claude_continues_after_a_denied_tool_and_logs_it() -> None:
    facts = read_facts("claude-denied")
    assert [fact.is_error for fact in list_facts(facts, TurnFact) if fact.role == "tool"] == [True]
    assert any("needs approval" in fact.message for fact in list_facts(facts, LogFact))
    assert list_facts(facts, ResultFact)[0].ok


def feed_messages(name: str, *messages: dict[str, Any]) -> list[ProviderFact]:
    parser = parser_for(name)
    return [
        fact for message in messages for fact in parser.feed(json.dumps(message).encode() + b"\n")
    ]


def test_claude_logs_retries_and_limit_warnings() -> None:
    retry = {"type": "system", "subtype": "api_retry", "error_status": 529, "retry_delay_ms": 400}
    near = {"status": "allowed_warning", "resetsAt": NOW // 1_000, "rateLimitType": "five_hour"}
    fine = {"status": "allowed", "rateLimitType": "five_hour"}
    limits = [{"type": "rate_limit_event", "rate_limit_info": info} for info in (near, fine)]
    retried, warned = list_facts(feed_messages("claude", retry, *limits), LogFact)
    assert (retried.level, "529" in retried.message, "400" in retried.message) == (
        "warn",
        True,
        True,
    )
    assert (warned.level, warned.metadata) == ("warn", {"reset_at": NOW // 1_000 * 1_000})


def test_claude_at_its_limit_without_a_text_has_a_reason() -> None:
    message = {"model": "<synthetic>", "content": []}
    limited = {"type": "assistant", "error": "rate_limit", "message": message}
    assert feed_messages("claude", limited) == [LimitFact("Too many requests.")]


def test_claude_user_messages_contain_only_tool_results() -> None:
    content = [{"type": "text", "text": "go on"}, {"type": "tool_result", "tool_use_id": "t1"}]
    (answer,) = list_facts(
        feed_messages("claude", {"type": "user", "message": {"content": content}}), TurnFact
    )
    assert (answer.role, answer.tool_call_id) == ("tool", "t1")


@pytest.mark.parametrize(("tool", "is_denied"), [("write_file", True), ("read_file", False)])
def test_gemini_withholding_a_tool_is_a_denial(tool: str, is_denied: bool) -> None:
    facts = feed_messages(
        "gemini",
        {"type": "message", "role": "assistant", "content": "I write."},
        {"type": "message", "role": "user", "content": "not repeated"},
        {"type": "tool_use", "tool_id": "c1", "tool_name": tool, "parameters": {}},
        {"type": "tool_result", "tool_id": "c1", "error": {"type": "tool_not_registered"}},
    )
    assert list_facts(facts, TurnFact)[0].content == "I write."
    assert list_facts(facts, DenialFact) == ([DenialFact(tool, "c1")] if is_denied else [])


def test_endless_stream_is_counted_in_bounded_memory() -> None:
    line = (
        b'{"type":"assistant","message":{"id":"m%d","model":"m","content":[{"type":"tool_use",'
        b'"id":"c%d","name":"n"}],"usage":{"input_tokens":1,"output_tokens":2}}}'
    )
    parser = parser_for("claude")
    for number in range(5_000):
        parser.feed(line % (number, number))
        parser.feed(line % (number, number))
    (used,) = parser.pending()
    assert (used.model, used.input, used.output) == ("m", 5_000, 10_000)
    assert parser.close() == [used]


def test_older_claude_is_charged_without_guessing() -> None:
    result = (
        b'{"type":"result","subtype":"success","is_error":false,"result":"x","total_cost_usd":0.5,'
        b'"usage":{"input_tokens":7,"output_tokens":3},"modelUsage":{"m":{"inputTokens":%d}}}'
    )
    (fresh, _) = parser_for("claude").feed(result % 7)
    (resumed, _) = parser_for("claude").feed(result % 70)
    assert isinstance(fresh, UsageFact)
    assert isinstance(resumed, UsageFact)
    assert (fresh.input, fresh.cost_micros) == (7, 500_000)
    assert (resumed.input, resumed.cost_micros) == (7, None)


# -- codex ----------------------------------------------------------------------------------------


def test_codex_reports_thread_turns_tools_and_end() -> None:
    facts = read_facts("codex-tool")
    assert len(list_facts(facts, SessionFact)) == 1
    first, call, answer, last = list_facts(facts, TurnFact)
    assert (first.content, last.content) == ("I write it.", "done")
    assert call.tool_name == "shell"
    assert "echo hi" in call.arguments["command"]
    assert (answer.role, answer.result, answer.is_error) == ("tool", {"exit_code": 0}, False)
    assert list_facts(facts, ResultFact) == [ResultFact(True)]


def test_codex_counts_the_thread_and_input_without_cache() -> None:
    (first,) = list_facts(read_facts("codex-tool"), UsageFact)
    (second,) = list_facts(read_facts("codex-resume"), UsageFact)
    assert (first.input, first.cache_read, first.output) == (1700, 1300, 60)
    assert (second.input, second.cache_read, second.output) == (4700, 1300, 65)
    assert first.counter == second.counter
    assert first.counter is not None


def test_codex_at_its_limit_reports_the_reset() -> None:
    facts = read_facts("codex-limit")
    (limit,) = list_facts(facts, LimitFact)
    assert limit.reset_at is not None
    assert list_facts(facts, ResultFact)[-1].ok is False
    (limit,) = list_facts(read_facts("codex-429"), LimitFact)
    assert limit.reset_at is None
    assert list_facts(read_facts("codex-failed"), LimitFact) == []


def test_killed_codex_has_turns() -> None:
    facts = read_facts("codex-killed")
    assert [fact.role for fact in list_facts(facts, TurnFact)] == ["assistant", "tool"]
    assert list_facts(facts, ResultFact) == []


# -- other CLIs -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tool"),
    [
        ("gemini", "write_file"),
        ("qwen", "write_file"),
        ("opencode", "write"),
        ("copilot", "create"),
    ],
)
def test_tool_calls_keep_their_order(name: str, tool: str) -> None:
    facts = read_facts(f"{name}-tool")
    first, call, answer, last = list_facts(facts, TurnFact)
    assert (first.content, last.content) == ("I write.", "done")
    assert (call.tool_name, answer.tool_name) == (tool, tool)
    assert call.tool_call_id == answer.tool_call_id
    assert len(list_facts(facts, SessionFact)) == 1
    assert list_facts(facts, ResultFact) == [ResultFact(True, "done" if name == "qwen" else None)]


@pytest.mark.parametrize("name", ["gemini", "qwen", "opencode"])
def test_input_excludes_cached_tokens(name: str) -> None:
    used = list_facts(read_facts(f"{name}-tool"), UsageFact)
    assert sum(usage.input for usage in used) == 1700
    assert sum(usage.cache_read for usage in used) == 1300
    assert sum(one.output for one in used) == 60


def test_qwen_counts_the_whole_conversation() -> None:
    (first,) = list_facts(read_facts("qwen-tool"), UsageFact)
    (second,) = list_facts(read_facts("qwen-resume"), UsageFact)
    assert first.counter == second.counter
    assert second.input > first.input


@pytest.mark.parametrize("name", ["gemini", "qwen", "opencode", "copilot"])
def test_refusal_of_the_server_is_a_failure(name: str) -> None:
    (finished,) = list_facts(read_facts(f"{name}-400"), ResultFact)
    assert not finished.ok
    assert "stub error" in finished.message


@pytest.mark.parametrize("name", ["gemini", "opencode", "copilot"])
def test_too_many_requests_are_a_limit(name: str) -> None:
    (limit,) = list_facts(read_facts(f"{name}-429"), LimitFact)
    assert limit.message


def test_opencode_reports_how_long_to_wait() -> None:
    (limit,) = list_facts(read_facts("opencode-429"), LimitFact)
    assert limit.reset_at == NOW + 1_000


def test_copilot_reports_no_tokens_and_none_are_invented() -> None:
    assert list_facts(read_facts("copilot-tool"), UsageFact) == []
