"""Worktrees as their repository knows them.

A worktree's `.git` and all of its own git folder may have been written by an agent. What is asked
about one is asked of the repository that the caller names, never of what is written there.
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

from corral.adapters import git
from corral.adapters.output.regular_file import open_regular_file
from corral.kernel.errors import Refused

STATUS = ("status", "--porcelain=v1", "-z", "--untracked-files=all", "--no-renames")
DIFFERING = ("diff-files", "--name-only", "-z", "--no-renames", "--ignore-submodules=dirty")
LIST_TRIES = 6
CONFIGURATION = "config.worktree"
MOST_CONFIGURATION = 65_536  # of a worktree's own; git writes a few lines
TAKE_IN = ("update-index", "--add", "--remove", "--replace", "-z", "--stdin")


class Checkout(NamedTuple):
    """A worktree, and the git folders that are its own by what its repository says."""

    folder: str
    common: str
    """The repository's git folder."""
    own: str
    """The worktree's part of it."""

    @property
    def environment(self) -> dict[str, str]:
        """Has git take these folders, whatever is written in the worktree."""
        return {"GIT_DIR": self.own, "GIT_COMMON_DIR": self.common, "GIT_WORK_TREE": self.folder}

    def run(self, *words: str, given: bytes = b"", **more: str) -> git.Done:
        disarm(self.own)
        top = self.folder if os.path.isdir(self.folder) else self.common
        return git.run(
            top,
            *words,
            given=given,
            environment=self.environment | more,
            seconds=git.LONG_SECONDS,
        )

    def told(self, *words: str, given: bytes = b"", **more: str) -> bytes:
        done = self.run(*words, given=given, **more)
        if done.code:
            raise git.failed(self.folder, words[0], done)
        return done.out

    def line(self, *words: str) -> str:
        return os.fsdecode(self.told(*words)).rstrip("\n")

    @property
    def branch(self) -> str | None:
        done = self.run("symbolic-ref", "--quiet", "HEAD")
        name = os.fsdecode(done.out).strip()
        return name.removeprefix("refs/heads/") if name.startswith("refs/heads/") else None


class Tree(NamedTuple):
    """A worktree as its repository has it written down."""

    folder: str
    branch: str | None
    """None when its HEAD is on no branch."""
    head: str
    locked: str | None = None
    """Why it is locked, maybe empty; None when it is not."""


# What git itself writes there for a part of the files; all else could name programs.
_HARMLESS = re.compile(rb"\s*(\[(core|index)\]|(sparsecheckout(cone)?|sparse)\s*=\s*\w+)?\s*", re.I)


def disarm(own: str) -> None:
    """Have a worktree's own configuration name no program. Git reads it where the repository has
    `extensions.worktreeConfig`, and whoever works there may write it, in a sandbox too."""
    file = os.path.join(own, CONFIGURATION)
    if not os.path.lexists(file):
        return
    try:
        with open(open_regular_file(Path(file)), "rb") as opened:
            text = opened.read(MOST_CONFIGURATION + 1)
    except FileNotFoundError:  # a link, a folder, a pipe
        text = b"?"
    lines = text.split(b"\n") if len(text) <= MOST_CONFIGURATION else [b"?"]
    if all(_HARMLESS.fullmatch(line) for line in lines):
        return
    apart = f"{file}.{uuid4().hex}"
    with open(apart, "xb") as opened:
        opened.write(b"\n".join(line for line in lines if _HARMLESS.fullmatch(line)))
    if os.path.isdir(file) and not os.path.islink(file):
        shutil.rmtree(file)
    os.replace(apart, file)


def common_dir(repository: str) -> str:
    """The git folder of a repository; Refused when it is none."""
    done = git.run(repository, "rev-parse", "--path-format=absolute", "--git-common-dir")
    if done.code:
        raise Refused(
            f"{repository} is no git repository ({done.said}).",
            dir=repository,
            reason="not_a_repository",
        )
    return os.path.realpath(os.fsdecode(done.out).rstrip("\n"))


def checkout_of(repository: str, folder: str) -> Checkout | None:
    """A worktree as its repository knows it, whether the folder is there or not."""
    return checkout_in(common_dir(repository), folder)


def known_checkout(repository: str, folder: str) -> Checkout:
    """The same, for one that must be there."""
    found = checkout_of(repository, folder)
    if found is None or not os.path.isdir(folder):
        raise Refused(f"{folder} is no worktree of {repository}.", dir=folder)
    return found


def checkout_in(common: str, folder: str) -> Checkout | None:
    """The one whose git folder says that it is there. Where several say so, an agent has written
    it: only the one that the folder names in turn is believed, which no other agent can write."""
    folder = real(folder)
    found = [
        Checkout(folder, common, own) for own, there in registrations(common) if there == folder
    ]
    if len(found) > 1:
        found = [each for each in found if is_named_back(each)]
    return found[0] if found else None


def is_named_back(found: Checkout) -> bool:
    """Whether a worktree's folder says that it belongs to its git folder, as that says of it."""
    try:
        with open(open_regular_file(Path(found.folder, ".git")), "rb") as file:
            kind, _, where = os.fsdecode(file.read(65_536)).partition(":")
    except FileNotFoundError:
        return False
    there = os.path.realpath(os.path.join(found.folder, where.strip()))
    return kind == "gitdir" and there == os.path.realpath(found.own)


def checkout_at(common: str, folder: str) -> Checkout:
    """Any worktree of a repository, its main one too: that one's git folder is the repository's,
    whatever a linked one says."""
    main = Checkout(real(folder), common, common)
    if os.path.join(main.folder, ".git") == common:
        return main
    return checkout_in(common, folder) or main


def real(folder: str) -> str:
    """A folder's name as git writes it: links are followed above it."""
    above, name = os.path.split(os.path.abspath(folder))
    return os.path.join(os.path.realpath(above), name)


def registrations(common: str) -> Iterator[tuple[str, str]]:
    """The git folder of each linked worktree, and where that says that it is: an agent may have
    written it."""
    with suppress(FileNotFoundError):
        for name in os.listdir(os.path.join(common, "worktrees")):
            own = os.path.join(common, "worktrees", name)
            with suppress(OSError), open(open_regular_file(Path(own, "gitdir")), "rb") as file:
                where = os.fsdecode(file.read(65_536)).rstrip("\n")
                yield own, real(os.path.dirname(os.path.normpath(os.path.join(own, where))))


def resolve(repository: str, name: str) -> str:
    done = git.run(repository, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    if done.code == 0:
        return done.out.decode().strip()
    if name == "HEAD":
        raise Refused(
            f"{repository} has no commit yet; make one first.", dir=repository, reason="no_commits"
        )
    raise Refused(
        f"{repository} has no commit {name}.", dir=repository, commit=name, reason="unknown_commit"
    )


@contextmanager
def index_to_read(found: Checkout) -> Iterator[str]:
    """The index of a worktree; another one, of its last commit, when that is damaged or has files
    marked as not to be looked at."""
    own = os.path.join(found.own, "index")
    done = found.run("ls-files", "-v", "-z")
    marks = (line[:1] for line in done.out.split(b"\0") if line)
    marked = any(mark.islower() or mark == b"S" for mark in marks)
    if os.path.exists(own) and not done.code and not marked:
        yield own
        return
    with scratch_index(found) as apart:
        if found.run("read-tree", "HEAD", GIT_INDEX_FILE=apart).code:
            found.told("read-tree", "--empty", GIT_INDEX_FILE=apart)
        yield apart


@contextmanager
def scratch_index(found: Checkout) -> Iterator[str]:
    """The name of an index that is not there yet, and is gone afterwards."""
    apart = os.path.join(found.own, f"index.{uuid4().hex}")
    try:
        yield apart
    finally:
        for name in (apart, f"{apart}.lock"):
            with suppress(FileNotFoundError):
                os.unlink(name)


# -- all of them -----------------------------------------------------------------------------------


def _listed(repository: str) -> list[tuple[Tree, frozenset[bytes]]]:
    found = []
    for entry in _list(repository).split(b"\0\0"):
        facts = dict(line.partition(b" ")[::2] for line in entry.split(b"\0") if line)
        if not facts:
            continue
        branch = os.fsdecode(facts.get(b"branch", b"")).removeprefix("refs/heads/")
        locked = facts.get(b"locked")
        tree = Tree(
            os.fsdecode(facts.get(b"worktree", b"")),
            branch or None,
            facts.get(b"HEAD", b"").decode(),
            None if locked is None else locked.decode(errors="replace"),
        )
        found.append((tree, frozenset(facts)))
    return found


def _list(repository: str) -> bytes:
    """What git says of all worktrees; it does not while another one is just being made."""
    for left in reversed(range(LIST_TRIES)):
        done = git.run(repository, "worktree", "list", "--porcelain", "-z")
        if not done.code or not left:
            break
        time.sleep(0.02)
    if done.code:
        raise git.failed(repository, "worktree", done)
    return done.out


def trees(repository: str) -> list[Tree]:
    """The worktrees of a repository that have a commit and are there, the main one first."""
    return [
        tree
        for tree, facts in _listed(repository)
        if b"bare" not in facts
        and tree.head.strip("0")
        and os.path.lexists(os.path.join(tree.folder, ".git"))
    ]
