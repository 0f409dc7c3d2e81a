"""Git: where a worktree belongs, read from its files; all else is asked of the program."""

import os

from corral.kernel.errors import Refused

SECONDS = 60.0


def worktree_of(path: str) -> str | None:
    """The top of the worktree that a path is in; it need not exist yet."""
    folder = path
    while True:
        if os.path.lexists(os.path.join(folder, ".git")):
            return folder
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above


def main_path(path: str) -> str:
    """The path that a file of a linked worktree has in the repository's main one; others stay."""
    top = worktree_of(path)
    main = main_worktree(top) if top is not None else None
    if top is None or main is None:
        return path
    return os.path.normpath(os.path.join(main, os.path.relpath(path, top)))


def main_worktree(top: str) -> str | None:
    """The main worktree of a linked one; None for any other folder, and for a bare repository."""
    try:
        with open(os.path.join(top, ".git"), encoding="utf-8") as file:
            kind, _, where = file.read(8_192).partition(":")
        folder = os.path.join(top, where.strip())
        if kind != "gitdir" or os.path.basename(os.path.dirname(folder)) != "worktrees":
            return None
        with open(os.path.join(folder, "commondir"), encoding="utf-8") as file:
            common = os.path.realpath(os.path.join(folder, file.read(8_192).strip()))
    except (OSError, ValueError):
        return None
    return os.path.dirname(common) if os.path.basename(common) == ".git" else None


def hooks_folder(top: str) -> str | None:
    """Where a worktree's hooks are; None when git does not know it."""
    told = _ask(top, "rev-parse", "--git-path", "hooks")
    return None if told is None else os.path.join(top, os.fsdecode(told.rstrip(b"\n")))


def storable(name: str) -> str:
    """A file's name as text that a store keeps; names need not be text."""
    return os.fsencode(name).decode(errors="replace")


def staged(top: str) -> list[str]:
    """The files of the commit that is being made, removed ones too, from the worktree's top."""
    return _names(top, "diff", "--cached", "--name-only", "-z", "--no-renames", "--no-ext-diff")


def _names(top: str, *words: str) -> list[str]:
    told = _ask(top, *words)
    if told is None:
        raise Refused(f"git could not say what is in {top}; look at it with `git status`.", dir=top)
    return [os.fsdecode(name) for name in told.split(b"\0") if name]


def _ask(top: str, *words: str) -> bytes | None:
    from corral.adapters.calls import output_of  # not in hooks that only read a worktree's files

    return output_of(["git", "-C", top, *words], {"GIT_OPTIONAL_LOCKS": "0"}, SECONDS)


def changed(top: str) -> dict[str, str]:
    """The files that differ from the last commit, each with git's two letters for how."""
    told = _names(top, "status", "--porcelain=v1", "-z", "--untracked-files=all", "--no-renames")
    return {entry[3:]: entry[:2] for entry in told}
