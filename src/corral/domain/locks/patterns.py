"""Normalize paths to patterns: one spelling for each path, always inside the project."""

import os
from functools import lru_cache
from stat import S_IFDIR, S_ISDIR, S_ISLNK

from corral.kernel.errors import Invalid
from corral.kernel.path_patterns import WHOLE_PROJECT, has_wildcard, strip_trailing_wildcards
from corral.kernel.validation import check_text

MAX_PATTERN = 500
MAX_WILDCARD_PATTERN = 250  # comparing two such patterns costs the product of their lengths


def normalize_path(path: str, root: str, *, folded: bool = False, lockable: bool = True) -> str:
    """Return the canonical pattern of a path in a project.

    `root` is the project's real directory. Raises Invalid when `..` or a symlink leads out of it.
    `folded`: the file system is case-insensitive. `lockable=False` accepts names that cannot be
    locked themselves, for lookups: their directory may be locked.
    """
    check_text(path, "The path", max_bytes=4_096)
    if lockable and not path.isprintable():
        raise Invalid(
            f"Invalid path {path!r}: line breaks and other control characters are not allowed.",
            path=path,
        )
    plain, parts = _split_wildcards(path)
    wild, has_stars = strip_trailing_wildcards(parts)
    names_directory = has_stars or path.endswith("/")
    inside = root if root.endswith("/") else root + "/"
    real, is_directory = _resolve(inside, plain)
    if real != root and not real.startswith(inside):
        raise Invalid(
            f"{path} is outside the project {root}. Lock paths inside it.",
            path=path,
            root=root,
        )
    pattern = "/".join([part for part in (real[len(inside) :], *wild) if part])
    if not pattern:
        return WHOLE_PROJECT
    if names_directory or (is_directory and not wild):
        pattern += "/"
    if lockable and len(pattern) > MAX_WILDCARD_PATTERN and has_wildcard(pattern):
        raise Invalid(
            f"The pattern has wildcards and {len(pattern)} characters; at most "
            f"{MAX_WILDCARD_PATTERN} are allowed. Lock the directory instead.",
            path=pattern[:MAX_WILDCARD_PATTERN],
        )
    if lockable and len(pattern) > MAX_PATTERN:
        raise Invalid(
            f"The path has {len(pattern):,} characters; at most {MAX_PATTERN} are allowed. Lock "
            "its directory instead.",
            path=pattern[:MAX_PATTERN],
        )
    return fold_case(pattern) if folded else compose_unicode(pattern)


def _resolve(inside: str, plain: str) -> tuple[str, bool]:
    """Return the real path below a resolved directory, and whether it is a directory.

    Like `realpath`, but without the system calls for the components above `inside`.
    """
    # Called inside the transaction: only the transaction knows the project's directory, and the
    # names of a path and of a project must be resolved for the same store state. The cost is one
    # lstat for each component of the path. A directory on a network mount that hangs blocks the
    # caller, and on SQLite also the other writers, until the mount answers.
    parts = [part for part in plain.split("/") if part not in ("", ".")]
    if not plain.startswith("/") and ".." not in parts:
        path, mode = inside.rstrip("/"), S_IFDIR
        for number, part in enumerate(parts):
            try:
                mode = os.lstat(f"{path}/{part}").st_mode
            except (OSError, ValueError):  # does not exist yet, so nothing below it does
                return "/".join([path, *parts[number:]]), False
            if S_ISLNK(mode):
                break
            path = f"{path}/{part}"
        else:
            return path or "/", S_ISDIR(mode)
    real = os.path.realpath(os.path.join(inside, plain))
    return real, os.path.isdir(real)


@lru_cache(256)
def is_case_insensitive(root: str) -> bool:
    """Whether the file system of a directory is case-insensitive."""
    try:
        return os.path.samefile(root, root.swapcase()) and root != root.swapcase()
    except OSError:
        return False


def fold_case(pattern: str) -> str:
    """Return the pattern as a case-insensitive file system compares it."""
    return compose_unicode(compose_unicode(pattern).casefold())


def compose_unicode(pattern: str) -> str:
    """Return the NFC form: some file systems decompose accented letters."""
    if pattern.isascii():
        return pattern
    from unicodedata import normalize

    return normalize("NFC", pattern)


@lru_cache(1_024)  # called for every lock and every hook, mostly with the same few paths
def _split_wildcards(path: str) -> tuple[str, tuple[str, ...]]:
    """Split a path into its plain prefix and the parts from the first wildcard on."""
    parts = path.split("/")
    first = next((n for n, part in enumerate(parts) if has_wildcard(part)), len(parts))
    wild: list[str] = []
    for part in parts[first:]:
        if part == "..":
            raise Invalid(
                f"Invalid path {path}: `..` is not allowed after a wildcard.",
                path=path,
            )
        if part in ("", "."):
            continue
        while "***" in part or ("**" in part and part != "**"):
            part = part.replace("**", "*")
        if part != "**" or wild[-1:] != ["**"]:
            wild.append(part)
    return "/".join(parts[:first]) or ("/" if first and path.startswith("/") else ""), tuple(wild)
