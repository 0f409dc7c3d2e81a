"""GitHub Copilot CLI's records: `~/.copilot/session-state/<session id>/events.jsonl`.

Each request to a model is a line of its own with its tokens. Input tokens include the tokens from
the cache. `inuse.<pid>.lock` in the same folder names the process that has the session open.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from corral.adapters.providers.copilot import is_denial
from corral.adapters.providers.facts import Denied, Said, Used
from corral.adapters.providers.lines import (
    answered,
    called,
    number,
    rows,
    said,
    shorten,
    table,
    text,
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

EVENTS = "events.jsonl"

RECORDS_PROCESSES = True
RECORD_FILES = ("session-state/*/events.jsonl",)


def root(env: Mapping[str, str]) -> Path:
    return Path(env.get("COPILOT_HOME") or Path(env.get("HOME") or Path.home()) / ".copilot")


def find(folder: Path, session: str) -> Path | None:
    path = folder / "session-state" / session / EVENTS
    return path if path.is_file() else None


def sessions_of(folder: Path, pids: Sequence[int], started_at: int) -> list[str]:
    """Sessions that one of these processes has open."""
    locks = (path for pid in pids for path in folder.glob(f"session-state/*/inuse.{pid}.lock"))
    # An older lock was left by an earlier process with the same pid.
    return [path.parent.name for path in locks if path.stat().st_mtime * 1_000 >= started_at]


def since(folder: Path, cwd: str, started_at: int) -> list[str]:
    return sessions_since(folder.glob("session-state/*/events.jsonl"), head, cwd, started_at)


def children(path: Path) -> list[Path]:
    return []


def head(path: Path) -> Head | None:
    about: dict[str, Any] | None = None
    title = None
    for line, _ in lines_of(path):
        if about is None:
            about = table(line, "data") if line.get("type") == "session.start" else {}
        elif line.get("type") == "user.message":
            title = title_of(text(line, "data", "content") or "")
            break
    session = text(about, "sessionId")
    if session is None:
        return None
    return Head(
        session,
        text(about, "context", "cwd"),
        moment(table(about).get("startTime")),
        title,
        text(about, "copilotVersion"),
    )


def read(path: Path, *, offset: int = 0) -> Iterator[Item]:
    """Yield the facts from `offset` on; the key of a `Used` is the request's id."""
    tools: dict[str, str] = {}
    for line in lines_before(path, offset, b'"tool.execution_start"'):
        _facts(line, tools)
    for line, after in lines_of(path, offset):
        at = moment(line.get("timestamp"))
        for fact in _facts(line, tools):
            yield Item(at, fact, after)


def _facts(line: dict[str, Any], tools: dict[str, str]) -> list[Said | Used | Denied]:
    data = table(line, "data")
    match line.get("type"):
        case "user.message":
            words = text(data, "content") or ""
            return [Said("user", shorten(words))] if words.strip() else []
        case "assistant.message":
            spoken = [one for one in said(text(data, "content") or "") if isinstance(one, Said)]
            requests = rows(data, "toolRequests")
            for one in requests:
                tools[text(one, "toolCallId") or ""] = text(one, "name") or "?"
            calls = [
                called(text(one, "toolCallId"), text(one, "name"), one.get("arguments"))
                for one in requests
            ]
            return [*spoken, *calls]
        case "tool.execution_start":
            tools[text(data, "toolCallId") or ""] = text(data, "toolName") or "?"
            return []
        case "tool.execution_complete":
            return _outcome(data, tools)
        case "session.usage_record":
            return _used(table(data, "usage"), text(line, "id"))
        case _:
            return []


def _outcome(data: dict[str, Any], tools: dict[str, str]) -> list[Said | Used | Denied]:
    call = text(data, "toolCallId")
    name = tools.get(call or "")
    words = text(data, "result", "content") or text(data, "error", "message") or ""
    failed = data.get("success") is not True
    facts: list[Said | Used | Denied] = [answered(call, name, words, is_error=failed)]
    return [*facts, *([Denied(name or "?", call)] if is_denial(data) else [])]


def _used(usage: dict[str, Any], line: str | None) -> list[Said | Used | Denied]:
    cached, written = number(usage, "cacheReadTokens"), number(usage, "cacheWriteTokens")
    used = Used(
        text(usage, "model"),
        input=max(0, number(usage, "inputTokens") - cached - written),
        output=number(usage, "outputTokens"),
        cache_read=cached,
        cache_write=written,
        reasoning=number(usage, "reasoningTokens"),
        key=text(usage, "accounting", "usageId") or text(usage, "apiCallId") or line,
    )
    return [used] if used.input or used.output or used.cache_read or used.cache_write else []
