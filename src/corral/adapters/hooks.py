"""What agent CLIs tell their hooks, and what these answer.

Claude Code, Codex, Gemini CLI and Qwen Code hand over the tool and its arguments in the same words
and take exit code 2 as a refusal whose reason is on standard error. Copilot CLI has words of its
own and wants its answer as JSON. Any other exit code lets the tool go on, so trouble of ours never
stops an agent.
"""

import os
import re
from collections.abc import Iterator
from typing import Any

import msgspec

PROVIDERS = ("claude", "codex", "copilot", "gemini", "qwen")
REFUSED = 2

BEFORE = ("pretooluse", "beforetool")
AFTER = ("posttooluse", "aftertool")

# Tools that change files, by the end of their names: those of MCP servers have a longer beginning.
_EDITS = frozenset(
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
_PATHS = ("file_path", "notebook_path", "path", "filePath", "absolute_path")
MAX_PATCH = 1 << 20
_APPLIES = re.compile(r"\bgit\b[^\n]*\b(?:apply|am)\b|(?:^|[\s;&|(])patch\b")
_WORDS = re.compile(r"[^\s;&|<>()'\"`$]+")
_DIFF_LINES = ("+++ ", "--- ", "rename from ", "rename to ", "copy to ")
_PATCH_LINES = ("*** Update File: ", "*** Add File: ", "*** Delete File: ", "*** Move to: ")


class Words(msgspec.Struct, rename=None):
    """What a hook is told; all of it comes from the agent, and none of it is trusted."""

    cwd: str = ""
    tool_name: str = ""
    tool_input: Any = None
    toolName: str = ""
    toolArgs: Any = None


def moment_of(event: str) -> str | None:
    """`before` or `after` a tool is used, for an event in any provider's spelling."""
    plain = event.replace("-", "").replace("_", "").lower()
    return "before" if plain in BEFORE else "after" if plain in AFTER else None


def edited_paths(told: bytes, cwd: str) -> list[str]:
    """The files that a tool is to change, or has changed; ValueError when that makes no sense."""
    try:
        words = msgspec.convert(_decoded(told), Words)
        given = words.tool_input if words.tool_input is not None else words.toolArgs
        if isinstance(given, str):  # Copilot CLI hands over text that holds JSON
            is_json = given.lstrip().startswith("{")
            given = _decoded(given) if is_json else {"input": given}
    except (msgspec.MsgspecError, RecursionError) as error:  # these are no ValueErrors
        raise ValueError(str(error)) from None
    if not isinstance(given, dict):
        return []
    tool = (words.tool_name or words.toolName).rpartition("__")[2].lower()
    base = os.path.join(words.cwd or cwd, *(_workdir(given)))
    found = [*_patched(given), *_applied(given, base), *(_named(given) if tool in _EDITS else ())]
    return [os.path.join(base, path) for path in dict.fromkeys(found)]


def _decoded(told: bytes | str) -> Any:
    """What JSON says; half a character in it must take no file past the hook."""
    try:
        return msgspec.json.decode(told)
    except (msgspec.DecodeError, UnicodeError):
        from corral.kernel.text import replace_invalid_utf8

        given = told.encode("utf-8", "replace") if isinstance(told, str) else told
        return msgspec.json.decode(replace_invalid_utf8(given))


def _workdir(given: dict[str, Any]) -> Iterator[str]:
    """Where a command is to be run, if it says so: what it patches is named from there."""
    if isinstance(folder := given.get("workdir"), str):
        yield folder


def _named(given: dict[str, Any]) -> Iterator[str]:
    if given.get("command") == "view":
        return
    for name in _PATHS:
        if isinstance(path := given.get(name), str) and path:
            yield path


def _patched(given: dict[str, Any]) -> Iterator[str]:
    """The files in a patch of the kind that Codex applies, also one inside of a shell command."""
    for value in given.values():
        text = "\n".join(map(str, value)) if isinstance(value, list) else value
        if isinstance(text, str) and "*** Begin Patch" in text:
            for line in text.split("\n"):
                for start in _PATCH_LINES:  # with spaces around, as Codex reads them
                    if (said := line.strip()).startswith(start):
                        yield said[len(start) :].strip()


def _applied(given: dict[str, Any], base: str) -> Iterator[str]:
    """Yield the files changed by a unified diff that a shell command applies (`patch`, `git apply`,
    `git am`). The diff stands in the command itself or in a file that the command names."""
    for value in given.values():
        text = " ".join(map(str, value)) if isinstance(value, list) else value
        if not isinstance(text, str) or not _APPLIES.search(text):
            continue
        yield from _changed_in(text)
        for word in _WORDS.findall(text):
            path = os.path.join(base, word)
            try:
                if os.path.isfile(path) and os.path.getsize(path) <= MAX_PATCH:
                    with open(path, encoding="utf-8", errors="replace") as file:
                        yield from _changed_in(file.read(MAX_PATCH))
            except (OSError, ValueError):
                continue


def _changed_in(diff: str) -> Iterator[str]:
    """Yield the paths of a unified diff, with and without their first folder (`a/`, `b/`, or the
    folder that -pN strips)."""
    for line in diff.split("\n"):
        for start in _DIFF_LINES:
            if line.startswith(start):
                path = line[len(start) :].partition("\t")[0].strip().strip('"')
                if path and path != "/dev/null":
                    yield path.partition("/")[2] if path.startswith(("a/", "b/")) else path
                    if not path.startswith(("a/", "b/")) and "/" in path:
                        yield path.partition("/")[2]


def refusal(provider: str, reason: str) -> tuple[int, str, str]:
    """How a provider is told no: exit code, standard output, standard error."""
    if provider == "copilot":
        answer = {"permissionDecision": "deny", "permissionDecisionReason": reason}
        return 0, msgspec.json.encode(answer).decode(), ""
    return REFUSED, "", reason
