"""Gemini CLI's transcripts: `~/.gemini/tmp/<project>/chats/session-<time>-<id>.jsonl`.

The first line names the session; the folder above `chats` holds the project's directory in
`.project_root`. A message is written again when its tool calls have ended; its text and tokens are
counted once. Input tokens include the tokens from the cache.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from corral.adapters.providers.facts import DenialFact, TurnFact, UsageFact
from corral.adapters.providers.gemini import is_denial
from corral.adapters.providers.json_lines import (
    extract_text,
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

# Prefixes of context that the CLI, not the person, adds as user messages.
_GENERATED_PREFIXES = ("<session_context>", "<hook_context>")

RECORDS_PROCESSES = False
RECORD_FILES = ("tmp/*/.project_root", "tmp/*/chats/session-*.jsonl")


def get_root(env: Mapping[str, str]) -> Path:
    return Path(env.get("GEMINI_CLI_HOME") or env.get("HOME") or Path.home()) / ".gemini"


def find_transcript(folder: Path, session: str) -> Path | None:
    """Return the transcript of a session. Its file name has only a prefix of the id."""
    for path in folder.glob(f"tmp/*/chats/session-*-{session[:8]}*.jsonl"):
        if path.is_file() and _session(path) == session:
            return path
    return None


def list_open_sessions(folder: Path, pids: Sequence[int], started_at: int) -> list[str]:
    """Return nothing: gemini does not record which process has a session."""
    return []


def list_sessions_since(folder: Path, cwd: str, started_at: int) -> list[str]:
    return filter_sessions_since(
        folder.glob("tmp/*/chats/session-*.jsonl"), read_head, cwd, started_at
    )


def list_subagent_transcripts(path: Path) -> list[Path]:
    return []


def read_head(path: Path) -> TranscriptHead | None:
    session = title = started_at = None
    for line, _ in iter_lines(path):
        if session is None:
            session = get_text(line, "sessionId")
            started_at = parse_time(line.get("startTime"))
            if session is None:
                return None
        elif content := _user_text(line):
            title = make_title(content)
            break
    return TranscriptHead(session, _cwd(path), started_at, title) if session else None


def _session(path: Path) -> str | None:
    return next((get_text(line, "sessionId") for line, _ in iter_lines(path)), None)


def _cwd(path: Path) -> str | None:
    try:
        return (path.parent.parent / ".project_root").read_text().strip() or None
    except OSError:
        return None


def iter_items(path: Path, *, offset: int = 0) -> Iterator[TranscriptItem]:
    """Yield the facts from `offset` on; the key of a usage is the id of its message."""
    deduplicator = _Deduplicator()
    for line in iter_lines_before(path, offset, b'"id"'):
        deduplicator.facts(line)
    for line, after in iter_lines(path, offset):
        at = parse_time(line.get("timestamp"))
        for fact in deduplicator.facts(line):
            yield TranscriptItem(at, fact, after)


class _Deduplicator:
    """Deduplicates messages and calls, which the CLI writes again when they change."""

    def __init__(self) -> None:
        self._messages: set[str] = set()
        self._calls: set[str] = set()

    def facts(self, line: dict[str, Any]) -> list[TurnFact | UsageFact | DenialFact]:
        key = get_text(line, "id")
        if key is None:
            return []
        if line.get("type") != "gemini":
            content = "" if key in self._messages else _user_text(line)
            self._messages.add(key)
            return [TurnFact("user", shorten(content))] if content else []
        facts: list[TurnFact | UsageFact | DenialFact] = []
        if key not in self._messages:
            self._messages.add(key)
            turns = text_facts(extract_text(line.get("content")))
            facts += [fact for fact in turns if isinstance(fact, TurnFact)]
            facts += _usage(line, key)
        for call in get_dicts(line, "toolCalls"):
            facts += self._call(call)
        return facts

    def _call(self, call: dict[str, Any]) -> list[TurnFact | UsageFact | DenialFact]:
        id, name, status = get_text(call, "id"), get_text(call, "name"), get_text(call, "status")
        if id is None or id in self._calls or status not in ("success", "error", "cancelled"):
            return []
        self._calls.add(id)
        responses = [
            get_dict(part, "functionResponse", "response") for part in get_dicts(call, "result")
        ]
        content = "\n".join(
            get_text(response, "output") or get_text(response, "error") or ""
            for response in responses
        ).strip()
        failed = status != "success"
        facts: list[TurnFact | UsageFact | DenialFact] = [
            tool_call(id, name, call.get("args")),
            tool_result(id, name, content, is_error=failed),
        ]
        is_denied = status == "cancelled" or (failed and is_denial(name, None, content))
        return [*facts, *([DenialFact(name or "?", id)] if is_denied else [])]


def _usage(line: dict[str, Any], key: str) -> list[TurnFact | UsageFact | DenialFact]:
    tokens = get_dict(line, "tokens")
    cached = get_int(tokens, "cached")
    thoughts = get_int(tokens, "thoughts")
    used = UsageFact(
        get_text(line, "model"),
        input=max(0, get_int(tokens, "input") - cached) + get_int(tokens, "tool"),
        output=get_int(tokens, "output") + thoughts,
        cache_read=cached,
        reasoning=thoughts,
        key=key,
    )
    return [used] if used.input or used.output or used.cache_read else []


def _user_text(line: dict[str, Any]) -> str:
    if line.get("type") != "user":
        return ""
    content = extract_text(line.get("content"))
    return "" if content.lstrip().startswith(_GENERATED_PREFIXES) else content
