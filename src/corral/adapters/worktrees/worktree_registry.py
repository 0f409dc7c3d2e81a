"""Worktrees as their repository registers them.

An agent may have written a worktree's `.git` file and its own git folder. Lookups therefore start
from the repository that the caller names and never trust what the worktree claims.
"""

import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from corral.adapters.git import git
from corral.adapters.output.regular_file import open_regular_file
from corral.kernel.errors import Refused

STATUS_COMMAND = ("status", "--porcelain=v1", "-z", "--untracked-files=all", "--no-renames")
DIFF_FILES_COMMAND = (
    "diff-files",
    "--name-only",
    "-z",
    "--no-renames",
    "--ignore-submodules=dirty",
)
MAX_LIST_ATTEMPTS = 6
CONFIG_FILE = "config.worktree"
MAX_CONFIG_BYTES = 65_536  # git itself writes only a few lines
STAGE_COMMAND = ("update-index", "--add", "--remove", "--replace", "-z", "--stdin")


class Checkout(NamedTuple):
    """A worktree and its git folders, according to its repository."""

    folder: str
    common: str
    """The repository's git folder (GIT_COMMON_DIR)."""
    own: str
    """The worktree's own git folder, below `common` (GIT_DIR)."""

    @property
    def environment(self) -> dict[str, str]:
        """Variables that make git use these folders, whatever the worktree says."""
        return {"GIT_DIR": self.own, "GIT_COMMON_DIR": self.common, "GIT_WORK_TREE": self.folder}

    def run(self, *arguments: str, stdin: bytes = b"", **variables: str) -> git.GitResult:
        """Run git in the worktree; returns its result, whatever the exit code.

        `stdin` is its standard input; other keyword arguments become environment variables.
        """
        sanitize_config(self.own)
        top = self.folder if os.path.isdir(self.folder) else self.common
        return git.run(
            top,
            *arguments,
            stdin=stdin,
            environment=self.environment | variables,
            seconds=git.LONG_SECONDS,
        )

    def check_output(self, *arguments: str, stdin: bytes = b"", **variables: str) -> bytes:
        """Run git in the worktree and return its output. Raises Refused when git fails."""
        result = self.run(*arguments, stdin=stdin, **variables)
        if result.code:
            raise git.git_error(self.folder, arguments[0], result)
        return result.out

    def read_line(self, *arguments: str) -> str:
        """Run git and return its output as one line of text."""
        return os.fsdecode(self.check_output(*arguments)).rstrip("\n")

    @property
    def branch(self) -> str | None:
        """The checked-out branch; None: detached HEAD."""
        result = self.run("symbolic-ref", "--quiet", "HEAD")
        name = os.fsdecode(result.out).strip()
        return name.removeprefix("refs/heads/") if name.startswith("refs/heads/") else None


class ListedWorktree(NamedTuple):
    """A worktree as `git worktree list` shows it."""

    folder: str
    branch: str | None
    """None: detached HEAD."""
    head: str
    locked: str | None = None
    """The reason of the lock, which may be empty; None: not locked."""


# Settings that git writes for sparse checkouts. Any other setting could name a program.
_ALLOWED_LINE = re.compile(
    rb"\s*(\[(core|index)\]|(sparsecheckout(cone)?|sparse)\s*=\s*\w+)?\s*", re.I
)


def sanitize_config(git_dir: str) -> None:
    """Remove every setting from a worktree's own configuration that could name a program.

    Git reads this file when the repository has `extensions.worktreeConfig`, and an agent can write
    it even inside a sandbox.
    """
    file = os.path.join(git_dir, CONFIG_FILE)
    if not os.path.lexists(file):
        return
    try:
        with open(open_regular_file(Path(file)), "rb") as opened:
            text = opened.read(MAX_CONFIG_BYTES + 1)
    except (FileNotFoundError, PermissionError):  # a symlink, a folder, a pipe, or unreadable
        text = b"?"
    lines = text.split(b"\n") if len(text) <= MAX_CONFIG_BYTES else [b"?"]
    if all(_ALLOWED_LINE.fullmatch(line) for line in lines):
        return
    replacement = f"{file}.{uuid4().hex}"
    with open(replacement, "xb") as opened:
        opened.write(b"\n".join(line for line in lines if _ALLOWED_LINE.fullmatch(line)))
    if os.path.isdir(file) and not os.path.islink(file):
        shutil.rmtree(file)
    os.replace(replacement, file)


def find_common_dir(repository: str) -> str:
    """Return the git folder of a repository; raises Refused when it is not a repository."""
    result = git.run(repository, "rev-parse", "--path-format=absolute", "--git-common-dir")
    if result.code:
        raise Refused(
            f"{repository} is not a git repository: {result.message}",
            dir=repository,
            reason="not_a_repository",
        )
    return os.path.realpath(os.fsdecode(result.out).rstrip("\n"))


def find_checkout(repository: str, folder: str) -> Checkout | None:
    """Return a worktree as its repository registers it, whether or not the folder exists."""
    return find_registered(find_common_dir(repository), folder)


def get_checkout(repository: str, folder: str) -> Checkout:
    """Return an existing worktree; raises Refused when it is missing or not registered."""
    checkout = find_checkout(repository, folder)
    if checkout is None or not os.path.isdir(folder):
        raise Refused(f"{folder} is not a worktree of {repository}.", dir=folder)
    return checkout


def find_registered(common: str, folder: str) -> Checkout | None:
    """Return the registered worktree at `folder`, or None.

    If several registrations claim the folder, an agent forged some of them. Only the one that the
    folder's own `.git` file points back to is accepted: another agent cannot write that file.
    """
    folder = normalize_path(folder)
    candidates = [
        Checkout(folder, common, own)
        for own, location in list_registrations(common)
        if location == folder
    ]
    if len(candidates) > 1:
        candidates = [checkout for checkout in candidates if is_linked_back(checkout)]
    return candidates[0] if candidates else None


def is_linked_back(checkout: Checkout) -> bool:
    """Whether the worktree's `.git` file points to the git folder that registers it."""
    try:
        with open(open_regular_file(Path(checkout.folder, ".git")), "rb") as file:
            kind, _, target = os.fsdecode(file.read(65_536)).partition(":")
    except (FileNotFoundError, PermissionError):
        return False
    git_dir = os.path.realpath(os.path.join(checkout.folder, target.strip()))
    return kind == "gitdir" and git_dir == os.path.realpath(checkout.own)


def resolve_checkout(common: str, folder: str) -> Checkout:
    """Return any worktree of a repository, including the main one.

    The git folder of the main worktree is the repository's, whatever a linked worktree claims.
    """
    main = Checkout(normalize_path(folder), common, common)
    if os.path.join(main.folder, ".git") == common:
        return main
    return find_registered(common, folder) or main


def normalize_path(folder: str) -> str:
    """Normalize a folder as git does: resolve symlinks in its parent, not in its last component."""
    above, name = os.path.split(os.path.abspath(folder))
    return os.path.join(os.path.realpath(above), name)


def list_registrations(common: str) -> Iterator[tuple[str, str]]:
    """Yield the git folder of each linked worktree and the location that it claims.

    An agent may have written that location.
    """
    with suppress(FileNotFoundError):
        for name in os.listdir(os.path.join(common, "worktrees")):
            own = os.path.join(common, "worktrees", name)
            with suppress(OSError), open(open_regular_file(Path(own, "gitdir")), "rb") as file:
                location = os.fsdecode(file.read(65_536)).rstrip("\n")
                yield (
                    own,
                    normalize_path(os.path.dirname(os.path.normpath(os.path.join(own, location)))),
                )


def resolve_commit(repository: str, name: str) -> str:
    """Return the id of a commit; raises Refused when it does not exist."""
    result = git.run(repository, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    if result.code == 0:
        return result.out.decode().strip()
    if name == "HEAD":
        raise Refused(
            f"{repository} has no commits. Create one first.", dir=repository, reason="no_commits"
        )
    raise Refused(
        f"{repository} has no commit {name}.", dir=repository, commit=name, reason="unknown_commit"
    )


@contextmanager
def readable_index(checkout: Checkout) -> Iterator[str]:
    """Give the path of an index that shows the real state of a worktree.

    This is its own index, or a temporary one of the last commit if its own is damaged or marks
    files as assume-unchanged or skip-worktree.
    """
    own = os.path.join(checkout.own, "index")
    result = checkout.run("ls-files", "-v", "-z")
    marks = (line[:1] for line in result.out.split(b"\0") if line)
    marked = any(mark.islower() or mark == b"S" for mark in marks)
    if os.path.exists(own) and not result.code and not marked:
        yield own
        return
    with scratch_index(checkout) as temporary:
        if checkout.run("read-tree", "HEAD", GIT_INDEX_FILE=temporary).code:
            checkout.check_output("read-tree", "--empty", GIT_INDEX_FILE=temporary)
        yield temporary


@contextmanager
def scratch_index(checkout: Checkout) -> Iterator[str]:
    """Give the path of a new temporary index, deleted on exit."""
    index = os.path.join(checkout.own, f"index.{uuid4().hex}")
    try:
        yield index
    finally:
        for name in (index, f"{index}.lock"):
            with suppress(FileNotFoundError):
                os.unlink(name)


# -- listing ---------------------------------------------------------------------------------------


def _parse_list(repository: str) -> list[tuple[ListedWorktree, frozenset[bytes]]]:
    worktrees = []
    for entry in _read_list(repository).split(b"\0\0"):
        fields = dict(line.partition(b" ")[::2] for line in entry.split(b"\0") if line)
        if not fields:
            continue
        branch = os.fsdecode(fields.get(b"branch", b"")).removeprefix("refs/heads/")
        locked = fields.get(b"locked")
        worktree = ListedWorktree(
            os.fsdecode(fields.get(b"worktree", b"")),
            branch or None,
            fields.get(b"HEAD", b"").decode(),
            None if locked is None else locked.decode(errors="replace"),
        )
        worktrees.append((worktree, frozenset(fields)))
    return worktrees


def _read_list(repository: str) -> bytes:
    """Return the output of `git worktree list`.

    Retries, because git fails while another process adds a worktree.
    """
    for remaining in reversed(range(MAX_LIST_ATTEMPTS)):
        result = git.run(repository, "worktree", "list", "--porcelain", "-z")
        if not result.code or not remaining:
            break
        time.sleep(0.02)
    if result.code:
        raise git.git_error(repository, "worktree", result)
    return result.out


def list_worktrees(repository: str) -> list[ListedWorktree]:
    """List the existing worktrees of a repository that have a commit, the main one first."""
    return [
        worktree
        for worktree, fields in _parse_list(repository)
        if b"bare" not in fields
        and worktree.head.strip("0")
        and os.path.lexists(os.path.join(worktree.folder, ".git"))
    ]
