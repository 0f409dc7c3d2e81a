"""The demo's judge, which ranks shorter diffs higher."""

import json
import re
import sys

_BLOCK = re.compile(
    r"^\[corral:(\w+) begin\] diff of solution (\w+)\n(.*?)\n\[corral:\1 end\]$",
    re.MULTILINE | re.DOTALL,
)
"""A diff in a judge's prompt. The boundary after `corral:` differs for each prompt."""


def rank(prompt: str) -> dict[str, object]:
    """Return a verdict on the diffs in a judge's prompt; diffs of the same length are tied."""
    blocks = _BLOCK.findall(prompt)
    lengths = {label: len(diff.splitlines()) for _, label, diff in blocks}
    groups: dict[int, list[str]] = {}
    for label, length in sorted(lengths.items()):
        groups.setdefault(length, []).append(label)
    ranking = [groups[length] for length in sorted(groups)]
    return {"ranking": ranking, "reason": "shortest first"}


if __name__ == "__main__":
    print(json.dumps(rank(sys.stdin.read())))
