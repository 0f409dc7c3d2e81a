"""Parsers of external input, with malformed input.

Every parser returns a value or raises its documented error, in bounded time. Parsers of agent
protocols and of files on disk are tested in `test_agent_parsers.py`.
"""

import hashlib
import hmac
import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from corral.adapters import hook_payloads, notifications, test_reports
from corral.adapters.channels.contract import EventBatch, IncomingEvent, RequestRejected
from corral.adapters.channels.http_client import ApiClient
from corral.adapters.channels.matrix import MatrixAdapter
from corral.adapters.channels.slack import SlackAdapter
from corral.adapters.channels.telegram import TelegramAdapter
from corral.adapters.channels.webhook import WebhookAdapter
from corral.adapters.output.redact import redact
from corral.adapters.providers import registry
from corral.adapters.sandbox_bridge import agent_client, inbound, outbound
from corral.adapters.sandbox_bridge.outbound import FileBusy, HotJournal, InvalidFile
from corral.adapters.sandbox_bridge.rows import InboundView
from corral.adapters.sandbox_bridge.schema import SessionFolder
from corral.adapters.transcripts import claude, codex
from corral.cli.task_view import read_data_file
from corral.domain.agents.model import check_limits
from corral.domain.chat.patterns import compile_pattern
from corral.domain.events.ops import parse_cursor
from corral.domain.races import variations
from corral.domain.schedules.recurrence import check_cron
from corral.domain.sessions.turn_rows import parse_turns
from corral.domain.tasks.model import parse_evidence, parse_tasks
from corral.kernel import path_patterns
from corral.kernel.clock import ManualClock, parse_duration
from corral.kernel.errors import CorralError, Invalid
from corral.kernel.ids import id_range, parse_number
from corral.kernel.money import parse_usd
from corral.kernel.pagination import decode_cursor
from corral.services import teams
from tests.properties.mutated_inputs import encode_json, few, many, mutated

NOW = 1_800_000_000_000
FIXTURES = Path(__file__).parents[1] / "fixtures"

# -- agents ----------------------------------------------------------------------------------------

STREAMS = {
    name: [
        json.loads(line)
        for file in sorted((FIXTURES / "providers").glob(f"{name}*.jsonl"))
        for line in file.read_bytes().splitlines()[:40]
        if line.startswith(b"{")
    ]
    for name in ("claude", "codex", "copilot", "gemini", "opencode", "qwen")
}


@pytest.mark.parametrize("name", STREAMS)
@given(data=st.data())
@few
def test_malformed_provider_stream_never_raises(name: str, data: Any) -> None:
    parser = registry.get_provider(name).create_parser(ManualClock(NOW))
    for line in data.draw(st.lists(mutated(*STREAMS[name]), max_size=4)):
        json.dumps([repr(fact) for fact in parser.feed(encode_json(line) + b"\n")])
    parser.feed(data.draw(st.binary(max_size=50)))
    parser.pending()
    parser.close()


@pytest.mark.parametrize("module", [claude, codex])
@given(data=st.data())
@few
def test_malformed_transcript_never_raises(
    module: Any, data: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    name = module.__name__.rpartition(".")[2]
    recorded = (FIXTURES / "transcripts" / f"{name}.jsonl").read_bytes().splitlines()
    lines = data.draw(st.lists(mutated(*map(json.loads, recorded)), max_size=4))
    file = tmp_path_factory.getbasetemp() / f"{name}-{os.getpid()}.jsonl"
    file.write_bytes(b"\n".join([recorded[0], *map(encode_json, lines)]) + b"\n")
    module.read_head(file)
    list(module.iter_items(file))


@given(mutated({"tool_input": {"file_path": "a"}, "cwd": "/", "hook_event_name": "PreToolUse"}))
@many
def test_hook_payload_is_read_or_rejected(payload: Any) -> None:
    with suppress(ValueError):
        hook_payloads.list_edited_paths(encode_json(payload), "/")


class SandboxFile(NamedTuple):
    """A bridge file that a sandboxed agent has written."""

    folder: SessionFolder
    content: bytes

    def __repr__(self) -> str:
        return "SandboxFile(…)"  # the whole content would hide the failure


@pytest.fixture(scope="module")
def sandbox_file(tmp_path_factory: pytest.TempPathFactory) -> SandboxFile:
    folder = SessionFolder(str(tmp_path_factory.mktemp("sandbox")))
    os.mkdir(folder.inside)
    os.mkdir(folder.outside)
    inbound.write_view(folder, InboundView(), NOW)
    files = agent_client.SessionFiles(folder.top)
    with files.writing() as connection:
        files.put(connection, "chat", {"text": "hello"})
    return SandboxFile(folder, Path(folder.outbound).read_bytes())


@given(
    changes=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=20),
    length=st.sampled_from([1 << 20, 100, 5_000]),
)
@few
def test_file_from_a_sandbox_is_read_or_rejected(
    changes: list[tuple[int, int]], length: int, sandbox_file: SandboxFile
) -> None:
    folder, content = sandbox_file
    damaged = bytearray(content)
    for index, byte in changes:
        damaged[index % len(damaged)] = byte
    Path(folder.outbound).write_bytes(damaged[:length])
    with suppress(FileBusy, HotJournal, InvalidFile):
        outbound.read_snapshot(folder, ingested_seq=0, above=0)


@given(
    column=st.sampled_from(["seq", "kind", "content", "in_reply_to", "timestamp"]),
    value=st.none()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.binary(max_size=9)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
)
@few
def test_row_from_a_sandbox_is_read_or_rejected(
    column: str, value: Any, sandbox_file: SandboxFile
) -> None:
    folder, content = sandbox_file
    Path(folder.outbound).write_bytes(content)
    with (
        closing(sqlite3.connect(folder.outbound)) as connection,
        connection,
        suppress(sqlite3.Error),  # the file's own schema rejects the value
    ):
        connection.execute(f"UPDATE messages_out SET {column} = ?", [value])
    with suppress(FileBusy, HotJournal, InvalidFile):
        outbound.read_snapshot(folder, ingested_seq=0, above=0)


# -- chats -----------------------------------------------------------------------------------------


class FixedResponse(ApiClient):
    """An API client that returns the same response to every request."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def request_json(self, *_: Any, **__: Any) -> Any:
        return self.answer

    def download(self, *_: Any, **__: Any) -> bytes:
        return b""

    def close(self) -> None:
        """Nothing to close."""


# Creating an adapter is slow, so the tests share it and replace its API client.
TELEGRAM = TelegramAdapter({}, {"token": "t"})
MATRIX = MatrixAdapter({"base_url": "http://x"}, {"token": "t"})
SLACK = SlackAdapter({}, {"token": "t", "signing_secret": "s"})


def check_batch(batch: EventBatch) -> None:
    for event in batch.events:
        for name in ("event_id", "place", "sender", "text"):
            assert isinstance(getattr(event, name), str), name
        assert isinstance(event, IncomingEvent)
    assert all(isinstance(id, str) for id in batch.unreadable)


SENDER = {"id": 5, "username": "ann"}
CHAT = {"id": -7, "type": "group", "title": "room"}
UPDATES = [
    {"from": SENDER, "chat": CHAT, "message_id": 3, "text": "hi", "date": 17},
    {
        "from": SENDER,
        "chat": CHAT,
        "message_id": 3,
        "caption": "x",
        "reply_to_message": {"message_id": 2, "from": SENDER},
        "photo": [{"file_id": "f", "file_size": 3}],
        "document": {"file_id": "f", "file_name": "a.txt", "mime_type": "text/plain"},
        "is_topic_message": True,
        "message_thread_id": 9,
    },
]
BUTTON = {"id": "1", "data": "qst_1:2", "from": SENDER, "message": {"chat": CHAT}}


@given(message=mutated(*UPDATES), kind=st.sampled_from(["message", "edited_message"]))
@many
def test_malformed_message_does_not_block_a_telegram_channel(message: Any, kind: str) -> None:
    valid_update = {"update_id": 4, "message": UPDATES[0]}
    channel = TELEGRAM
    channel._api = FixedResponse({"result": [{"update_id": 3, kind: message}, valid_update]})
    batch = channel.receive("1", 0)
    check_batch(batch)
    assert batch.cursor == "5"
    assert "4" in [event.event_id for event in batch.events]


@given(button=mutated(BUTTON))
@few
def test_malformed_button_does_not_block_a_telegram_channel(button: Any) -> None:
    channel = TELEGRAM
    channel._api = FixedResponse({"result": [{"update_id": 3, "callback_query": button}]})
    assert channel.receive("1", 0).cursor == "4"


CONTENTS = [
    {"msgtype": "m.text", "body": "hi", "m.mentions": {"user_ids": ["@bot:x"]}},
    {
        "msgtype": "m.file",
        "body": "a.txt",
        "url": "mxc://x/y",
        "info": {"size": 3, "mimetype": "text/plain"},
        "m.relates_to": {
            "rel_type": "m.thread",
            "event_id": "$1",
            "m.in_reply_to": {"event_id": "$0"},
        },
    },
    {
        "body": "* new",
        "m.new_content": {"body": "new"},
        "m.relates_to": {"rel_type": "m.replace", "event_id": "$1"},
    },
]


@given(content=mutated(*CONTENTS), kind=st.sampled_from(["m.room.message", "m.reaction"]))
@many
def test_malformed_message_does_not_block_a_matrix_channel(content: Any, kind: str) -> None:
    """A member controls the whole content: the Matrix server validates only the envelope."""
    malformed = {"type": kind, "event_id": "$2", "sender": "@ann:x", "content": content}
    valid = {
        "type": "m.room.message",
        "event_id": "$3",
        "sender": "@ann:x",
        "content": CONTENTS[0],
    }
    timeline = {"timeline": {"events": [malformed, valid]}}
    channel = MATRIX
    channel._api = FixedResponse({"next_batch": "s2", "rooms": {"join": {"!r:x": timeline}}})
    batch = channel.receive("s1", 0)
    check_batch(batch)
    assert batch.cursor == "s2"
    assert "$3" in [event.event_id for event in batch.events]


EVENTS = [
    {
        "type": "event_callback",
        "authorizations": [{"user_id": "U0"}],
        "event": {
            "type": "message",
            "channel": "C1",
            "ts": "1.2",
            "user": "U1",
            "text": "hi",
            "files": [{"name": "a", "size": 3, "url_private": "https://files.slack.com/x"}],
        },
    },
    {
        "type": "event_callback",
        "event": {
            "subtype": "message_changed",
            "channel": "C1",
            "event_ts": "1.3",
            "message": {"ts": "1.2", "user": "U1", "text": "new"},
            "previous_message": {"text": "old"},
        },
    },
    {
        "type": "event_callback",
        "event": {
            "type": "reaction_added",
            "user": "U1",
            "reaction": "eyes",
            "event_ts": "1.3",
            "item": {"type": "message", "channel": "C1", "ts": "1.2"},
        },
    },
    {
        "type": "block_actions",
        "user": {"id": "U1", "username": "ann"},
        "channel": {"id": "C1"},
        "actions": [{"value": "qst_1:1", "action_ts": "1.4"}],
    },
]
HEADERS = st.text(st.characters(max_codepoint=255), max_size=80)


@given(payload=mutated(*EVENTS), form=st.booleans())
@many
def test_slack_request_is_read_or_rejected(payload: Any, form: bool) -> None:
    body = encode_json(payload)
    seconds = str(NOW // 1_000)
    signature = hmac.new(b"s", b"v0:" + seconds.encode() + b":" + body, hashlib.sha256).hexdigest()
    headers = {"x-slack-request-timestamp": seconds, "x-slack-signature": f"v0={signature}"}
    channel = SLACK
    channel._api = FixedResponse({})
    with suppress(RequestRejected):
        check_batch(EventBatch(channel.accept(headers, body, NOW).events))


@given(stamp=HEADERS | st.sampled_from(["²", "1" * 13]), signature=HEADERS)
@few
def test_forged_slack_request_is_rejected(stamp: str, signature: str) -> None:
    channel = SLACK
    for given_stamp in (stamp, str(NOW // 1_000)):
        headers = {"x-slack-request-timestamp": given_stamp, "x-slack-signature": signature}
        with pytest.raises(RequestRejected):
            channel.accept(headers, b"{}", NOW)


WEBHOOK_MESSAGE = {
    "event_id": "1",
    "place": "p",
    "sender": "s",
    "text": "hi",
    "at": 5,
    "direct": True,
}


@given(payload=mutated(WEBHOOK_MESSAGE))
@many
def test_webhook_request_is_read_or_rejected(payload: Any) -> None:
    channel, body = WebhookAdapter({}, {"secret": "s"}), encode_json(payload)
    headers = {notifications.SIGNATURE_HEADER.lower(): notifications.sign_body("s", body, NOW)}
    with suppress(RequestRejected):
        check_batch(EventBatch(channel.accept(headers, body, NOW).events))


@given(header=HEADERS, v1=HEADERS)
@few
def test_forged_webhook_request_is_rejected(header: str, v1: str) -> None:
    channel = WebhookAdapter({}, {"secret": "s"})
    for given_header in (header, f"t={NOW // 1_000},v1={v1}", f"t=²,v1={v1}", "t=1,t=²"):
        with pytest.raises(RequestRejected):
            channel.accept({notifications.SIGNATURE_HEADER.lower(): given_header}, b"{}", NOW)


# -- files and command line arguments -------------------------------------------------------------

TASK = {"key": "a", "title": "A", "files": ["x"], "depends_on": [], "priority": 1, "check": "true"}
TEAM = {
    "lead": {"name": "ada", "provider": "claude", "limits": {}, "env": {"A": "1"}},
    "workers": [{"name": "ben", "command": "true", "approve": ["edit"]}],
    "goal": "g",
    "tasks": [TASK],
}
YAML_TEXTS = st.text("-:?[]{}*&!|>'\"%@`#,\n ~<=0x1e9.:T_ay", max_size=60) | st.sampled_from(
    ["- 2020-99-99", "- 0x", "- 1:99:99", "[" * 20_000, "- " * 5_000, "- " + "9" * 5_000]
)


@given(text=YAML_TEXTS | mutated(TEAM, [TASK]).map(json.dumps))
@many
def test_task_or_team_file_is_read_or_rejected(
    text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / f"graph-{os.getpid()}.yaml"
    file.write_text(text, errors="replace")
    with suppress(CorralError):
        value = read_data_file(str(file))
        with suppress(CorralError):
            parse_tasks(value)
        if isinstance(value, dict):
            teams._parse(value)


@given(mutated({"commits": ["a"], "commands": [{"command": "x", "exit_code": 0}], "text": "t"}))
@few
def test_evidence_is_read_or_rejected(evidence: Any) -> None:
    with suppress(CorralError):
        parse_evidence(evidence)


@pytest.mark.parametrize(
    ("parse", "value"),
    [
        (parse_evidence, {"commits": "\ud800"}),
        (parse_tasks, [{"key": "a", "title": "t", "depends_on": "\ud800"}]),
        (check_limits, {"max_runs": "\ud800"}),
        (parse_turns, [{"role": "user", "content": "c", "input_tokens": "\ud800"}]),
    ],
)
def test_lone_surrogate_is_rejected_where_text_is_not_expected(
    parse: Callable[[Any], Any], value: Any
) -> None:
    with pytest.raises(Invalid):
        parse(value)


INPUT_TEXTS = st.text(max_size=40) | st.text("0123456789*/?,-.:_ dhmsw[]{}!\\^$|()²", max_size=40)
PARSERS: dict[str, Callable[[str], Any]] = {
    "duration": parse_duration,
    "money": parse_usd,
    "id": lambda text: id_range("prj", text),
    "number": lambda text: parse_number("let", text),
    "cursor": lambda text: decode_cursor(text, "", 0),
    "feed cursor": parse_cursor,
    "cron": lambda text: check_cron(text, "UTC", NOW),
    "zone": lambda text: check_cron("* * * * *", text, NOW),
    "wiring pattern": lambda text: compile_pattern(text).found_in(text),
    "lock pattern": lambda text: path_patterns.can_overlap(
        path_patterns.make_subtree_pattern(text), "a/*/b"
    ),
    "variations": variations.parse_variations,
    "race agents": variations.parse_agents,
    "test output": test_reports.parse_output,
    "JUnit as text": lambda text: test_reports.parse_junit(text.encode(errors="replace")),
}


@pytest.mark.parametrize("kind", PARSERS)
@given(
    text=INPUT_TEXTS
    | st.sampled_from(["9" * 400 + "d", "9" * 5_000, "\ud800", "a*" * 200, "/" * 900])
)
@few
def test_text_is_parsed_or_rejected(kind: str, text: str) -> None:  # fmt: skip
    with suppress(CorralError):
        PARSERS[kind](text)


@given(
    head=st.sampled_from(["", '<?xml version="1.0" encoding="{}"?>']),
    encoding=st.sampled_from(["utf-8", "utf-16", "gbk", "foo", "cp037", "undefined", "idna"]),
    body=st.sampled_from(
        ['<testsuite><testcase name="a"/></testsuite>', "<testsuite>" * 5_000, "<!DOCTYPE a><a/>"]
    ),
    cut=st.integers(0, 80),
)
@many
def test_junit_report_is_parsed_or_ignored(head: str, encoding: str, body: str, cut: int) -> None:
    document = (head.format(encoding) + body).encode()
    test_reports.parse_junit(document)
    test_reports.parse_junit(document[:cut] + b"\xff\0" + document[cut:])


@given(
    data=st.binary(max_size=200),
    secret=st.text(st.characters(exclude_categories=["Cs"]), min_size=8, max_size=30),
    at=st.integers(0, 200),
)
@many
def test_redaction_removes_a_secret_from_any_bytes(data: bytes, secret: str, at: int) -> None:
    raw = secret.encode()
    redacted = redact(data[:at] + raw + data[at:], [secret])
    assert raw not in redacted
