"""The one pattern that a path has in a project: written in any way, resolved, and never outside."""

import os
from functools import lru_cache
from stat import S_IFDIR, S_ISDIR, S_ISLNK

from corral.kernel.errors import Invalid
from corral.kernel.path_patterns import WHOLE, is_wild, without_stars_at_end
from corral.kernel.text import clean_text

MAX_PATTERN = 500
MAX_WILD = 250  # two patterns with wildcards are compared character by character


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
    plain, parts = _divided(given)
    wild, has_stars = without_stars_at_end(parts)
    folder = has_stars or given.endswith("/")
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
    if lockable and len(pattern) > MAX_WILD and is_wild(pattern):
        raise Invalid(
            f"A pattern with wildcards has {MAX_WILD} characters at the most, not {len(pattern)}; "
            "lock the folder instead.",
            path=pattern[:MAX_WILD],
        )
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
