"""The demo's judge: of the solutions that it is shown, it likes the shortest best."""

import json
import re
import sys

_BLOCK = re.compile(
    r"^\[corral:(\w+) begin\] diff of solution (\w+)\n(.*?)\n\[corral:\1 end\]$",
    re.MULTILINE | re.DOTALL,
)
"""A diff in the prompt of a judge; the boundary differs from prompt to prompt."""


def rank(prompt: str) -> dict[str, object]:
    """A ranking of the solutions in a prompt; those of the same length are equal."""
    found = _BLOCK.findall(prompt)
    lengths = {label: len(diff.splitlines()) for _, label, diff in found}
    groups: dict[int, list[str]] = {}
    for label, length in sorted(lengths.items()):
        groups.setdefault(length, []).append(label)
    ranking = [groups[length] for length in sorted(groups)]
    return {"ranking": ranking, "reason": "the shortest first"}


if __name__ == "__main__":
    print(json.dumps(rank(sys.stdin.read())))
