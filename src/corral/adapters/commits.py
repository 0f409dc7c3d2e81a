"""Making commits with git, and trying merges without leaving anything behind."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from corral.kernel.errors import Refused

SECONDS = 120
MAX_SAID = 2_000


def commit(
    top: str,
    message: str,
    files: Sequence[str],
    *,
    new: Sequence[str],
    environment: Mapping[str, str],
) -> str:
    """Commit exactly these files as they are now, whatever else is changed or staged; the commit's
    id. `new` are those of them that git does not know yet.

    When git refuses, a hook of the repository for instance, nothing is staged that was not before.
    """
    if new:
        _run(top, "add", "--intent-to-add", *_LISTED, given=_listed(new))
    words = ("commit", "--quiet", "--only", f"--message={message}", *_LISTED)
    try:
        _run(top, *words, given=_listed(files), environment=environment)
    except BaseException:
        if new:
            with suppress(Refused):
                _run(top, "update-index", "--force-remove", "-z", "--stdin", given=_listed(new))
        raise
    return _run(top, "rev-parse", "HEAD").decode().strip()


_LISTED = ("--pathspec-from-file=-", "--pathspec-file-nul")


def _listed(files: Sequence[str]) -> bytes:
    return b"".join(os.fsencode(file) + b"\0" for file in files)


class Tree(NamedTuple):
    """A worktree of a repository."""

    folder: str
    branch: str | None
    head: str


def trees(top: str) -> list[Tree]:
    """The worktrees of a repository that have a commit and are there, the main one first."""
    found = []
    for entry in _run(top, "worktree", "list", "--porcelain", "-z").split(b"\0\0"):
        facts = dict(line.partition(b" ")[::2] for line in entry.split(b"\0") if line)
        folder = os.fsdecode(facts.get(b"worktree", b""))
        head = facts.get(b"HEAD", b"").decode()
        if b"bare" in facts or not head.strip("0") or not os.path.isdir(folder):
            continue
        branch = os.fsdecode(facts.get(b"branch", b"")).removeprefix("refs/heads/")
        found.append(Tree(folder, branch or None, head))
    return found


class Trial:
    """Merges that are only tried: what they write goes into a folder of their own."""

    def __init__(self, top: str, folder: str) -> None:
        self._top = top
        self._folder = folder
        own = _run(top, "rev-parse", "--git-path", "objects").decode().strip()
        objects = os.path.join(folder, "objects")
        os.mkdir(objects)
        others = [os.path.realpath(os.path.join(top, own))]
        if before := os.environ.get("GIT_ALTERNATE_OBJECT_DIRECTORIES"):
            others.append(before)
        self._objects = {
            "GIT_OBJECT_DIRECTORY": objects,
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": os.pathsep.join(others),
        }

    def state_of(self, tree: Tree) -> str:
        """A commit of a worktree as it is now, with all that is not committed yet."""
        if not _run(tree.folder, "status", "--porcelain", "--untracked-files=normal").strip():
            return tree.head
        index = os.path.join(self._folder, "index")
        own = _run(tree.folder, "rev-parse", "--git-path", "index").decode().strip()
        with suppress(FileNotFoundError):
            shutil.copyfile(os.path.join(tree.folder, own), index)
        apart = self._objects | {"GIT_INDEX_FILE": index}
        try:
            _run(tree.folder, "add", "--all", environment=apart)
            made = _run(tree.folder, "write-tree", environment=apart).decode().strip()
        finally:
            with suppress(FileNotFoundError):
                os.unlink(index)
        words = ("commit-tree", made, "-p", tree.head, "-m", "as it is now")
        return _run(tree.folder, *words, environment=apart | _NOBODY).decode().strip()

    def conflicts(self, one: str, other: str) -> list[str]:
        """The files in which two commits cannot be merged without a person."""
        words = ("merge-tree", "--write-tree", "--name-only", "--no-messages", "-z", one, other)
        done = _call(self._top, words, environment=self._objects)
        if done.returncode == 0:
            return []
        if done.returncode == 1 and done.stdout:
            return [os.fsdecode(name) for name in done.stdout.split(b"\0")[1:] if name]
        if b"usage:" in done.stderr:
            raise Refused("This git cannot try merges; git 2.38 or newer is needed.")
        if b"unrelated histories" in done.stderr:
            return []
        raise _said(self._top, words, done)


_NOBODY = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "corral"), ("EMAIL", "corral@localhost"))
}


def _run(
    top: str, *words: str, given: bytes = b"", environment: Mapping[str, str] | None = None
) -> bytes:
    done = _call(top, words, given=given, environment=environment)
    if done.returncode:
        raise _said(top, words, done)
    return done.stdout


def _call(
    top: str,
    words: Sequence[str],
    *,
    given: bytes = b"",
    environment: Mapping[str, str] | None = None,
) -> "subprocess.CompletedProcess[bytes]":
    try:
        return subprocess.run(
            ["git", "--literal-pathspecs", *words],
            cwd=top,
            input=given,
            capture_output=True,
            timeout=SECONDS,
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0", **(environment or {})},
        )
    except FileNotFoundError:
        raise Refused("git is not on the PATH, or the folder is gone.", dir=top) from None
    except subprocess.TimeoutExpired:
        raise Refused(f"git {words[0]} took longer than {SECONDS} s.", dir=top) from None


def _said(top: str, words: Sequence[str], done: "subprocess.CompletedProcess[bytes]") -> Refused:
    said = (done.stderr or done.stdout).decode(errors="replace").strip()[-MAX_SAID:]
    return Refused(f"git {words[0]} failed in {top}: {said or done.returncode}", dir=top)
