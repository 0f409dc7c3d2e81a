"""Qwen Code's transcripts: `~/.qwen/projects/<directory>/chats/<session id>.jsonl`.

The telemetry lines record every request to the model, also requests outside the conversation. Their
sum is the total in the result line of the stream, so both use one counter. Input tokens include the
tokens from the cache.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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
    list_sessions_of_pids,
    make_title,
    parse_time,
)

RECORDS_PROCESSES = False  # terminal runs record it, headless runs do not
RECORD_FILES = ("projects/*/chats/*.jsonl",)


def get_root(env: Mapping[str, str]) -> Path:
    return Path(env.get("QWEN_HOME") or Path(env.get("HOME") or Path.home()) / ".qwen")


def find_transcript(folder: Path, session: str) -> Path | None:
    files = folder.glob(f"projects/*/chats/{session}.jsonl")
    return next((path for path in files if path.is_file()), None)


def list_open_sessions(folder: Path, pids: Sequence[int], started_at: int) -> list[str]:
    """List the sessions that these processes have open."""
    return list_sessions_of_pids(folder / "sessions", pids, started_at)


def list_sessions_since(folder: Path, cwd: str, started_at: int) -> list[str]:
    return filter_sessions_since(
        folder.glob("projects/*/chats/*.jsonl"), read_head, cwd, started_at
    )


def list_subagent_transcripts(path: Path) -> list[Path]:
    return []


def read_head(path: Path) -> TranscriptHead | None:
    session = cwd = version = title = started_at = None
    for line, _ in iter_lines(path):
        session = session or get_text(line, "sessionId")
        cwd = cwd or get_text(line, "cwd")
        version = version or get_text(line, "version")
        started_at = started_at if started_at is not None else parse_time(line.get("timestamp"))
        if line.get("type") == "user" and (content := _message_text(line)):
            title = make_title(content)
            break
    return TranscriptHead(session, cwd, started_at, title, version) if session and cwd else None


def iter_items(path: Path, *, offset: int = 0) -> Iterator[TranscriptItem]:
    """Yield the facts from `offset` on."""
    total = _Total()
    for line in iter_lines_before(path, offset, b"api_response"):
        total.add(line)
    for line, after in iter_lines(path, offset):
        at = parse_time(line.get("timestamp"))
        for fact in (*_turns(line), *total.add(line)):
            yield TranscriptItem(at, fact, after)


class _Total:
    """The running totals of a conversation."""

    def __init__(self) -> None:
        self._input = self._output = self._cached = 0

    def add(self, line: dict[str, Any]) -> list[UsageFact]:
        event = get_dict(line, "systemPayload", "uiEvent")
        if get_text(event, "event.name") != "qwen-code.api_response":
            return []
        cached = get_int(event, "cached_content_token_count")
        self._input += max(0, get_int(event, "input_token_count") - cached)
        self._output += get_int(event, "output_token_count")
        self._cached += cached
        model, counter = get_text(event, "model"), f"qwen/{get_text(line, 'sessionId')}"
        return [UsageFact(model, self._input, self._output, self._cached, counter=counter)]


def _turns(line: dict[str, Any]) -> list[TurnFact | DenialFact]:
    parts = get_dicts(line, "message", "parts")
    match line.get("type"):
        case "user" if content := _message_text(line):
            return [TurnFact("user", shorten(content))]
        case "assistant":
            turns = text_facts(_message_text(line))
            calls = [get_dict(part, "functionCall") for part in parts if "functionCall" in part]
            return [
                *(fact for fact in turns if isinstance(fact, TurnFact)),
                *(
                    tool_call(get_text(call, "id"), get_text(call, "name"), call.get("args"))
                    for call in calls
                ),
            ]
        case "tool_result":
            return _results(line, parts)
        case _:
            return []


def _results(line: dict[str, Any], parts: list[dict[str, Any]]) -> list[TurnFact | DenialFact]:
    failed = get_text(line, "toolCallResult", "status") not in ("success", None)
    denied = get_text(line, "toolCallResult", "status") == "cancelled" or (
        get_text(line, "toolCallResult", "errorType") == "execution_denied"
    )
    facts: list[TurnFact | DenialFact] = []
    for answer in (get_dict(part, "functionResponse") for part in parts):
        call, name = get_text(answer, "id"), get_text(answer, "name")
        content = (
            get_text(answer, "response", "output") or get_text(answer, "response", "error") or ""
        )
        facts.append(tool_result(call, name, content, is_error=failed))
        if denied:
            facts.append(DenialFact(name or "?", call))
    return facts


def _message_text(line: dict[str, Any]) -> str:
    parts = get_dicts(line, "message", "parts")
    return "\n".join(content for part in parts if (content := get_text(part, "text")) is not None)
