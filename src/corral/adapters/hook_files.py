"""Where agent CLIs keep their hooks, in which words, and what Corral's own are there."""

import shlex
from typing import Any, NamedTuple

import msgspec

from corral.adapters.providers.tools import program

SECONDS = 10


class HookFile(NamedTuple):
    """Where an agent CLI keeps its hooks, and in which words."""

    file: str
    before: str
    after: str
    tools: str | None
    note: str | None = None


# Each in the file of the project that is meant for this machine, where there is one.
FILES = {
    "claude": HookFile(
        ".claude/settings.local.json",
        "PreToolUse",
        "PostToolUse",
        "Edit|Write|MultiEdit|NotebookEdit|Bash|mcp__.*",
    ),
    "codex": HookFile(
        ".codex/hooks.json",
        "PreToolUse",
        "PostToolUse",
        "apply_patch|Edit|Write|Bash|mcp__.*",
        "Codex runs it once you trust it: say /hooks in codex.",
    ),
    "copilot": HookFile(".github/hooks/corral.json", "preToolUse", "postToolUse", None),
    "gemini": HookFile(
        ".gemini/settings.json",
        "BeforeTool",
        "AfterTool",
        "write_file|replace|edit|run_shell_command|mcp_.*",
    ),
}


def hooks_of(name: str) -> dict[str, dict[str, Any]]:
    """Corral's hooks in an agent CLI's own words, by the event at which they are called."""
    known = FILES[name]
    return {
        event: _entry(name, known, f"{shlex.join(program())} hook {name} {when}-tool-use")
        for event, when in ((known.before, "pre"), (known.after, "post"))
    }


def _entry(name: str, known: HookFile, command: str) -> dict[str, Any]:
    if name == "copilot":
        return {"type": "command", "bash": command, "timeoutSec": SECONDS}
    # Gemini CLI counts in milliseconds, the others in seconds.
    timeout = SECONDS * 1_000 if name == "gemini" else SECONDS
    hook = {"type": "command", "command": command, "timeout": timeout}
    return {"matcher": known.tools, "hooks": [hook]}


def as_json(name: str) -> str:
    """The same as settings that are given when the CLI is started."""
    hooks = {event: [entry] for event, entry in hooks_of(name).items()}
    return msgspec.json.encode({"hooks": hooks}).decode()


def as_toml(name: str) -> list[str]:
    """The same as codex reads it, one setting each."""
    return [
        f"hooks.{event}=[{{matcher={_quoted(entry['matcher'])}, "
        f"hooks=[{{{', '.join(f'{key}={_quoted(value)}' for key, value in hook.items())}}}]}}]"
        for event, entry in hooks_of(name).items()
        for hook in entry["hooks"]
    ]


def _quoted(value: str | int) -> str:
    return msgspec.json.encode(value).decode()
