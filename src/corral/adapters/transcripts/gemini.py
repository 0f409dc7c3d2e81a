"""Gemini CLI's records: `~/.gemini/tmp/<project>/chats/session-<time>-<id>.jsonl`.

The first line names the session; the folder above `chats` holds the project's directory in
`.project_root`. A message is written again when its tool calls have ended; its text and tokens are
counted once. Input tokens include the tokens from the cache.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from corral.adapters.providers.facts import Denied, Said, Used
from corral.adapters.providers.gemini import is_denial
from corral.adapters.providers.lines import (
    answered,
    called,
    number,
    rows,
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

# Context that the CLI adds to the person's messages.
_NOT_SAID = ("<session_context>", "<hook_context>")

RECORDS_PROCESSES = False
RECORD_FILES = ("tmp/*/.project_root", "tmp/*/chats/session-*.jsonl")


def root(env: Mapping[str, str]) -> Path:
    return Path(env.get("GEMINI_CLI_HOME") or env.get("HOME") or Path.home()) / ".gemini"


def find(folder: Path, session: str) -> Path | None:
    """The record of a session. Its file name has only the first part of the id."""
    for path in folder.glob(f"tmp/*/chats/session-*-{session[:8]}*.jsonl"):
        if path.is_file() and _session(path) == session:
            return path
    return None


def sessions_of(folder: Path, pids: Sequence[int], started_at: int) -> list[str]:
    """Gemini does not record which process has a session."""
    return []


def since(folder: Path, cwd: str, started_at: int) -> list[str]:
    return sessions_since(folder.glob("tmp/*/chats/session-*.jsonl"), head, cwd, started_at)


def children(path: Path) -> list[Path]:
    return []


def head(path: Path) -> Head | None:
    session = title = started_at = None
    for line, _ in lines_of(path):
        if session is None:
            session = text(line, "sessionId")
            started_at = moment(line.get("startTime"))
            if session is None:
                return None
        elif words := _words_of_person(line):
            title = title_of(words)
            break
    return Head(session, _cwd(path), started_at, title) if session else None


def _session(path: Path) -> str | None:
    return next((text(line, "sessionId") for line, _ in lines_of(path)), None)


def _cwd(path: Path) -> str | None:
    try:
        return (path.parent.parent / ".project_root").read_text().strip() or None
    except OSError:
        return None


def read(path: Path, *, offset: int = 0) -> Iterator[Item]:
    """Yield the facts from `offset` on; the key of a `Used` is the message's id."""
    seen = _Seen()
    for line in lines_before(path, offset, b'"id"'):
        seen.facts(line)
    for line, after in lines_of(path, offset):
        at = moment(line.get("timestamp"))
        for fact in seen.facts(line):
            yield Item(at, fact, after)


class _Seen:
    """The messages and calls that were read already."""

    def __init__(self) -> None:
        self._messages: set[str] = set()
        self._calls: set[str] = set()

    def facts(self, line: dict[str, Any]) -> list[Said | Used | Denied]:
        key = text(line, "id")
        if key is None:
            return []
        if line.get("type") != "gemini":
            words = "" if key in self._messages else _words_of_person(line)
            self._messages.add(key)
            return [Said("user", shorten(words))] if words else []
        facts: list[Said | Used | Denied] = []
        if key not in self._messages:
            self._messages.add(key)
            spoken = said(words_in(line.get("content")))
            facts += [fact for fact in spoken if isinstance(fact, Said)]
            facts += _used(line, key)
        for call in rows(line, "toolCalls"):
            facts += self._call(call)
        return facts

    def _call(self, call: dict[str, Any]) -> list[Said | Used | Denied]:
        id, name, status = text(call, "id"), text(call, "name"), text(call, "status")
        if id is None or id in self._calls or status not in ("success", "error", "cancelled"):
            return []
        self._calls.add(id)
        responses = [table(part, "functionResponse", "response") for part in rows(call, "result")]
        words = "\n".join(
            text(one, "output") or text(one, "error") or "" for one in responses
        ).strip()
        failed = status != "success"
        facts: list[Said | Used | Denied] = [
            called(id, name, call.get("args")),
            answered(id, name, words, is_error=failed),
        ]
        is_denied = status == "cancelled" or (failed and is_denial(name, None, words))
        return [*facts, *([Denied(name or "?", id)] if is_denied else [])]


def _used(line: dict[str, Any], key: str) -> list[Said | Used | Denied]:
    tokens = table(line, "tokens")
    cached = number(tokens, "cached")
    thoughts = number(tokens, "thoughts")
    used = Used(
        text(line, "model"),
        input=max(0, number(tokens, "input") - cached) + number(tokens, "tool"),
        output=number(tokens, "output") + thoughts,
        cache_read=cached,
        reasoning=thoughts,
        key=key,
    )
    return [used] if used.input or used.output or used.cache_read else []


def _words_of_person(line: dict[str, Any]) -> str:
    if line.get("type") != "user":
        return ""
    words = words_in(line.get("content"))
    return "" if words.lstrip().startswith(_NOT_SAID) else words
