"""Which tools an agent may use, by what was granted and denied.

A rule names a tool (`Read`), or has wildcards (`mcp__*`), or looks into what a tool is called with
(`Bash(git *)`). A denial beats whatever allows; once anything is allowed, only that is.
"""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

# Tools whose argument is a command line: there, one call can do several things.
_SHELLS = frozenset({"Bash", "bash", "shell", "exec", "run_shell_command", "execute_command"})
_BETWEEN = re.compile(r"\n|;|&&?|\|\|?|`|\$\(|<\(|>\(|[()]")


def allows(tool: str, allowed: Iterable[str], denied: Iterable[str]) -> bool:
    """Whether a call is allowed; a command line only when each of its commands is."""
    allowed, denied = list(allowed), list(denied)
    calls = _calls(tool)
    if any(_fits(call, rule) for rule in denied for call in [tool, *calls]):
        return False
    return not allowed or all(any(_fits(call, rule) for rule in allowed) for call in calls)


def _calls(tool: str) -> list[str]:
    """The calls that a call is made of: `Bash(cd x && rm y)` is two."""
    name, _, argument = tool.partition("(")
    if name not in _SHELLS or not argument.endswith(")"):
        return [tool]
    commands = [part.strip() for part in _BETWEEN.split(argument[:-1])]
    return [f"{name}({command})" for command in commands if command] or [tool]


def _fits(call: str, rule: str) -> bool:
    if "(" in rule:
        return fnmatchcase(call, rule)
    return fnmatchcase(call.partition("(")[0], rule)
