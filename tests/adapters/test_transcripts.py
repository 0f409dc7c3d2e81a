"""Transcripts as Claude Code and Codex wrote them (without the CLIs' own prompts)."""

import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from corral.adapters.providers.facts import Said, Used
from corral.adapters.transcripts import claude, codex
from corral.adapters.transcripts.transcript import Item

RECORDED = Path(__file__).parents[1] / "fixtures" / "transcripts"
BOTH = [(claude, "claude"), (claude, "claude-killed"), (codex, "codex"), (codex, "codex-killed")]


def said(items: list[Item]) -> list[Said]:
    return [item.fact for item in items if isinstance(item.fact, Said)]


def used(items: list[Item]) -> list[Used]:
    return [item.fact for item in items if isinstance(item.fact, Used)]


def as_set(items: list[Item]) -> set[Any]:
    """Without the time of usage: a message that is read twice has the same key, and counts once."""
    return {(None if isinstance(item.fact, Used) else item.at, repr(item.fact)) for item in items}


@pytest.mark.parametrize(("module", "name"), BOTH)
def test_bad_lines_are_passed_over(module: ModuleType, name: str, tmp_path: Path) -> None:
    lines = (RECORDED / f"{name}.jsonl").read_bytes().splitlines(keepends=True)
    noise = [b"\n", b"{\n", b"\xff\xfe\n", b"[]\n", b'{"type":[]}\n', b'{"message":7}\n', b"{}\n"]
    file = tmp_path / "noisy.jsonl"
    file.write_bytes(
        lines[0] + b"".join(line + noise[at % len(noise)] for at, line in enumerate(lines[1:]))
    )
    clean = list(module.read(RECORDED / f"{name}.jsonl"))
    assert [item.fact for item in module.read(file)] == [item.fact for item in clean]


@pytest.mark.parametrize(("module", "name"), BOTH)
def test_a_reading_goes_on_where_it_stopped(module: ModuleType, name: str, tmp_path: Path) -> None:
    whole = (RECORDED / f"{name}.jsonl").read_bytes()
    file = tmp_path / "growing.jsonl"
    offset, items = 0, []
    for end in range(0, len(whole) + 500, 500):
        file.write_bytes(whole[:end])
        new = list(module.read(file, offset=offset))
        offset = max([offset, *(item.offset for item in new)])
        items += new
    assert as_set(items) == as_set(list(module.read(RECORDED / f"{name}.jsonl")))
    assert list(module.read(file, offset=offset)) == []


@pytest.mark.parametrize("module", [claude, codex])
def test_a_file_that_is_none_of_theirs_is_nobodys(module: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "rollout-x.jsonl"
    for content in (b"", b"hello\n", b"{}\n{}\n", b'{"type":"session_meta","payload":{"id":5}}\n'):
        file.write_bytes(content)
        assert module.head(file) is None
        assert list(module.read(file)) == []


def test_the_head_says_whose_conversation_it_is() -> None:
    found = claude.head(RECORDED / "claude.jsonl")
    assert found is not None
    assert found.session == "ce3730c6-ea7e-4d85-9439-405672d53265"
    assert (found.cwd, found.version) == ("/demo/place", "2.1.325")
    assert found.started_at == 1_794_785_605_349
    assert str(found.title).startswith("STUB:")
    found = codex.head(RECORDED / "codex.jsonl")
    assert found is not None
    assert (found.cwd, found.version) == ("/demo/place", "0.163.0")
    assert str(found.title).startswith("STUB:")


def test_claude_usage_is_counted_once_for_each_message() -> None:
    items = list(claude.read(RECORDED / "claude.jsonl"))
    assert [(one.input, one.output, one.cache_read, one.cache_write) for one in used(items)] == [
        (1000, 50, 300, 20),
        (2000, 10, 1000, 0),
        (3000, 5, 0, 0),
    ]
    assert len({one.key for one in used(items)}) == 3
    assert [turn.role for turn in said(items)] == [
        "user",
        "assistant",
        "assistant",
        "tool",
        "assistant",
        "user",
        "assistant",
    ]


def test_claude_that_was_killed_left_what_it_had_used() -> None:
    items = list(claude.read(RECORDED / "claude-killed.jsonl"))
    assert [(one.input, one.output) for one in used(items)] == [(1000, 50), (2000, 10)]
    assert not any("No response requested" in turn.content for turn in said(items))


def test_codex_usage_is_the_threads_running_total() -> None:
    items = list(codex.read(RECORDED / "codex.jsonl"))
    assert [(one.input, one.cache_read, one.output) for one in used(items)] == [
        (700, 300, 50),
        (1700, 1300, 60),
        (4700, 1300, 65),
    ]
    assert {one.model for one in used(items)} == {"stub"}
    found = codex.head(RECORDED / "codex.jsonl")
    assert found is not None
    assert {one.counter for one in used(items)} == {f"codex/{found.session}"}
    call, answer = said(items)[2:4]
    assert (call.tool_name, call.arguments) == ("exec_command", {"cmd": "echo hi > a2.txt"})
    assert (answer.role, answer.tool_name) == ("tool", "exec_command")


def test_codex_knows_its_model_also_when_it_goes_on_in_the_middle() -> None:
    items = list(codex.read(RECORDED / "codex.jsonl"))
    later = list(codex.read(RECORDED / "codex.jsonl", offset=items[3].offset))
    assert [item.fact for item in later] == [item.fact for item in items[4:]]


def test_the_files_of_a_folder_are_found(tmp_path: Path) -> None:
    for name, place in (
        ("claude", "projects/-demo/a.jsonl"),
        ("codex", "2026/11/15/rollout-a.jsonl"),
    ):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(RECORDED / f"{name}.jsonl", tmp_path / place)
    assert [file.name for file in codex.files(tmp_path)] == ["rollout-a.jsonl"]
    assert "a.jsonl" in [file.name for file in claude.files(tmp_path)]
    assert list(claude.files(tmp_path / "nowhere")) == []
