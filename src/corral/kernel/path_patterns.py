"""Path patterns: which files a pattern covers, and whether two patterns can overlap.

A pattern is a path relative to its project, with `/` between its parts. A trailing slash makes it a
directory and covers everything below it; `src/*` and `src/**` mean the same. `.` is the whole
project. `*` matches any characters within one part, `?` exactly one, and a part `**` any number of
parts. Brackets are literal, because they occur in real file names (`app/[id]/page.tsx`).

The overlap test uses dynamic programming over parts and, where both parts have wildcards, over
characters. Its cost is at most the product of the lengths, so no pattern makes it exponential.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache

WHOLE_PROJECT = "."


def make_subtree_pattern(path: str) -> str:
    """Return the pattern of a path and everything below it, in case it is a directory."""
    parts, _ = strip_trailing_wildcards(path.rstrip("/").split("/"))
    pattern = "/".join(parts)
    if pattern in ("", WHOLE_PROJECT):
        return WHOLE_PROJECT
    return pattern if has_wildcard(parts[-1]) else f"{pattern}/"


def strip_trailing_wildcards(parts: Sequence[str]) -> tuple[Sequence[str], bool]:
    """Remove `*` and `**` at the end; returns the rest and whether there were any (a directory)."""
    end = len(parts)
    while end and parts[end - 1] in ("*", "**"):
        end -= 1
    return parts[:end], end < len(parts)


def split_pattern(pattern: str) -> list[str]:
    """Split a pattern into its parts; a directory ends with `**`."""
    if pattern == WHOLE_PROJECT:
        return ["**"]
    parts = pattern.split("/")
    return [*parts[:-1], "**"] if not parts[-1] else parts


@lru_cache(1_024)
def get_literal_prefix(pattern: str) -> str:
    """Return the parts before the first wildcard, each followed by a slash.

    Two patterns can overlap only if one prefix starts with the other, so locks are indexed by it.
    """
    prefix = ""
    for part in split_pattern(pattern):
        if has_wildcard(part):
            break
        prefix += part + "/"
    return prefix


def list_ancestor_prefixes(prefix: str) -> list[str]:
    """Return the prefix and the prefixes of all its parent directories, up to the whole project."""
    ends = [index + 1 for index, character in enumerate(prefix) if character == "/"]
    return ["", *(prefix[:end] for end in ends)]


def has_wildcard(part: str) -> bool:
    return "*" in part or "?" in part


def can_overlap(one: str, other: str) -> bool:
    """Whether any path can match both patterns.

    Two literal paths overlap if one is below the other: today's file may become a directory. A
    literal path and a pattern with wildcards are compared as they stand: the path does not cover
    what is below it.
    """
    if one == other:
        return True
    if not has_wildcard(one) and not has_wildcard(other) and WHOLE_PROJECT not in (one, other):
        above, below = sorted((f"{one.rstrip('/')}/", f"{other.rstrip('/')}/"), key=len)
        return below.startswith(above)
    return _can_sequences_overlap(
        split_pattern(one), split_pattern(other), "**", _can_parts_overlap
    )


def _can_sequences_overlap(
    one: Sequence[str],
    other: Sequence[str],
    any_number: str,
    items_overlap: Callable[[str, str], bool],
) -> bool:
    """Whether two sequences can match the same items.

    The items are the parts of a pattern or the characters of a part. `any_number` is the item that
    matches any number of items; `items_overlap` compares two others.
    """
    # The indexes in `other` at which matching can continue after the items of `one` so far.
    reachable = {0}
    for item in one:
        following: set[int] = set()
        for index in range(len(other) + 1):
            if index not in reachable:
                continue
            candidate = other[index] if index < len(other) else None
            if any_number in (item, candidate):
                # The wildcard matches the item of the other sequence as well, or ends here.
                following.add(index)
                reachable.add(index + 1)
            elif candidate is not None and items_overlap(item, candidate):
                following.add(index + 1)
        if not following:
            return False
        reachable = following
    return any(all(item == any_number for item in other[index:]) for index in reachable)


def _can_parts_overlap(one: str, other: str) -> bool:
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
    return _can_characters_overlap(one, other)


@lru_cache(16_384)  # the lock queue compares the same wildcard patterns at every release
def _can_characters_overlap(one: str, other: str) -> bool:
    """Whether two parts with wildcards can match the same name."""
    return _can_sequences_overlap(one, other, "*", _can_characters_match)


def _can_characters_match(one: str, other: str) -> bool:
    return one == other or "?" in (one, other)
