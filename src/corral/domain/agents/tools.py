"""Permission rules for tools.

A rule names a tool (`Read`), has wildcards (`mcp__*`), or matches the argument of a call
(`Bash(git *)`). A denial overrides every permission. As soon as one tool is allowed, all others are
denied.
"""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

# Tools whose argument is a command line, which may contain several commands.
_SHELLS = frozenset({"Bash", "bash", "shell", "exec", "run_shell_command", "execute_command"})
_SEPARATOR = re.compile(r"\n|;|&&?|\|\|?|`|\$\(|<\(|>\(|[()]")


def is_allowed(tool: str, allowed: Iterable[str], denied: Iterable[str]) -> bool:
    """Whether a call is allowed; a command line only if each of its commands is."""
    allowed, denied = list(allowed), list(denied)
    calls = _split_calls(tool)
    if any(_matches(call, rule) for rule in denied for call in [tool, *calls]):
        return False
    return not allowed or all(any(_matches(call, rule) for rule in allowed) for call in calls)


def _split_calls(tool: str) -> list[str]:
    """Split a call into its commands: `Bash(cd x && rm y)` is two."""
    name, _, argument = tool.partition("(")
    if name not in _SHELLS or not argument.endswith(")"):
        return [tool]
    commands = [part.strip() for part in _SEPARATOR.split(argument[:-1])]
    return [f"{name}({command})" for command in commands if command] or [tool]


def _matches(call: str, rule: str) -> bool:
    if "(" in rule:
        return fnmatchcase(call, rule)
    return fnmatchcase(call.partition("(")[0], rule)
