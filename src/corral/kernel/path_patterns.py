"""Patterns of paths: which files they cover, and whether two can meet in one file.

A pattern is a path relative to its project, its parts divided by `/`. With a slash at its end it is
a folder and covers everything below it; so do `src/*` and `src/**`, which are the same. `.` is the
whole project. `*` stands for any characters of one part, `?` for one, and a part `**` for any
number of parts. Brackets are plain characters: they stand in the names of real files
(`app/[id]/page.tsx`) more often than anybody means a choice.

Whether two patterns meet is decided by a table of their parts and, where both have wildcards, of
their characters: no pattern, however wild, makes it take longer than the product of the lengths.
"""

from collections.abc import Sequence
from functools import lru_cache

WHOLE = "."


def covering(path: str) -> str:
    """The pattern of a path together with all that is below it, should it be a folder."""
    parts, _ = without_stars_at_end(path.rstrip("/").split("/"))
    pattern = "/".join(parts)
    if pattern in ("", WHOLE):
        return WHOLE
    return pattern if is_wild(parts[-1]) else f"{pattern}/"


def without_stars_at_end(parts: Sequence[str]) -> tuple[Sequence[str], bool]:
    """Parts without the `*` and `**` at their end, and whether there were any: such a pattern is
    a folder."""
    end = len(parts)
    while end and parts[end - 1] in ("*", "**"):
        end -= 1
    return parts[:end], end < len(parts)


def parts_of(pattern: str) -> list[str]:
    if pattern == WHOLE:
        return ["**"]
    parts = pattern.split("/")
    return [*parts[:-1], "**"] if not parts[-1] else parts


@lru_cache(1_024)
def head_of(pattern: str) -> str:
    """The parts before the first wildcard, each with a slash behind it.

    Two patterns can meet only where the head of one begins with the head of the other, so locks are
    found by it.
    """
    head = ""
    for part in parts_of(pattern):
        if is_wild(part):
            break
        head += part + "/"
    return head


def heads_above(head: str) -> list[str]:
    """The head itself and those of the folders above it, up to that of the whole project."""
    ends = [number + 1 for number, character in enumerate(head) if character == "/"]
    return ["", *(head[:end] for end in ends)]


def is_wild(part: str) -> bool:
    return "*" in part or "?" in part


def meet(one: str, other: str) -> bool:
    """Whether any path can be covered by both patterns.

    Of two plain paths one may be below the other: what is a file today can be a folder tomorrow.
    """
    if one == other:
        return True
    if not is_wild(one) and not is_wild(other) and WHOLE not in (one, other):
        above, below = sorted((f"{one.rstrip('/')}/", f"{other.rstrip('/')}/"), key=len)
        return below.startswith(above)
    b = parts_of(other)
    # Behind each part of the one: the parts of the other that may come next.
    open_ = {0}
    for part in parts_of(one):
        nexts: set[int] = set()
        for place in range(len(b) + 1):
            if place not in open_:
                continue
            if part == "**" or b[place : place + 1] == ["**"]:
                nexts.add(place)  # one of them stands for nothing more, or for this part too
                open_.add(place + 1)
            elif place < len(b) and _parts_meet(part, b[place]):
                nexts.add(place + 1)
        if not nexts:
            return False
        open_ = nexts
    return any(all(part == "**" for part in b[place:]) for place in open_ if place <= len(b))


def _parts_meet(one: str, other: str) -> bool:
    if one == other:
        return True
    wild = [part for part in (one, other) if is_wild(part)]
    if not wild:
        return False
    if len(wild) == 1:
        # Mostly a file's name and a pattern such as *.py: what stands around the star decides.
        name = one if wild[0] is other else other
        begin, star, end = wild[0].partition("*")
        if "?" not in wild[0] and "*" not in end:
            fits = len(name) >= len(begin) + len(end)
            return bool(star) and fits and name.startswith(begin) and name.endswith(end)
    return _characters_meet(one, other)


@lru_cache(16_384)  # a line that waits compares the same wild patterns at every release
def _characters_meet(one: str, other: str) -> bool:
    """The same table for the characters of two parts; a star stands for any number of them."""
    open_ = {0}
    for character in one:
        nexts: set[int] = set()
        for place in range(len(other) + 1):
            if place not in open_:
                continue
            if character == "*":
                nexts.add(place)
                if place < len(other):
                    open_.add(place + 1)
            elif place < len(other):
                found = other[place]
                if found == "*":
                    nexts.add(place)
                    open_.add(place + 1)
                elif found == character or "?" in (found, character):
                    nexts.add(place + 1)
        if not nexts:
            return False
        open_ = nexts
    return any(not other[place:].strip("*") for place in open_)
