"""Parsers of the agent CLIs' transcripts, with recorded files."""

import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from corral.adapters.providers.facts import DenialFact, TurnFact, UsageFact
from corral.adapters.transcripts import claude, codex, copilot, gemini, opencode, qwen
from corral.adapters.transcripts.reader import TranscriptItem

RECORDED = Path(__file__).parents[1] / "fixtures" / "transcripts"
BOTH = [
    (claude, "claude"),
    (claude, "claude-killed"),
    (claude, "claude-denied"),
    (codex, "codex"),
    (codex, "codex-killed"),
    (copilot, "copilot"),
    (copilot, "copilot-denied"),
    (gemini, "gemini"),
    (qwen, "qwen"),
]


def list_turns(items: list[TranscriptItem]) -> list[TurnFact]:
    return [item.fact for item in items if isinstance(item.fact, TurnFact)]


def list_usage(items: list[TranscriptItem]) -> list[UsageFact]:
    return [item.fact for item in items if isinstance(item.fact, UsageFact)]


def to_set(items: list[TranscriptItem]) -> set[Any]:
    """Return the facts without the time of usage, which differs when a message is read twice."""
    return {
        (None if isinstance(item.fact, UsageFact) else item.at, repr(item.fact)) for item in items
    }


@pytest.mark.parametrize(("module", "name"), BOTH)
def test_invalid_lines_are_skipped(module: ModuleType, name: str, tmp_path: Path) -> None:
    lines = (RECORDED / f"{name}.jsonl").read_bytes().splitlines(keepends=True)
    noise = [b"\n", b"{\n", b"\xff\xfe\n", b"[]\n", b'{"type":[]}\n', b'{"message":7}\n', b"{}\n"]
    file = tmp_path / "noisy.jsonl"
    file.write_bytes(
        lines[0]
        + b"".join(line + noise[index % len(noise)] for index, line in enumerate(lines[1:]))
    )
    clean = list(module.iter_items(RECORDED / f"{name}.jsonl"))
    assert [item.fact for item in module.iter_items(file)] == [item.fact for item in clean]


@pytest.mark.parametrize(("module", "name"), BOTH)
def test_reading_continues_at_its_offset(module: ModuleType, name: str, tmp_path: Path) -> None:
    whole = (RECORDED / f"{name}.jsonl").read_bytes()
    file = tmp_path / "growing.jsonl"
    offset, items = 0, []
    for end in range(0, len(whole) + 500, 500):
        file.write_bytes(whole[:end])
        new = list(module.iter_items(file, offset=offset))
        offset = max([offset, *(item.offset for item in new)])
        items += new
    assert to_set(items) == to_set(list(module.iter_items(RECORDED / f"{name}.jsonl")))
    assert list(module.iter_items(file, offset=offset)) == []


@pytest.mark.parametrize("module", [claude, codex])
def test_foreign_file_is_not_a_transcript(module: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "rollout-x.jsonl"
    for content in (b"", b"hello\n", b"{}\n{}\n", b'{"type":"session_meta","payload":{"id":5}}\n'):
        file.write_bytes(content)
        assert module.read_head(file) is None
        assert list(module.iter_items(file)) == []


def test_head_contains_session_folder_and_version() -> None:
    head = claude.read_head(RECORDED / "claude.jsonl")
    assert head is not None
    assert head.session == "ce3730c6-ea7e-4d85-9439-405672d53265"
    assert (head.cwd, head.version) == ("/demo/place", "2.1.325")
    assert head.started_at == 1_794_785_605_349
    assert str(head.title).startswith("STUB:")
    head = codex.read_head(RECORDED / "codex.jsonl")
    assert head is not None
    assert (head.cwd, head.version) == ("/demo/place", "0.163.0")
    assert str(head.title).startswith("STUB:")


def test_claude_usage_is_counted_once_for_each_message() -> None:
    items = list(claude.iter_items(RECORDED / "claude.jsonl"))
    assert [
        (usage.input, usage.output, usage.cache_read, usage.cache_write)
        for usage in list_usage(items)
    ] == [
        (1000, 50, 300, 20),
        (2000, 10, 1000, 0),
        (3000, 5, 0, 0),
    ]
    assert len({usage.key for usage in list_usage(items)}) == 3
    assert [turn.role for turn in list_turns(items)] == [
        "user",
        "assistant",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]


def test_killed_claude_transcript_has_usage() -> None:
    items = list(claude.iter_items(RECORDED / "claude-killed.jsonl"))
    assert [(usage.input, usage.output) for usage in list_usage(items)] == [(1000, 50), (2000, 10)]
    assert not any("No response requested" in turn.content for turn in list_turns(items))


def test_codex_usage_is_the_running_total_of_the_thread() -> None:
    items = list(codex.iter_items(RECORDED / "codex.jsonl"))
    assert [(usage.input, usage.cache_read, usage.output) for usage in list_usage(items)] == [
        (700, 300, 50),
        (1700, 1300, 60),
        (4700, 1300, 65),
    ]
    assert {usage.model for usage in list_usage(items)} == {"stub"}
    head = codex.read_head(RECORDED / "codex.jsonl")
    assert head is not None
    assert {usage.counter for usage in list_usage(items)} == {f"codex/{head.session}"}
    call, answer = list_turns(items)[2:4]
    assert (call.tool_name, call.arguments) == ("exec_command", {"cmd": "echo hi > a2.txt"})
    assert (answer.role, answer.tool_name) == ("tool", "exec_command")


def test_codex_model_is_known_when_reading_from_an_offset() -> None:
    items = list(codex.iter_items(RECORDED / "codex.jsonl"))
    later = list(codex.iter_items(RECORDED / "codex.jsonl", offset=items[3].offset))
    assert [item.fact for item in later] == [item.fact for item in items[4:]]


def test_transcript_files_of_a_folder_are_found(tmp_path: Path) -> None:
    for name, place in (
        ("claude", "projects/-demo/a.jsonl"),
        ("codex", "2026/11/15/rollout-a.jsonl"),
    ):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(RECORDED / f"{name}.jsonl", tmp_path / place)
    assert [file.name for file in codex.iter_files(tmp_path)] == ["rollout-a.jsonl"]
    assert "a.jsonl" in [file.name for file in claude.iter_files(tmp_path)]
    assert list(claude.iter_files(tmp_path / "nowhere")) == []


def denied(items: list[TranscriptItem]) -> list[str]:
    return [item.fact.tool for item in items if isinstance(item.fact, DenialFact)]


@pytest.mark.parametrize(("module", "name"), [(gemini, "gemini"), (copilot, "copilot")])
def test_each_request_is_counted_once_by_its_key(module: ModuleType, name: str) -> None:
    items = list(module.iter_items(RECORDED / f"{name}.jsonl"))
    figures = [(usage.input, usage.output, usage.cache_read) for usage in list_usage(items)]
    assert figures == [(700, 50, 300), (5, 6, 0)]
    assert len({usage.key for usage in list_usage(items)}) == 2
    roles = [turn.role for turn in list_turns(items)]
    assert roles == ["user", "assistant", "assistant", "tool", "assistant"]
    assert all(item.at is not None for item in items)
    assert denied(items) == []


def test_qwen_usage_is_the_running_total_of_its_stream() -> None:
    items = list(qwen.iter_items(RECORDED / "qwen.jsonl"))
    figures = [(usage.input, usage.output, usage.cache_read) for usage in list_usage(items)]
    assert figures == [(700, 50, 300), (705, 56, 300)]
    head = qwen.read_head(RECORDED / "qwen.jsonl")
    assert head is not None
    assert {usage.counter for usage in list_usage(items)} == {f"qwen/{head.session}"}
    assert [turn.tool_name for turn in list_turns(items) if turn.role == "tool"] == ["write_file"]


def test_denied_calls_are_reported_with_their_tool() -> None:
    assert denied(list(copilot.iter_items(RECORDED / "copilot-denied.jsonl"))) == ["create"]
    assert denied(list(claude.iter_items(RECORDED / "claude-denied.jsonl"))) == ["Write"]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    import apsw

    opened = apsw.Connection(str(tmp_path / "opencode.db"))
    opened.execute((RECORDED / "opencode.sql").read_text())
    opened.close()
    return tmp_path


def test_opencode_is_read_from_its_database(database: Path) -> None:
    (session,) = opencode.list_sessions_since(database, "/demo/place", 0)
    path = opencode.find_transcript(database, session)
    assert path is not None
    head = opencode.read_head(path)
    assert head is not None
    assert (head.session, head.cwd) == (session, "/demo/place")
    items = list(opencode.iter_items(path))
    figures = [
        (usage.input, usage.output, usage.cache_read, usage.model) for usage in list_usage(items)
    ]
    assert figures == [(700, 50, 300, "stub"), (5, 6, 0, "stub")]
    assert [turn.role for turn in list_turns(items)] == [
        "user",
        "assistant",
        "assistant",
        "tool",
        "assistant",
    ]
    assert len({(item.place, repr(item.fact)) for item in items}) == len(items)
    assert list(opencode.iter_items(path, offset=items[-1].offset + 1)) == []
    assert opencode.find_transcript(database, "ses_unknown") is None


def test_opencode_counts_usage_of_sub_agents_without_their_turns(database: Path) -> None:
    import apsw

    (session,) = opencode.list_sessions_since(database, "/demo/place", 0)
    before = list(opencode.iter_items(database / "opencode.db" / session))
    opened = apsw.Connection(str(database / "opencode.db"))
    columns = ", ".join(row[1] for row in opened.execute("PRAGMA table_info(session)"))
    values = columns.replace("parent_id", f"'{session}'").replace("id,", "'ses_child',", 1)
    opened.execute(f"INSERT INTO session ({columns}) SELECT {values} FROM session")
    opened.execute(
        "INSERT INTO part SELECT 'child_' || id, message_id, 'ses_child', time_created, "
        "time_updated, data FROM part"
    )
    opened.close()
    after = list(opencode.iter_items(database / "opencode.db" / session))
    assert len(list_usage(after)) == 2 * len(list_usage(before))
    assert len(list_turns(after)) == len(list_turns(before))


def test_open_sessions_are_found_by_process_files(tmp_path: Path) -> None:
    for module, folder in ((claude, tmp_path / "claude"), (qwen, tmp_path / "qwen")):
        (folder / "sessions").mkdir(parents=True)
        (folder / "sessions" / "17.json").write_text('{"pid":17,"sessionId":"abc"}')
        assert module.list_open_sessions(folder, [16, 17], 0) == ["abc"]
        assert module.list_open_sessions(folder, [18], 0) == []
        assert module.list_open_sessions(folder, [17], 1 << 50) == [], (
            "an earlier process had the number"
        )
    lock = tmp_path / "copilot/session-state/abc/inuse.17.lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    assert copilot.list_open_sessions(tmp_path / "copilot", [17], 0) == ["abc"]
    assert copilot.list_open_sessions(tmp_path / "copilot", [17], 1 << 50) == []


def test_codex_session_is_found_by_its_open_rollout_file(tmp_path: Path) -> None:
    import os

    folder = tmp_path / "sessions/2026/11/18"
    folder.mkdir(parents=True)
    file = folder / "rollout-2026-11-18T00-00-00-x.jsonl"
    shutil.copy(RECORDED / "codex.jsonl", file)
    head = codex.read_head(file)
    assert head is not None
    assert codex.list_open_sessions(tmp_path, [os.getpid()], 0) == []
    with file.open("a"):
        assert codex.list_open_sessions(tmp_path, [os.getpid()], 0) == [head.session]
