"""The demo's judge: of the solutions that it is shown, it likes the shortest best."""

import json
import re
import sys


def rank(prompt: str) -> dict[str, object]:
    """A ranking of the solutions in a prompt; those of the same length are equal."""
    found = re.findall(r"^Solution (\w+)\n<<<(\w+)\n(.*?)\n\2>>>", prompt, re.MULTILINE | re.DOTALL)
    lengths = {label: len(diff.splitlines()) for label, _, diff in found}
    groups: dict[int, list[str]] = {}
    for label, length in sorted(lengths.items()):
        groups.setdefault(length, []).append(label)
    ranking = [groups[length] for length in sorted(groups)]
    return {"ranking": ranking, "reason": "the shortest first"}


if __name__ == "__main__":
    print(json.dumps(rank(sys.stdin.read())))
