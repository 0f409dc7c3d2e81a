"""Denied tool calls: counts, a description, and the command that retries with approvals."""

from collections.abc import Iterable

import msgspec

TIMES = "\N{MULTIPLICATION SIGN}"


class Denial(msgspec.Struct, frozen=True):
    """How often a tool was denied in one attempt of a run."""

    attempt: int
    tool: str
    count: int


def count_denied(denials: list[Denial] | None) -> dict[str, int]:
    """Count the denials of each tool, most frequent first."""
    counts: dict[str, int] = {}
    for denial in denials or ():
        counts[denial.tool] = counts.get(denial.tool, 0) + denial.count
    return dict(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0])))


def describe_denied(denials: list[Denial] | None) -> str | None:
    """Describe how many calls of which tools were denied; None when none were."""
    counts = count_denied(denials)
    if not counts:
        return None
    tools = ", ".join(f"{tool} {TIMES}{n}" if n > 1 else tool for tool, n in counts.items())
    return f"{sum(counts.values())} denied ({tools})"


# Substrings of tool names, by the approval class that allows these tools.
_APPROVED_BY = {
    "edit": ("edit", "write", "create", "patch", "replace"),
    "run": ("bash", "shell", "exec", "command", "terminal"),
}


def list_required_approvals(tools: Iterable[str]) -> list[str]:
    """Return the approval classes that allow these tools."""
    classes = set()
    for tool in tools:
        matching = [
            name
            for name, parts in _APPROVED_BY.items()
            if any(part in tool.lower() for part in parts)
        ]
        classes.add(matching[0] if matching else "all")
    return ["all"] if "all" in classes else sorted(classes)


def format_approval_options(tools: Iterable[str]) -> str:
    """Format the command-line options that approve these tools."""
    return " ".join(f"--yes {name}" for name in list_required_approvals(tools))


def format_retry_command(run_id: str, tools: Iterable[str]) -> str:
    """Format the command that resumes a run with the approvals for these tools."""
    approvals = format_approval_options(tools)
    return f'corral resume {run_id} {approvals} "It is approved now; try again."'
