"""Parsers of agent protocols and of files that other programs write, with malformed input.

Every parser returns a value or raises its documented error. Other parsers are tested in
`test_input_parsers.py`.
"""

import json
import os
import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from corral.adapters import attachments, control_socket, managed_blocks
from corral.adapters.processes import exit_files
from corral.adapters.providers.acp import AcpClient
from corral.adapters.providers.acp_parser import AcpParser
from corral.adapters.providers.limits import parse_limit, parse_reset_time
from corral.adapters.providers.screens import SCREENS, ScreenReader
from corral.kernel.clock import ManualClock
from corral.kernel.errors import CorralError, NotFound
from corral.mcp import protocol
from corral.services.projects import config
from tests.properties.mutated_inputs import encode_json, few, many, mutated

NOW = 1_800_000_000_000
DEEP = "[" * 20_000

# -- the Agent Client Protocol ---------------------------------------------------------------------


def update(kind: str, /, **rest: Any) -> dict[str, Any]:
    params = {"sessionId": "s1", "update": {"sessionUpdate": kind, **rest}}
    return {"jsonrpc": "2.0", "method": "session/update", "params": params}


CALL = {"toolCallId": "t1", "title": "Edit a", "kind": "edit", "locations": [{"path": "/a"}]}
OPTIONS = [{"optionId": "o1", "name": "Yes", "kind": "allow_once"}]
ACP = [
    {"jsonrpc": "2.0", "id": 1, "result": {"protocolVersion": 1, "agentCapabilities": {}}},
    {"jsonrpc": "2.0", "id": 2, "result": {"sessionId": "s1", "modes": {"availableModes": []}}},
    {"jsonrpc": "2.0", "id": 3, "result": {"stopReason": "end_turn", "usage": {"inputTokens": 1}}},
    {"jsonrpc": "2.0", "id": 3, "error": {"code": -32000, "message": "limit", "data": {"a": 1}}},
    update("agent_message_chunk", content={"type": "text", "text": "hello"}),
    update("agent_thought_chunk", content={"type": "text", "text": "hm"}),
    update("plan", entries=[{"content": "look", "status": "pending", "priority": "high"}]),
    update("tool_call", **CALL, rawInput={"file_path": "a"}),
    update("tool_call_update", toolCallId="t1", status="completed", content=[{"type": "diff"}]),
    update("usage_update", used=5, size=9, cost={"amount": 0.1, "currency": "USD"}),
    {
        "jsonrpc": "2.0",
        "id": 7,
        "method": "session/request_permission",
        "params": {"sessionId": "s1", "toolCall": CALL, "options": OPTIONS},
    },
    {"jsonrpc": "2.0", "id": 8, "method": "fs/read_text_file", "params": {"path": "/etc/passwd"}},
]


@given(st.lists(mutated(*ACP), max_size=5), st.binary(max_size=40))
@many
def test_malformed_acp_output_never_raises(lines: list[Any], noise: bytes) -> None:
    output: list[bytes] = []
    policy = frozenset({"edit"})
    client = AcpClient(output.append, cwd="/", prompt="go", policy=policy, clock=ManualClock(NOW))
    client.start()
    parser = AcpParser()
    for line in (*map(encode_json, ACP[:2]), *map(encode_json, lines), noise):
        client.feed(line + b"\n")
        parser.feed(line)
    client.close()
    parser.close()
    for line in output:
        assert isinstance(json.loads(line), dict), "the client sends only JSON objects"


# -- tools -----------------------------------------------------------------------------------------

META = {"io.modelcontextprotocol/protocolVersion": "2025-06-18", "progressToken": 1}
REQUESTS = [
    {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "x"}},
    {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}},
    {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}},
    {
        "jsonrpc": "2.0",
        "id": "a",
        "method": "tools/call",
        "params": {"name": "task_claim", "arguments": {"project": "p"}, "_meta": META},
    },
]


def raise_not_found() -> Any:
    raise NotFound("There is no such agent.")


@given(mutated(*REQUESTS).map(encode_json) | st.sampled_from([DEEP.encode(), b"", b"\xff", b"[]"]))
@many
def test_every_mcp_message_gets_a_result_or_an_error(line: bytes) -> None:
    try:
        message = protocol.parse_message(line)
    except protocol.RpcError as error:
        response = protocol.error_response(error)
    else:
        response = protocol.handle_message(message, raise_not_found)
    answer = json.loads(response.body)
    assert answer["jsonrpc"] == "2.0"
    assert ("error" in answer) != ("result" in answer)


# -- screens ---------------------------------------------------------------------------------------

ROWS = st.sampled_from(
    [
        "> 1. Yes",
        "\u276f 1. Yes",
        "  2. No",
        "Do you want to edit a?",
        "╭" + "─" * 30,
        "│ x │",
        "> ",
        "1. Yes",
        "",
    ]
) | st.text(max_size=30)


@pytest.mark.parametrize("name", SCREENS)
@given(screens=st.lists(st.lists(ROWS, max_size=12), max_size=3))
@example(screens=[["> 1. Yes", "╭" + "─" * 30, "\u276f 1. Yes", "  2. No"]])
@few
def test_any_screen_content_is_read(name: str, screens: list[list[str]]) -> None:
    reader = ScreenReader(SCREENS[name], frozenset({"edit", "run"}))
    for lines in screens:
        reader.look(lines)
        reader.retry_keys()


WORDS = [
    "limit",
    "reset",
    "resets at",
    "3pm",
    "25:99",
    "in",
    "9" * 30,
    "hours",
    "2026-13-45",
    "T",
    "|",
    "1800000000",
    "(Europe/Nowhere)",
    "try again",
    "Feb 30,",
    "12:00 AM",
    "(UTC)",
]


@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=6), max_size=9).map(" ".join))
@many
def test_limit_message_is_parsed_or_ignored(message: str) -> None:
    for reset_at in (
        parse_reset_time(message, NOW),
        getattr(parse_limit(message, NOW), "reset_at", None),
    ):
        assert reset_at is None or isinstance(reset_at, int)


# -- files and sockets -----------------------------------------------------------------------------


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=3))
@many
def test_control_socket_data_is_decoded_or_rejected(data: bytes, cuts: list[int]) -> None:
    frames = control_socket.FrameDecoder()
    valid_frame = control_socket.encode_frame(b"q", {"stop": True})
    with suppress(ValueError):
        for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), None], strict=True):
            frames.feed((valid_frame + data)[begin:end])


@given(mutated({"exit_code": 3, "signal": None, "cpu_ms": 5, "peak_bytes": 7, "reason": "x"}))
@many
def test_exit_file_decodes_to_a_valid_status_or_none(note: Any) -> None:
    for data in (encode_json(note), encode_json(note)[:-1], DEEP.encode()):
        end = exit_files.decode(data)
        assert end.exit_code is None or 0 <= end.exit_code <= 255
        assert end.signal is None or 1 <= end.signal <= 128


@given(st.text(max_size=60) | st.sampled_from(["../../x", "..", "/", "a\\b", "\0", "x" * 400]))
@few
def test_attachment_name_cannot_leave_its_folder(given_name: str) -> None:
    name = attachments.make_safe_name(given_name, 1)
    assert os.path.basename(name) == name
    assert re.fullmatch(r"1-[\w.-]{1,80}", name, re.ASCII)


CONFIG = "command = 'x'\nprompt = \"p\"\n[settings]\ntasks.max_started = 3\n"


@given(
    text=st.text("[]{}='\"\n.,#0x1e9:-T_ab \\", max_size=40).map(CONFIG.__add__)
    | st.sampled_from(
        [f"a = {DEEP}", f"a = {'9' * 5_000}", "a = 1979-99-99", "a.a.a.a = 1", "\ud800"]
    )
)
@many
def test_project_config_file_is_read_or_rejected(
    text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / f"project-{os.getpid()}" / config.FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8", errors="surrogatepass")
    with suppress(CorralError):
        config.read_config(str(file.parents[1]))


HOOKS = {"hooks": {"PreToolUse": [{"matcher": "Edit", "hooks": [{"command": "corral hook"}]}]}}


@given(
    text=mutated(HOOKS).map(json.dumps)
    | st.sampled_from([DEEP, '{"a":' * 20_000, "9" * 5_000, '"\\ud800"'])
)
@many
def test_agent_settings_file_is_changed_or_rejected(
    text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / f"settings-{os.getpid()}.json"
    pattern = re.compile("corral hook")
    entry = {"PreToolUse": {"hooks": [{"command": "corral hook"}]}}
    with suppress(CorralError):
        new_text = managed_blocks.add_hooks(text, entry, pattern, "settings.json")
        managed_blocks.write_text(str(file), new_text)
        assert json.loads(managed_blocks.read_text(str(file)))["hooks"]["PreToolUse"]
        managed_blocks.remove_hooks(new_text, pattern, "settings.json")
