"""Codex's transcripts: `~/.codex/sessions/YYYY/MM/DD/rollout-<time>-<thread id>.jsonl`.

The first line names the thread. Usage is the running total of the thread, with the same counter as
in the stream of `codex exec`, so that a thread which Corral ran is not charged twice.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from corral.adapters.providers.codex import is_denial
from corral.adapters.providers.facts import DenialFact, TurnFact, UsageFact
from corral.adapters.providers.json_lines import (
    extract_text,
    get_dict,
    get_int,
    get_text,
    shorten,
    text_facts,
    tool_call,
    tool_result,
)
from corral.adapters.transcripts.reader import (
    TranscriptHead,
    TranscriptItem,
    filter_sessions_since,
    iter_lines,
    iter_lines_before,
    make_title,
    parse_time,
)

FOLDER = ".codex/sessions"
# Prefixes of text that the CLI, not the person, adds as user messages.
_GENERATED_PREFIXES = (
    "<environment_context>",
    "<user_instructions>",
    "<turn_aborted>",
    "# AGENTS.md",
)

RECORDS_PROCESSES = True
RECORD_FILES = ("sessions/*/*/*/rollout-*.jsonl",)


def get_root(env: Mapping[str, str]) -> Path:
    return Path(env.get("CODEX_HOME") or Path(env.get("HOME") or Path.home()) / ".codex")


def find_transcript(folder: Path, session: str) -> Path | None:
    files = folder.glob(f"sessions/**/rollout-*-{session}.jsonl")
    return next((path for path in files if path.is_file()), None)


def list_open_sessions(folder: Path, pids: Sequence[int], started_at: int) -> list[str]:
    """List the sessions whose rollout these processes have open, except those of sub-agents."""
    sessions = []
    for pid in pids:
        try:
            opened = [os.readlink(entry) for entry in os.scandir(f"/proc/{pid}/fd")]
        except OSError:
            continue  # the process has ended, or the system has no /proc
        paths = {Path(name) for name in opened if name.startswith(f"{folder}/sessions/")}
        for path in paths:
            about = read_head(path) if path.is_file() else None
            if about is not None and about.parent is None:
                sessions.append(about.session)
    return sessions


def list_sessions_since(folder: Path, cwd: str, started_at: int) -> list[str]:
    return filter_sessions_since(
        folder.glob("sessions/**/rollout-*.jsonl"), read_head, cwd, started_at
    )


def list_subagent_transcripts(path: Path) -> list[Path]:
    """List the rollouts of sub-agents, which are in the directory of their parent."""
    about = read_head(path)
    others = sorted(path.parent.glob("rollout-*.jsonl"))
    later = (file for file in others if file != path and file.name > path.name)
    heads = ((file, read_head(file)) for file in later)
    return [file for file, other in heads if about and other and other.parent == about.session]


def iter_files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("rollout-*.jsonl")) if path.is_file())


def read_head(path: Path) -> TranscriptHead | None:
    meta: dict[str, Any] = {}
    session = title = None
    for line, _ in iter_lines(path):
        payload = get_dict(line, "payload")
        if session is None:
            session = get_text(payload, "id") if line.get("type") == "session_meta" else None
            if session is None:
                return None  # old rollouts without metadata are not supported
            meta = payload
        elif content := _user_text(line, payload):
            title = make_title(content)
            break
    if session is None:
        return None
    return TranscriptHead(
        session,
        get_text(meta, "cwd"),
        parse_time(meta.get("timestamp")),
        title,
        get_text(meta, "cli_version"),
        get_text(meta, "forked_from_id") or get_text(meta, "parent_thread_id"),
    )


def find_model(path: Path) -> str | None:
    """Return the model of the last turn of the thread."""
    return _model_before(path, path.stat().st_size)


def _model_before(path: Path, offset: int) -> str | None:
    model = None
    for line in iter_lines_before(path, offset, b'"turn_context"'):
        if line.get("type") == "turn_context":
            model = get_text(line, "payload", "model") or model
    return model


def iter_items(path: Path, *, offset: int = 0) -> Iterator[TranscriptItem]:
    """Yield the facts from `offset` on."""
    about = read_head(path)
    if about is None:
        return
    counter = f"codex/{about.session}"
    model = _model_before(path, offset)
    tools: dict[str, str] = {}
    for line in iter_lines_before(path, offset, b'_call"'):
        _turns(line, get_dict(line, "payload"), tools)
    for line, after in iter_lines(path, offset):
        payload, at = get_dict(line, "payload"), parse_time(line.get("timestamp"))
        kind = line.get("type")
        if kind == "turn_context":
            model = get_text(payload, "model") or model
        elif kind == "response_item":
            for fact in _turns(line, payload, tools):
                yield TranscriptItem(at, fact, after)
                if fact.role == "tool" and is_denial(fact.content):
                    yield TranscriptItem(
                        at, DenialFact(fact.tool_name or "?", fact.tool_call_id), after
                    )
        elif kind == "event_msg" and payload.get("type") == "token_count":
            total = get_dict(payload, "info", "total_token_usage")
            if total:
                yield TranscriptItem(at, _usage(total, model, counter), after)


def _usage(total: dict[str, Any], model: str | None, counter: str) -> UsageFact:
    cached = get_int(total, "cached_input_tokens")
    written = get_int(total, "cache_write_input_tokens")
    return UsageFact(
        model,
        input=max(0, get_int(total, "input_tokens") - cached - written),
        output=get_int(total, "output_tokens"),
        cache_read=cached,
        cache_write=written,
        reasoning=get_int(total, "reasoning_output_tokens"),
        counter=counter,
    )


def _turns(line: dict[str, Any], payload: dict[str, Any], tools: dict[str, str]) -> list[TurnFact]:
    call = get_text(payload, "call_id")
    match payload.get("type"):
        case "message" if payload.get("role") == "assistant":
            facts = text_facts(extract_text(payload.get("content")))
            return [fact for fact in facts if isinstance(fact, TurnFact)]
        case "message":
            content = _user_text(line, payload)
            return [TurnFact("user", shorten(content))] if content else []
        case "function_call" | "custom_tool_call":
            name = get_text(payload, "name")
            if call and name:
                tools[call] = name
            return [tool_call(call, name, _arguments(payload))]
        case "function_call_output" | "custom_tool_call_output":
            output = payload.get("output")
            content = extract_text(output) or extract_text(
                get_dict(payload, "output").get("content")
            )
            return [tool_result(call, tools.get(call or ""), content)]
        case _:
            return []


def _arguments(payload: dict[str, Any]) -> Any:
    """Return the arguments decoded from JSON; unchanged for a tool that takes free text."""
    arguments = payload.get("arguments", payload.get("input"))
    if isinstance(arguments, str):
        try:
            return msgspec.json.decode(arguments)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return arguments
    return arguments


def _user_text(line: dict[str, Any], payload: dict[str, Any]) -> str:
    if line.get("type") != "response_item" or payload.get("role") != "user":
        return ""
    content = extract_text(payload.get("content"))
    return "" if content.lstrip().startswith(_GENERATED_PREFIXES) else content
