"""Qwen Code's records: `~/.qwen/projects/<directory>/chats/<session id>.jsonl`.

The telemetry lines record every request to the model, also requests outside the conversation. Their
sum is the total in the result line of the stream, so both use one counter. Input tokens include the
tokens from the cache.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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
    sessions_of_pids,
    sessions_since,
    title_of,
)

RECORDS_PROCESSES = False  # only at a terminal
RECORD_FILES = ("projects/*/chats/*.jsonl",)


def root(env: Mapping[str, str]) -> Path:
    return Path(env.get("QWEN_HOME") or Path(env.get("HOME") or Path.home()) / ".qwen")


def find(folder: Path, session: str) -> Path | None:
    files = folder.glob(f"projects/*/chats/{session}.jsonl")
    return next((path for path in files if path.is_file()), None)


def sessions_of(folder: Path, pids: Sequence[int], started_at: int) -> list[str]:
    """Sessions that one of these processes has open."""
    return sessions_of_pids(folder / "sessions", pids, started_at)


def since(folder: Path, cwd: str, started_at: int) -> list[str]:
    return sessions_since(folder.glob("projects/*/chats/*.jsonl"), head, cwd, started_at)


def children(path: Path) -> list[Path]:
    return []


def head(path: Path) -> Head | None:
    session = cwd = version = title = started_at = None
    for line, _ in lines_of(path):
        session = session or text(line, "sessionId")
        cwd = cwd or text(line, "cwd")
        version = version or text(line, "version")
        started_at = started_at if started_at is not None else moment(line.get("timestamp"))
        if line.get("type") == "user" and (words := _words(line)):
            title = title_of(words)
            break
    return Head(session, cwd, started_at, title, version) if session and cwd else None


def read(path: Path, *, offset: int = 0) -> Iterator[Item]:
    """Yield the facts from `offset` on."""
    total = _Total()
    for line in lines_before(path, offset, b"api_response"):
        total.add(line)
    for line, after in lines_of(path, offset):
        at = moment(line.get("timestamp"))
        for fact in (*_said(line), *total.add(line)):
            yield Item(at, fact, after)


class _Total:
    """The running totals of a conversation."""

    def __init__(self) -> None:
        self._input = self._output = self._cached = 0

    def add(self, line: dict[str, Any]) -> list[Used]:
        event = table(line, "systemPayload", "uiEvent")
        if text(event, "event.name") != "qwen-code.api_response":
            return []
        cached = number(event, "cached_content_token_count")
        self._input += max(0, number(event, "input_token_count") - cached)
        self._output += number(event, "output_token_count")
        self._cached += cached
        model, counter = text(event, "model"), f"qwen/{text(line, 'sessionId')}"
        return [Used(model, self._input, self._output, self._cached, counter=counter)]


def _said(line: dict[str, Any]) -> list[Said | Denied]:
    parts = rows(line, "message", "parts")
    match line.get("type"):
        case "user" if words := _words(line):
            return [Said("user", shorten(words))]
        case "assistant":
            spoken = said(_words(line))
            calls = [table(part, "functionCall") for part in parts if "functionCall" in part]
            return [
                *(fact for fact in spoken if isinstance(fact, Said)),
                *(called(text(call, "id"), text(call, "name"), call.get("args")) for call in calls),
            ]
        case "tool_result":
            return _results(line, parts)
        case _:
            return []


def _results(line: dict[str, Any], parts: list[dict[str, Any]]) -> list[Said | Denied]:
    failed = text(line, "toolCallResult", "status") not in ("success", None)
    denied = text(line, "toolCallResult", "status") == "cancelled" or (
        text(line, "toolCallResult", "errorType") == "execution_denied"
    )
    facts: list[Said | Denied] = []
    for answer in (table(part, "functionResponse") for part in parts):
        call, name = text(answer, "id"), text(answer, "name")
        words = text(answer, "response", "output") or text(answer, "response", "error") or ""
        facts.append(answered(call, name, words, is_error=failed))
        if denied:
            facts.append(Denied(name or "?", call))
    return facts


def _words(line: dict[str, Any]) -> str:
    parts = rows(line, "message", "parts")
    return "\n".join(words for part in parts if (words := text(part, "text")) is not None)
