"""The payloads that agent CLIs pass to their hooks, and the replies that they expect.

Claude Code, Codex, Gemini CLI and Qwen Code pass the tool and its arguments in the same fields
and take exit code 2 as a denial with the reason on standard error. Copilot CLI has its own
fields and expects JSON. Any other exit code allows the tool, so a failure in Corral never blocks
an agent.
"""

import os
import re
from collections.abc import Iterator
from typing import Any

import msgspec

PROVIDERS = ("claude", "codex", "copilot", "gemini", "qwen")
DENIED_EXIT_CODE = 2

BEFORE_EVENTS = ("pretooluse", "beforetool")
AFTER_EVENTS = ("posttooluse", "aftertool")

# Tools that change files, without the prefix that tools of MCP servers have.
_EDIT_TOOLS = frozenset(
    {
        "apply_patch",
        "create",
        "create_file",
        "edit",
        "edit_file",
        "insert",
        "multiedit",
        "notebookedit",
        "replace",
        "str_replace",
        "str_replace_based_edit_tool",
        "str_replace_editor",
        "write",
        "write_file",
    }
)
_PATH_FIELDS = ("file_path", "notebook_path", "path", "filePath", "absolute_path")
MAX_PATCH_BYTES = 1 << 20
_APPLY_COMMAND = re.compile(r"\bgit\b[^\n]*\b(?:apply|am)\b|(?:^|[\s;&|(])patch\b")
_WORDS = re.compile(r"[^\s;&|<>()'\"`$]+")
_DIFF_PREFIXES = ("+++ ", "--- ", "rename from ", "rename to ", "copy to ")
_PATCH_PREFIXES = ("*** Update File: ", "*** Add File: ", "*** Delete File: ", "*** Move to: ")


class HookPayload(msgspec.Struct, rename=None):
    """The payload of a hook. It comes from the agent and is not trusted."""

    cwd: str = ""
    tool_name: str = ""
    tool_input: Any = None
    toolName: str = ""
    toolArgs: Any = None


def classify_event(event: str) -> str | None:
    """Return `before` or `after` for the event of a tool use, in the spelling of any CLI.

    None: another event.
    """
    plain = event.replace("-", "").replace("_", "").lower()
    return "before" if plain in BEFORE_EVENTS else "after" if plain in AFTER_EVENTS else None


def list_edited_paths(data: bytes, cwd: str) -> list[str]:
    """List the files that a tool is about to change or has changed.

    Raises ValueError for an invalid payload.
    """
    try:
        payload = msgspec.convert(_decode(data), HookPayload)
        arguments = payload.tool_input if payload.tool_input is not None else payload.toolArgs
        if isinstance(arguments, str):  # Copilot CLI passes JSON as text
            is_json = arguments.lstrip().startswith("{")
            arguments = _decode(arguments) if is_json else {"input": arguments}
    except (msgspec.MsgspecError, RecursionError) as error:  # not subclasses of ValueError
        raise ValueError(str(error)) from None
    if not isinstance(arguments, dict):
        return []
    tool = (payload.tool_name or payload.toolName).rpartition("__")[2].lower()
    base = os.path.join(payload.cwd or cwd, *(_iter_workdir(arguments)))
    paths = [
        *_find_patched_paths(arguments),
        *_find_applied_paths(arguments, base),
        *(_find_named_paths(arguments) if tool in _EDIT_TOOLS else ()),
    ]
    return [os.path.join(base, path) for path in dict.fromkeys(paths)]


def _decode(data: bytes | str) -> Any:
    """Decode JSON; a lone surrogate is replaced, so that it cannot hide a file from the hook."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError):
        from corral.kernel.validation import replace_invalid_utf8

        raw = data.encode("utf-8", "replace") if isinstance(data, str) else data
        return msgspec.json.decode(replace_invalid_utf8(raw))


def _iter_workdir(arguments: dict[str, Any]) -> Iterator[str]:
    """Yield the working directory of a command, if given: paths in its patch are relative to it."""
    if isinstance(folder := arguments.get("workdir"), str):
        yield folder


def _find_named_paths(arguments: dict[str, Any]) -> Iterator[str]:
    if arguments.get("command") == "view":
        return
    for name in _PATH_FIELDS:
        if isinstance(path := arguments.get(name), str) and path:
            yield path


def _find_patched_paths(arguments: dict[str, Any]) -> Iterator[str]:
    """Yield the files of a patch in the format of Codex, also inside a shell command."""
    for value in arguments.values():
        text = "\n".join(map(str, value)) if isinstance(value, list) else value
        if isinstance(text, str) and "*** Begin Patch" in text:
            for line in text.split("\n"):
                for start in _PATCH_PREFIXES:  # Codex ignores surrounding spaces
                    if (stripped := line.strip()).startswith(start):
                        yield stripped[len(start) :].strip()


def _find_applied_paths(arguments: dict[str, Any], base: str) -> Iterator[str]:
    """Yield the files changed by a unified diff that a shell command applies.

    The commands are `patch`, `git apply` and `git am`; the diff is in the command itself or in a
    file that it names.
    """
    for value in arguments.values():
        text = " ".join(map(str, value)) if isinstance(value, list) else value
        if not isinstance(text, str) or not _APPLY_COMMAND.search(text):
            continue
        yield from _parse_diff_paths(text)
        for word in _WORDS.findall(text):
            path = os.path.join(base, word)
            try:
                if os.path.isfile(path) and os.path.getsize(path) <= MAX_PATCH_BYTES:
                    with open(path, encoding="utf-8", errors="replace") as file:
                        yield from _parse_diff_paths(file.read(MAX_PATCH_BYTES))
            except (OSError, ValueError):
                continue


def _parse_diff_paths(diff: str) -> Iterator[str]:
    """Yield the paths of a unified diff, with and without their first folder.

    That folder is `a/`, `b/`, or the one that -pN strips.
    """
    for line in diff.split("\n"):
        for start in _DIFF_PREFIXES:
            if line.startswith(start):
                path = line[len(start) :].partition("\t")[0].strip().strip('"')
                if path and path != "/dev/null":
                    yield path.partition("/")[2] if path.startswith(("a/", "b/")) else path
                    if not path.startswith(("a/", "b/")) and "/" in path:
                        yield path.partition("/")[2]


def render_denial(provider: str, reason: str) -> tuple[int, str, str]:
    """Return the reply that denies a tool: exit code, standard output, standard error."""
    if provider == "copilot":
        reply = {"permissionDecision": "deny", "permissionDecisionReason": reason}
        return 0, msgspec.json.encode(reply).decode(), ""
    return DENIED_EXIT_CODE, "", reason
