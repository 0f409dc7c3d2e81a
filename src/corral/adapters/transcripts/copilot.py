"""GitHub Copilot CLI's transcripts: `~/.copilot/session-state/<session id>/events.jsonl`.

Each request to a model has a line with its token counts. Input tokens include the tokens from the
cache. `inuse.<pid>.lock` in the same folder names the process that has the session open.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from corral.adapters.providers.copilot import is_denial
from corral.adapters.providers.facts import DenialFact, TurnFact, UsageFact
from corral.adapters.providers.json_lines import (
    get_dict,
    get_dicts,
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

EVENTS = "events.jsonl"

RECORDS_PROCESSES = True
RECORD_FILES = ("session-state/*/events.jsonl",)


def get_root(env: Mapping[str, str]) -> Path:
    return Path(env.get("COPILOT_HOME") or Path(env.get("HOME") or Path.home()) / ".copilot")


def find_transcript(folder: Path, session: str) -> Path | None:
    path = folder / "session-state" / session / EVENTS
    return path if path.is_file() else None


def list_open_sessions(folder: Path, pids: Sequence[int], started_at: int) -> list[str]:
    """List the sessions that these processes have open."""
    locks = (path for pid in pids for path in folder.glob(f"session-state/*/inuse.{pid}.lock"))
    # An older lock was left by an earlier process with the same pid.
    return [path.parent.name for path in locks if path.stat().st_mtime * 1_000 >= started_at]


def list_sessions_since(folder: Path, cwd: str, started_at: int) -> list[str]:
    return filter_sessions_since(
        folder.glob("session-state/*/events.jsonl"), read_head, cwd, started_at
    )


def list_subagent_transcripts(path: Path) -> list[Path]:
    return []


def read_head(path: Path) -> TranscriptHead | None:
    about: dict[str, Any] | None = None
    title = None
    for line, _ in iter_lines(path):
        if about is None:
            about = get_dict(line, "data") if line.get("type") == "session.start" else {}
        elif line.get("type") == "user.message":
            title = make_title(get_text(line, "data", "content") or "")
            break
    session = get_text(about, "sessionId")
    if session is None:
        return None
    return TranscriptHead(
        session,
        get_text(about, "context", "cwd"),
        parse_time(get_dict(about).get("startTime")),
        title,
        get_text(about, "copilotVersion"),
    )


def iter_items(path: Path, *, offset: int = 0) -> Iterator[TranscriptItem]:
    """Yield the facts from `offset` on; the key of a usage is the id of its request."""
    tools: dict[str, str] = {}
    for line in iter_lines_before(path, offset, b'"tool.execution_start"'):
        _facts(line, tools)
    for line, after in iter_lines(path, offset):
        at = parse_time(line.get("timestamp"))
        for fact in _facts(line, tools):
            yield TranscriptItem(at, fact, after)


def _facts(line: dict[str, Any], tools: dict[str, str]) -> list[TurnFact | UsageFact | DenialFact]:
    data = get_dict(line, "data")
    match line.get("type"):
        case "user.message":
            content = get_text(data, "content") or ""
            return [TurnFact("user", shorten(content))] if content.strip() else []
        case "assistant.message":
            turns = [
                turn
                for turn in text_facts(get_text(data, "content") or "")
                if isinstance(turn, TurnFact)
            ]
            requests = get_dicts(data, "toolRequests")
            for request in requests:
                tools[get_text(request, "toolCallId") or ""] = get_text(request, "name") or "?"
            calls = [
                tool_call(
                    get_text(request, "toolCallId"),
                    get_text(request, "name"),
                    request.get("arguments"),
                )
                for request in requests
            ]
            return [*turns, *calls]
        case "tool.execution_start":
            tools[get_text(data, "toolCallId") or ""] = get_text(data, "toolName") or "?"
            return []
        case "tool.execution_complete":
            return _outcome(data, tools)
        case "session.usage_record":
            return _usage(get_dict(data, "usage"), get_text(line, "id"))
        case _:
            return []


def _outcome(
    data: dict[str, Any], tools: dict[str, str]
) -> list[TurnFact | UsageFact | DenialFact]:
    call = get_text(data, "toolCallId")
    name = tools.get(call or "")
    content = get_text(data, "result", "content") or get_text(data, "error", "message") or ""
    failed = data.get("success") is not True
    facts: list[TurnFact | UsageFact | DenialFact] = [
        tool_result(call, name, content, is_error=failed)
    ]
    return [*facts, *([DenialFact(name or "?", call)] if is_denial(data) else [])]


def _usage(usage: dict[str, Any], line: str | None) -> list[TurnFact | UsageFact | DenialFact]:
    cached, written = get_int(usage, "cacheReadTokens"), get_int(usage, "cacheWriteTokens")
    used = UsageFact(
        get_text(usage, "model"),
        input=max(0, get_int(usage, "inputTokens") - cached - written),
        output=get_int(usage, "outputTokens"),
        cache_read=cached,
        cache_write=written,
        reasoning=get_int(usage, "reasoningTokens"),
        key=get_text(usage, "accounting", "usageId") or get_text(usage, "apiCallId") or line,
    )
    return [used] if used.input or used.output or used.cache_read or used.cache_write else []
