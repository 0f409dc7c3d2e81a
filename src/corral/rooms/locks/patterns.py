"""Which paths a lock covers, and whether two locks can meet in one file.

A pattern is a path relative to its project, its parts divided by `/`. With a slash at its end it is
a folder and covers everything below it; so do `src/*` and `src/**`, which are the same. `.` is the
whole project. `*` stands for any characters of one part, `?` for one, and a part `**` for any
number of parts. Brackets are plain characters: they stand in the names of real files
(`app/[id]/page.tsx`) more often than anybody means a choice.

Whether two patterns meet is decided by a table of their parts and, where both have wildcards, of
their characters: no pattern, however wild, makes it take longer than the product of the lengths.
"""

import os
from functools import lru_cache
from stat import S_IFDIR, S_ISDIR, S_ISLNK

from corral.kernel.errors import Invalid
from corral.kernel.text import clean_text

MAX_PATTERN = 500
WHOLE = "."


def normalise(given: str, root: str, *, folded: bool = False, lockable: bool = True) -> str:
    """The one pattern that a path has in a project, however it was written.

    `root` is the project's real directory. What leads out of it, by `..` or by a symlink, is
    refused. `folded` is for file systems that take `A` and `a` for the same name. What is only
    looked for may have a name that is not `lockable`: the folder that it is in may be locked.
    """
    clean_text(given, "The path", most=4_096)
    if lockable and not given.isprintable():
        raise Invalid(
            f"The path {given!r} holds a line break or another character that cannot be shown; "
            "leave it out.",
            path=given,
        )
    plain, wild = _divided(given)
    folder = given.endswith("/")
    while wild and wild[-1] in ("*", "**"):
        folder, wild = True, wild[:-1]
    inside = root if root.endswith("/") else root + "/"
    real, is_folder = _resolved(inside, plain)
    if real != root and not real.startswith(inside):
        raise Invalid(
            f"{given} is outside of the project {root}; lock paths inside of it.",
            path=given,
            root=root,
        )
    pattern = "/".join([part for part in (real[len(inside) :], *wild) if part])
    if not pattern:
        return WHOLE
    if folder or (is_folder and not wild):
        pattern += "/"
    if lockable and len(pattern) > MAX_PATTERN:
        raise Invalid(
            f"The path has {len(pattern):,} characters and {MAX_PATTERN} are allowed; lock the "
            "folder that it is in.",
            path=pattern[:MAX_PATTERN],
        )
    return fold(pattern) if folded else composed(pattern)


def _resolved(inside: str, plain: str) -> tuple[str, bool]:
    """The real path of what is below a folder that is real itself, and whether it is a folder.

    The same as `realpath`, which would look at everything above it once more.
    """
    parts = [part for part in plain.split("/") if part not in ("", ".")]
    if not plain.startswith("/") and ".." not in parts:
        path, mode = inside.rstrip("/"), S_IFDIR
        for number, part in enumerate(parts):
            try:
                mode = os.lstat(f"{path}/{part}").st_mode
            except (OSError, ValueError):  # not there yet, nor what is below it
                return "/".join([path, *parts[number:]]), False
            if S_ISLNK(mode):
                break
            path = f"{path}/{part}"
        else:
            return path or "/", S_ISDIR(mode)
    real = os.path.realpath(os.path.join(inside, plain))
    return real, os.path.isdir(real)


@lru_cache(256)
def ignores_case(root: str) -> bool:
    """Whether the file system under a directory takes `A` and `a` for the same name."""
    try:
        return os.path.samefile(root, root.swapcase()) and root != root.swapcase()
    except OSError:
        return False


def fold(pattern: str) -> str:
    """The pattern as a file system knows it that does not tell small letters from large ones."""
    return composed(composed(pattern).casefold())


def composed(pattern: str) -> str:
    """One spelling for letters with marks, which some file systems take apart."""
    if pattern.isascii():
        return pattern
    from unicodedata import normalize

    return normalize("NFC", pattern)


@lru_cache(1_024)  # every lock and every hook asks, mostly for the same few
def _divided(given: str) -> tuple[str, tuple[str, ...]]:
    """The plain beginning of a path, and its parts from the first one with a wildcard on."""
    parts = given.split("/")
    first = next((n for n, part in enumerate(parts) if is_wild(part)), len(parts))
    wild: list[str] = []
    for part in parts[first:]:
        if part == "..":
            raise Invalid(
                f"{given} goes up behind a wildcard, and nobody can tell where that leads; "
                "write the path without it.",
                path=given,
            )
        if part in ("", "."):
            continue
        while "***" in part or ("**" in part and part != "**"):
            part = part.replace("**", "*")
        if part != "**" or wild[-1:] != ["**"]:
            wild.append(part)
    return "/".join(parts[:first]) or ("/" if first and given.startswith("/") else ""), tuple(wild)


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
