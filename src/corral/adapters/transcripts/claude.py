"""Claude Code's transcripts: `~/.claude/projects/*/<session id>.jsonl`.

A message is several lines, one for each of its blocks, and each carries the usage of the whole
message: it counts once, as the last of them says it. Every line says its session and directory.
Most lines are the CLI's own notes and are passed over. Sub-agents have files of their own, below
`<session id>/subagents/`. `sessions/<pid>.json` names the session of a process.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from corral.adapters.providers.claude import ClaudeParser
from corral.adapters.providers.facts import Denied, Said, Used
from corral.adapters.providers.lines import (
    answered,
    called,
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
    sessions_of_pids,
    sessions_since,
    title_of,
)

FOLDER = ".claude"
# Words that the CLI puts into the person's mouth.
_NOT_SAID = ("<local-command-", "<command-", "<system-reminder>", "Caveat: The messages below")

RECORDS_PROCESSES = True
RECORD_FILES = ("projects/*/*.jsonl", "projects/*/*/subagents/*.jsonl")


def root(env: Mapping[str, str]) -> Path:
    return Path(env.get("CLAUDE_CONFIG_DIR") or Path(env.get("HOME") or Path.home()) / FOLDER)


def find(folder: Path, session: str) -> Path | None:
    files = folder.glob(f"projects/*/{session}.jsonl")
    return next((path for path in files if path.is_file()), None)


def sessions_of(folder: Path, pids: Sequence[int], started_at: int) -> list[str]:
    """Sessions that one of these processes has open."""
    return sessions_of_pids(folder / "sessions", pids, started_at)


def since(folder: Path, cwd: str, started_at: int) -> list[str]:
    return sessions_since(folder.glob("projects/*/*.jsonl"), head, cwd, started_at)


def children(path: Path) -> list[Path]:
    return [one for one in path.with_suffix("").glob("subagents/*.jsonl") if one.is_file()]


def files(folder: Path) -> Iterator[Path]:
    """The transcripts below `~/.claude` or any other folder, whatever is in it."""
    return (path for path in sorted(folder.rglob("*.jsonl")) if path.is_file())


def head(path: Path) -> Head | None:
    """Whose conversation it is; None when the file is none."""
    session = cwd = version = title = None
    started_at = None
    for line, _ in lines_of(path):
        session = session or text(line, "sessionId")
        cwd = cwd or text(line, "cwd")
        version = version or text(line, "version")
        started_at = started_at if started_at is not None else moment(line.get("timestamp"))
        if words := _words_of_person(line):
            title = title_of(words)
        elif line.get("type") == "summary":
            title = text(line, "summary")
        if session and cwd and title:
            break
    return Head(session, cwd, started_at, title, version) if session and cwd else None


def read(path: Path, *, offset: int = 0) -> Iterator[Item]:
    """What was said and used from `offset` on; the usage of a message has the message's key."""
    usage = ClaudeParser().usage
    tools = _tools_before(path, offset)
    counted: set[str] = set()
    last: Item | None = None
    for line, after in lines_of(path, offset):
        body, at = table(line, "message"), moment(line.get("timestamp"))
        facts: list[Said | Denied] = [*_said(line, body, tools), *_denied(line, body, tools)]
        for fact in facts:
            yield Item(at, fact, after)
        key = text(body, "id") if line.get("type") == "assistant" else None
        if key is None or key in counted:
            continue
        if last and isinstance(last.fact, Used) and last.fact.key != key:
            counted.add(last.fact.key or "")
            yield last
            last = None
        if used := usage(body.get("usage"), text(body, "model"), key):
            last = Item(at, used, after)
            if text(body, "stop_reason"):  # the message is complete, and so are its figures
                counted.add(key)
                yield last
                last = None
    if last:
        yield last


def _tools_before(path: Path, offset: int) -> dict[str, str]:
    tools: dict[str, str] = {}
    for line in lines_before(path, offset, b'"tool_use"'):
        _said(line, table(line, "message"), tools)
    return tools


def _said(line: dict[str, Any], body: dict[str, Any], tools: dict[str, str]) -> list[Said]:
    if line.get("isSidechain") is True or line.get("isMeta") is True:
        return []
    if line.get("type") == "assistant":
        if text(body, "model") == "<synthetic>":
            return []  # the CLI's own words
        return _of_agent(body, tools)
    if line.get("type") != "user":
        return []
    facts = [
        answered(
            text(block, "tool_use_id"),
            tools.get(text(block, "tool_use_id") or ""),
            words_in(block.get("content")),
            is_error=block.get("is_error") is True,
        )
        for block in rows(body, "content")
        if block.get("type") == "tool_result"
    ]
    words = "" if facts else _words_of_person(line)
    return [Said("user", shorten(words))] if words else facts


def _denied(line: dict[str, Any], body: dict[str, Any], tools: dict[str, str]) -> list[Denied]:
    if line.get("type") != "user" or text(line, "permissionDecision", "decision") != "reject":
        return []
    calls = [text(block, "tool_use_id") or "" for block in rows(body, "content")]
    return [Denied(tools.get(call) or "?", call) for call in calls if call]


def _of_agent(body: dict[str, Any], tools: dict[str, str]) -> list[Said]:
    facts: list[Said] = []
    for block in rows(body, "content"):
        if block.get("type") == "text":
            facts += [fact for fact in said(text(block, "text") or "") if isinstance(fact, Said)]
        elif block.get("type") == "tool_use":
            call, name = text(block, "id"), text(block, "name")
            if call and name:
                tools[call] = name
            facts.append(called(call, name, block.get("input")))
    return facts


def _words_of_person(line: dict[str, Any]) -> str:
    if line.get("type") != "user" or line.get("isMeta") is True or line.get("isSidechain") is True:
        return ""
    content = table(line, "message").get("content")
    if isinstance(content, list):
        content = [block for block in content if table(block).get("type") == "text"]
    words = words_in(content)
    return "" if words.lstrip().startswith(_NOT_SAID) else words
