"""The hook settings of agent CLIs: which file, which events, and the entries of Corral."""

import shlex
from typing import Any, NamedTuple

import msgspec

from corral.adapters.providers.mcp_config import get_corral_command

HOOK_SECONDS = 10


class HookFile(NamedTuple):
    """The hook settings file of an agent CLI."""

    file: str
    before: str
    after: str
    tools: str | None
    note: str | None = None


# The machine-local settings file of the project, where the CLI has one.
HOOK_FILES = {
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
        "Codex runs the hook after you trust it: enter /hooks in codex.",
    ),
    "copilot": HookFile(".github/hooks/corral.json", "preToolUse", "postToolUse", None),
    "gemini": HookFile(
        ".gemini/settings.json",
        "BeforeTool",
        "AfterTool",
        "write_file|replace|edit|run_shell_command|mcp_.*",
    ),
}


def build_hooks(name: str) -> dict[str, dict[str, Any]]:
    """Return the hooks of Corral in the format of a CLI, by event name."""
    hook_file = HOOK_FILES[name]
    return {
        event: _build_entry(
            name, hook_file, f"{shlex.join(get_corral_command())} hook {name} {when}-tool-use"
        )
        for event, when in ((hook_file.before, "pre"), (hook_file.after, "post"))
    }


def _build_entry(name: str, hook_file: HookFile, command: str) -> dict[str, Any]:
    if name == "copilot":
        return {"type": "command", "bash": command, "timeoutSec": HOOK_SECONDS}
    # In milliseconds for Gemini CLI, in seconds for the others.
    timeout = HOOK_SECONDS * 1_000 if name == "gemini" else HOOK_SECONDS
    hook = {"type": "command", "command": command, "timeout": timeout}
    return {"matcher": hook_file.tools, "hooks": [hook]}


def render_json(name: str) -> str:
    """Return the hooks as JSON settings for the command line of a CLI."""
    hooks = {event: [entry] for event, entry in build_hooks(name).items()}
    return msgspec.json.encode({"hooks": hooks}).decode()


def render_toml(name: str) -> list[str]:
    """Return the hooks as `-c` settings of codex."""
    return [
        f"hooks.{event}=[{{matcher={_quote(entry['matcher'])}, "
        f"hooks=[{{{', '.join(f'{key}={_quote(value)}' for key, value in hook.items())}}}]}}]"
        for event, entry in build_hooks(name).items()
        for hook in entry["hooks"]
    ]


def _quote(value: str | int) -> str:
    return msgspec.json.encode(value).decode()
