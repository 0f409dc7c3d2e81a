"""Submodules of worktrees.

They are populated without network access and inspected without trusting them.
"""

import os
from contextlib import suppress
from uuid import uuid4

from corral.adapters.git import git
from corral.adapters.worktrees.worktree_registry import STATUS_COMMAND, Checkout


def list_submodules(checkout: Checkout, index: str) -> list[tuple[str, str]]:
    """List the paths and commits of the submodules in an index."""
    entries = checkout.check_output("ls-files", "--stage", "-z", GIT_INDEX_FILE=index).split(b"\0")
    submodules = [entry for entry in entries if entry.startswith(b"160000 ")]
    return [
        (os.fsdecode(name), fields.split()[1].decode())
        for fields, _, name in (entry.partition(b"\t") for entry in submodules)
    ]


def list_modified(checkout: Checkout, index: str) -> list[str]:
    """List the submodules of a worktree with work that exists nowhere else.

    An agent may have written their configuration, so git never runs inside them. A submodule counts
    as unmodified only if its files equal a commit that the repository's own copy contains.
    """
    return [
        name
        for name, commit in list_submodules(checkout, index)
        if os.path.lexists(os.path.join(checkout.folder, name, ".git"))
        and not _is_unmodified(checkout, name, commit)
    ]


def _is_unmodified(checkout: Checkout, name: str, commit: str) -> bool:
    inside = os.path.join(checkout.folder, name)
    copy = _find_copy(checkout, name)
    if copy is None or git.run(copy, "cat-file", "-e", commit).code:
        return False
    index = os.path.join(checkout.own, f"looked-at-{uuid4().hex}")
    environment = {"GIT_DIR": copy, "GIT_WORK_TREE": inside, "GIT_INDEX_FILE": index}
    try:
        git.check_output(copy, "read-tree", commit, environment=environment)
        arguments = (*STATUS_COMMAND, "--ignore-submodules=none")
        entries = git.split_names(git.check_output(inside, *arguments, environment=environment))
        # The first letter compares the index with the HEAD of that copy, the second one the files
        # with the index.
        return not any(entry[1] != " " for entry in entries)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(index)


def populate(checkout: Checkout) -> None:
    """Check out the submodules that the repository has a local copy of; others stay empty."""
    for name, _ in list_submodules(checkout, os.path.join(checkout.own, "index")):
        copy = _find_copy(checkout, name)
        if copy is not None:
            name_in_copy = os.path.relpath(copy, os.path.join(checkout.common, "modules"))
            arguments = (
                "-c",
                "protocol.file.allow=always",
                "-c",
                f"submodule.{name_in_copy}.url={copy}",
            )
            git.check_output(
                checkout.folder,
                *arguments,
                *("submodule", "--quiet", "update", "--init", "--recursive", "--", name),
                seconds=git.LONG_SECONDS,
            )


def _find_copy(checkout: Checkout, path: str) -> str | None:
    """Return the git folder of the repository's own copy of a submodule, or None."""
    modules = os.path.join(checkout.common, "modules")
    arguments = ("config", "-z", "--file", os.path.join(checkout.folder, ".gitmodules"))
    output = checkout.run(*arguments, "--get-regexp", r"^submodule\..*\.path$").out
    for entry in output.split(b"\0"):
        key, _, submodule_path = entry.partition(b"\n")
        if submodule_path == os.fsencode(path):
            name = os.fsdecode(key.removeprefix(b"submodule.").removesuffix(b".path"))
            copy = os.path.realpath(os.path.join(modules, name))
            if copy.startswith(modules + os.sep) and os.path.isdir(os.path.join(copy, "objects")):
                return copy
    return None
