"""Codex's transcripts: `~/.codex/sessions/YYYY/MM/DD/rollout-<time>-<thread id>.jsonl`.

The first line says whose thread it is. Usage is the thread's running total, under the same counter
as in the stream of `codex exec`, so that a thread which Corral ran is not charged twice.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from corral.adapters.providers.codex import is_denial
from corral.adapters.providers.facts import Denied, Said, Used
from corral.adapters.providers.lines import (
    answered,
    called,
    number,
    said,
    shorten,
    table,
    text,
    words_in,
)
from corral.adapters.transcripts.transcript import (
    Head,
    Item,
    lines_before,
    lines_of,
    moment,
    sessions_since,
    title_of,
)

FOLDER = ".codex/sessions"
# What the CLI adds in the person's name begins with a tag of its own.
_NOT_SAID = ("<environment_context>", "<user_instructions>", "<turn_aborted>", "# AGENTS.md")

RECORDS_PROCESSES = True
RECORD_FILES = ("sessions/*/*/*/rollout-*.jsonl",)


def root(env: Mapping[str, str]) -> Path:
    return Path(env.get("CODEX_HOME") or Path(env.get("HOME") or Path.home()) / ".codex")


def find(folder: Path, session: str) -> Path | None:
    files = folder.glob(f"sessions/**/rollout-*-{session}.jsonl")
    return next((path for path in files if path.is_file()), None)


def sessions_of(folder: Path, pids: Sequence[int], started_at: int) -> list[str]:
    """Sessions whose rollout one of these processes has open; a sub-agent's is not one of them."""
    found = []
    for pid in pids:
        try:
            opened = [os.readlink(entry) for entry in os.scandir(f"/proc/{pid}/fd")]
        except OSError:
            continue  # it has ended, or this system has no /proc
        paths = {Path(name) for name in opened if name.startswith(f"{folder}/sessions/")}
        for path in paths:
            about = head(path) if path.is_file() else None
            if about is not None and about.parent is None:
                found.append(about.session)
    return found


def since(folder: Path, cwd: str, started_at: int) -> list[str]:
    return sessions_since(folder.glob("sessions/**/rollout-*.jsonl"), head, cwd, started_at)


def children(path: Path) -> list[Path]:
    """The rollouts of sub-agents, which codex puts beside that of their parent."""
    about = head(path)
    others = sorted(path.parent.glob("rollout-*.jsonl"))
    later = (one for one in others if one != path and one.name > path.name)
    found = ((one, head(one)) for one in later)
    return [one for one, other in found if about and other and other.parent == about.session]


def files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("rollout-*.jsonl")) if path.is_file())


def head(path: Path) -> Head | None:
    meta: dict[str, Any] = {}
    session = title = None
    for line, _ in lines_of(path):
        payload = table(line, "payload")
        if session is None:
            session = text(payload, "id") if line.get("type") == "session_meta" else None
            if session is None:
                return None  # the older ones, which say nothing of the kind, are not read
            meta = payload
        elif words := _words_of_person(line, payload):
            title = title_of(words)
            break
    if session is None:
        return None
    return Head(
        session,
        text(meta, "cwd"),
        moment(meta.get("timestamp")),
        title,
        text(meta, "cli_version"),
        text(meta, "forked_from_id") or text(meta, "parent_thread_id"),
    )


def model(path: Path) -> str | None:
    """The model that the thread was last asked with."""
    return _model_before(path, path.stat().st_size)


def _model_before(path: Path, offset: int) -> str | None:
    found = None
    for line in lines_before(path, offset, b'"turn_context"'):
        if line.get("type") == "turn_context":
            found = text(line, "payload", "model") or found
    return found


def read(path: Path, *, offset: int = 0) -> Iterator[Item]:
    """What was said and used from `offset` on."""
    found = head(path)
    if found is None:
        return
    counter = f"codex/{found.session}"
    model = _model_before(path, offset)
    tools: dict[str, str] = {}
    for line in lines_before(path, offset, b'_call"'):
        _said(line, table(line, "payload"), tools)
    for line, after in lines_of(path, offset):
        payload, at = table(line, "payload"), moment(line.get("timestamp"))
        kind = line.get("type")
        if kind == "turn_context":
            model = text(payload, "model") or model
        elif kind == "response_item":
            for fact in _said(line, payload, tools):
                yield Item(at, fact, after)
                if fact.role == "tool" and is_denial(fact.content):
                    yield Item(at, Denied(fact.tool_name or "?", fact.tool_call_id), after)
        elif kind == "event_msg" and payload.get("type") == "token_count":
            total = table(payload, "info", "total_token_usage")
            if total:
                yield Item(at, _used(total, model, counter), after)


def _used(total: dict[str, Any], model: str | None, counter: str) -> Used:
    cached = number(total, "cached_input_tokens")
    written = number(total, "cache_write_input_tokens")
    return Used(
        model,
        input=max(0, number(total, "input_tokens") - cached - written),
        output=number(total, "output_tokens"),
        cache_read=cached,
        cache_write=written,
        reasoning=number(total, "reasoning_output_tokens"),
        counter=counter,
    )


def _said(line: dict[str, Any], payload: dict[str, Any], tools: dict[str, str]) -> list[Said]:
    call = text(payload, "call_id")
    match payload.get("type"):
        case "message" if payload.get("role") == "assistant":
            facts = said(words_in(payload.get("content")))
            return [fact for fact in facts if isinstance(fact, Said)]
        case "message":
            words = _words_of_person(line, payload)
            return [Said("user", shorten(words))] if words else []
        case "function_call" | "custom_tool_call":
            name = text(payload, "name")
            if call and name:
                tools[call] = name
            return [called(call, name, _arguments(payload))]
        case "function_call_output" | "custom_tool_call_output":
            output = payload.get("output")
            words = words_in(output) or words_in(table(payload, "output").get("content"))
            return [answered(call, tools.get(call or ""), words)]
        case _:
            return []


def _arguments(payload: dict[str, Any]) -> Any:
    """An object in a text, or the free text of a tool that takes any."""
    given = payload.get("arguments", payload.get("input"))
    if isinstance(given, str):
        try:
            return msgspec.json.decode(given)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return given
    return given


def _words_of_person(line: dict[str, Any], payload: dict[str, Any]) -> str:
    if line.get("type") != "response_item" or payload.get("role") != "user":
        return ""
    words = words_in(payload.get("content"))
    return "" if words.lstrip().startswith(_NOT_SAID) else words
