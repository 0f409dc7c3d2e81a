"""Path patterns: which files a pattern covers, and whether two patterns can overlap.

A pattern is a path relative to its project, with `/` between its parts. A trailing slash makes it a
folder and covers everything below it; `src/*` and `src/**` mean the same. `.` is the whole project.
`*` matches any characters within one part, `?` exactly one, and a part `**` any number of parts.
Brackets are literal, because they occur in real file names (`app/[id]/page.tsx`).

The overlap test uses dynamic programming over parts and, where both parts have wildcards, over
characters. Its cost is at most the product of the lengths, so no pattern makes it exponential.
"""

from collections.abc import Sequence
from functools import lru_cache

WHOLE_PROJECT = "."


def subtree_pattern(path: str) -> str:
    """Return the pattern of a path and everything below it, in case it is a folder."""
    parts, _ = strip_trailing_wildcards(path.rstrip("/").split("/"))
    pattern = "/".join(parts)
    if pattern in ("", WHOLE_PROJECT):
        return WHOLE_PROJECT
    return pattern if has_wildcard(parts[-1]) else f"{pattern}/"


def strip_trailing_wildcards(parts: Sequence[str]) -> tuple[Sequence[str], bool]:
    """Remove `*` and `**` at the end, and return whether there were any (then it is a folder)."""
    end = len(parts)
    while end and parts[end - 1] in ("*", "**"):
        end -= 1
    return parts[:end], end < len(parts)


def split_pattern(pattern: str) -> list[str]:
    """Split a pattern into its parts; a folder ends with `**`."""
    if pattern == WHOLE_PROJECT:
        return ["**"]
    parts = pattern.split("/")
    return [*parts[:-1], "**"] if not parts[-1] else parts


@lru_cache(1_024)
def literal_prefix(pattern: str) -> str:
    """Return the parts before the first wildcard, each followed by a slash.

    Two patterns can overlap only if one prefix starts with the other, so locks are indexed by it.
    """
    prefix = ""
    for part in split_pattern(pattern):
        if has_wildcard(part):
            break
        prefix += part + "/"
    return prefix


def ancestor_prefixes(prefix: str) -> list[str]:
    """Return the prefix and the prefixes of all its parent folders, up to the whole project."""
    ends = [index + 1 for index, character in enumerate(prefix) if character == "/"]
    return ["", *(prefix[:end] for end in ends)]


def has_wildcard(part: str) -> bool:
    return "*" in part or "?" in part


def patterns_overlap(one: str, other: str) -> bool:
    """Whether any path can match both patterns.

    Two literal paths overlap if one is below the other: today's file may become a folder.
    """
    if one == other:
        return True
    if not has_wildcard(one) and not has_wildcard(other) and WHOLE_PROJECT not in (one, other):
        above, below = sorted((f"{one.rstrip('/')}/", f"{other.rstrip('/')}/"), key=len)
        return below.startswith(above)
    others = split_pattern(other)
    # `reachable` has the indexes in `others` at which matching can continue after the parts so far.
    reachable = {0}
    for part in split_pattern(one):
        following: set[int] = set()
        for index in range(len(others) + 1):
            if index not in reachable:
                continue
            if part == "**" or others[index : index + 1] == ["**"]:
                # `**` matches this part as well, or ends here.
                following.add(index)
                reachable.add(index + 1)
            elif index < len(others) and _parts_overlap(part, others[index]):
                following.add(index + 1)
        if not following:
            return False
        reachable = following
    return any(
        all(part == "**" for part in others[index:]) for index in reachable if index <= len(others)
    )


def _parts_overlap(one: str, other: str) -> bool:
    if one == other:
        return True
    wild = [part for part in (one, other) if has_wildcard(part)]
    if not wild:
        return False
    if len(wild) == 1:
        # Fast path for a file name against a pattern with one star, such as *.py.
        name = one if wild[0] is other else other
        prefix, star, suffix = wild[0].partition("*")
        if "?" not in wild[0] and "*" not in suffix:
            fits = len(name) >= len(prefix) + len(suffix)
            return bool(star) and fits and name.startswith(prefix) and name.endswith(suffix)
    return _characters_overlap(one, other)


@lru_cache(16_384)  # the lock queue compares the same wildcard patterns at every release
def _characters_overlap(one: str, other: str) -> bool:
    """Whether two parts with wildcards can match the same name; the algorithm is as above."""
    reachable = {0}
    for character in one:
        following: set[int] = set()
        for index in range(len(other) + 1):
            if index not in reachable:
                continue
            if character == "*":
                following.add(index)
                if index < len(other):
                    reachable.add(index + 1)
            elif index < len(other):
                candidate = other[index]
                if candidate == "*":
                    following.add(index)
                    reachable.add(index + 1)
                elif candidate == character or "?" in (candidate, character):
                    following.add(index + 1)
        if not following:
            return False
        reachable = following
    return any(not other[index:].strip("*") for index in reachable)
