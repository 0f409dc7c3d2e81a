"""Claude Code's transcripts: `~/.claude/projects/*/<session id>.jsonl`.

A message has one line per block, and each line has the usage of the message so far: only the last
one counts. Every line has the session and the directory. Most lines are internal to the CLI and are
skipped. Sub-agents have separate files below `<session id>/subagents/`. `sessions/<pid>.json` names
the session of a process.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from corral.adapters.providers.claude import ClaudeParser
from corral.adapters.providers.facts import DenialFact, TurnFact, UsageFact
from corral.adapters.providers.json_lines import (
    extract_text,
    get_dict,
    get_dicts,
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

FOLDER = ".claude"
# Prefixes of text that the CLI, not the person, adds as user messages.
_GENERATED_PREFIXES = (
    "<local-command-",
    "<command-",
    "<system-reminder>",
    "Caveat: The messages below",
)

RECORDS_PROCESSES = True
RECORD_FILES = ("projects/*/*.jsonl", "projects/*/*/subagents/*.jsonl")


def get_root(env: Mapping[str, str]) -> Path:
    return Path(env.get("CLAUDE_CONFIG_DIR") or Path(env.get("HOME") or Path.home()) / FOLDER)


def find_transcript(folder: Path, session: str) -> Path | None:
    files = folder.glob(f"projects/*/{session}.jsonl")
    return next((path for path in files if path.is_file()), None)


def list_open_sessions(folder: Path, pids: Sequence[int], started_at: int) -> list[str]:
    """List the sessions that these processes have open."""
    return list_sessions_of_pids(folder / "sessions", pids, started_at)


def list_sessions_since(folder: Path, cwd: str, started_at: int) -> list[str]:
    return filter_sessions_since(folder.glob("projects/*/*.jsonl"), read_head, cwd, started_at)


def list_subagent_transcripts(path: Path) -> list[Path]:
    return [file for file in path.with_suffix("").glob("subagents/*.jsonl") if file.is_file()]


def iter_files(folder: Path) -> Iterator[Path]:
    """Iterate over the transcripts below `~/.claude` or any other directory."""
    return (path for path in sorted(folder.rglob("*.jsonl")) if path.is_file())


def read_head(path: Path) -> TranscriptHead | None:
    """Return the description of a transcript; None if the file is not a transcript."""
    session = cwd = version = title = None
    started_at = None
    for line, _ in iter_lines(path):
        session = session or get_text(line, "sessionId")
        cwd = cwd or get_text(line, "cwd")
        version = version or get_text(line, "version")
        started_at = started_at if started_at is not None else parse_time(line.get("timestamp"))
        if content := _user_text(line):
            title = make_title(content)
        elif line.get("type") == "summary":
            title = get_text(line, "summary")
        if session and cwd and title:
            break
    return TranscriptHead(session, cwd, started_at, title, version) if session and cwd else None


def iter_items(path: Path, *, offset: int = 0) -> Iterator[TranscriptItem]:
    """Yield the facts from `offset` on; the key of a usage is the id of its message."""
    usage = ClaudeParser().usage
    tools = _tools_before(path, offset)
    counted: set[str] = set()
    last: TranscriptItem | None = None
    for line, after in iter_lines(path, offset):
        body, at = get_dict(line, "message"), parse_time(line.get("timestamp"))
        facts: list[TurnFact | DenialFact] = [
            *_turns(line, body, tools),
            *_denials(line, body, tools),
        ]
        for fact in facts:
            yield TranscriptItem(at, fact, after)
        key = get_text(body, "id") if line.get("type") == "assistant" else None
        if key is None or key in counted:
            continue
        if last and isinstance(last.fact, UsageFact) and last.fact.key != key:
            counted.add(last.fact.key or "")
            yield last
            last = None
        if used := usage(body.get("usage"), get_text(body, "model"), key):
            last = TranscriptItem(at, used, after)
            if get_text(body, "stop_reason"):  # the message is complete, so its usage is final
                counted.add(key)
                yield last
                last = None
    if last:
        yield last


def _tools_before(path: Path, offset: int) -> dict[str, str]:
    tools: dict[str, str] = {}
    for line in iter_lines_before(path, offset, b'"tool_use"'):
        _turns(line, get_dict(line, "message"), tools)
    return tools


def _turns(line: dict[str, Any], body: dict[str, Any], tools: dict[str, str]) -> list[TurnFact]:
    if line.get("isSidechain") is True or line.get("isMeta") is True:
        return []
    if line.get("type") == "assistant":
        if get_text(body, "model") == "<synthetic>":
            return []  # generated by the CLI
        return _assistant_turns(body, tools)
    if line.get("type") != "user":
        return []
    facts = [
        tool_result(
            get_text(block, "tool_use_id"),
            tools.get(get_text(block, "tool_use_id") or ""),
            extract_text(block.get("content")),
            is_error=block.get("is_error") is True,
        )
        for block in get_dicts(body, "content")
        if block.get("type") == "tool_result"
    ]
    content = "" if facts else _user_text(line)
    return [TurnFact("user", shorten(content))] if content else facts


def _denials(line: dict[str, Any], body: dict[str, Any], tools: dict[str, str]) -> list[DenialFact]:
    if line.get("type") != "user" or get_text(line, "permissionDecision", "decision") != "reject":
        return []
    calls = [get_text(block, "tool_use_id") or "" for block in get_dicts(body, "content")]
    return [DenialFact(tools.get(call) or "?", call) for call in calls if call]


def _assistant_turns(body: dict[str, Any], tools: dict[str, str]) -> list[TurnFact]:
    facts: list[TurnFact] = []
    for block in get_dicts(body, "content"):
        if block.get("type") == "text":
            facts += [
                fact
                for fact in text_facts(get_text(block, "text") or "")
                if isinstance(fact, TurnFact)
            ]
        elif block.get("type") == "tool_use":
            call, name = get_text(block, "id"), get_text(block, "name")
            if call and name:
                tools[call] = name
            facts.append(tool_call(call, name, block.get("input")))
    return facts


def _user_text(line: dict[str, Any]) -> str:
    if line.get("type") != "user" or line.get("isMeta") is True or line.get("isSidechain") is True:
        return ""
    content = get_dict(line, "message").get("content")
    if isinstance(content, list):
        content = [block for block in content if get_dict(block).get("type") == "text"]
    text = extract_text(content)
    return "" if text.lstrip().startswith(_GENERATED_PREFIXES) else text
