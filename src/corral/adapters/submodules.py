"""Submodules of worktrees: filled without a network, and looked at without trusting them."""

import os
from contextlib import suppress
from uuid import uuid4

from corral.adapters import git
from corral.adapters.checkouts import STATUS, Checkout


def links(found: Checkout, index: str) -> list[tuple[str, str]]:
    """Where a worktree has submodules by an index, and the commit of each."""
    entries = found.told("ls-files", "--stage", "-z", GIT_INDEX_FILE=index).split(b"\0")
    links = [entry for entry in entries if entry.startswith(b"160000 ")]
    return [
        (os.fsdecode(name), facts.split()[1].decode())
        for facts, _, name in (entry.partition(b"\t") for entry in links)
    ]


def with_work(found: Checkout, index: str) -> list[str]:
    """Submodules of a worktree that hold what is nowhere else.

    An agent may have written their configuration, so git is not asked in there: only one that has
    nothing but a commit that the repository's own copy of the submodule has is without work.
    """
    return [
        name
        for name, commit in links(found, index)
        if os.path.lexists(os.path.join(found.folder, name, ".git"))
        and not _is_copy(found, name, commit)
    ]


def _is_copy(found: Checkout, name: str, commit: str) -> bool:
    inside = os.path.join(found.folder, name)
    kept = _kept(found, name)
    if kept is None or git.run(kept, "cat-file", "-e", commit).code:
        return False
    apart = os.path.join(found.own, f"looked-at-{uuid4().hex}")
    as_here = {"GIT_DIR": kept, "GIT_WORK_TREE": inside, "GIT_INDEX_FILE": apart}
    try:
        git.told(kept, "read-tree", commit, environment=as_here)
        words = (*STATUS, "--ignore-submodules=none")
        told = git.names_in(git.told(inside, *words, environment=as_here))
        # The first letter compares with where that copy is; the second with what is in the files.
        return not any(entry[1] != " " for entry in told)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(apart)


def fill(found: Checkout) -> None:
    """Fill the submodules that the repository has at hand, from there; others stay empty."""
    for name, _ in links(found, os.path.join(found.own, "index")):
        kept = _kept(found, name)
        if kept is not None:
            called = os.path.relpath(kept, os.path.join(found.common, "modules"))
            words = ("-c", "protocol.file.allow=always", "-c", f"submodule.{called}.url={kept}")
            git.told(
                found.folder,
                *words,
                *("submodule", "--quiet", "update", "--init", "--recursive", "--", name),
                seconds=git.LONG_SECONDS,
            )


def _kept(found: Checkout, path: str) -> str | None:
    """The git folder of a submodule in the repository itself; None when it has none."""
    modules = os.path.join(found.common, "modules")
    words = ("config", "-z", "--file", os.path.join(found.folder, ".gitmodules"))
    told = found.run(*words, "--get-regexp", r"^submodule\..*\.path$").out
    for entry in told.split(b"\0"):
        key, _, where = entry.partition(b"\n")
        if where == os.fsencode(path):
            name = os.fsdecode(key.removeprefix(b"submodule.").removesuffix(b".path"))
            kept = os.path.realpath(os.path.join(modules, name))
            if kept.startswith(modules + os.sep) and os.path.isdir(os.path.join(kept, "objects")):
                return kept
    return None
