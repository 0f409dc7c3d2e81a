"""Making commits with git, and trying merges without leaving anything behind."""

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from corral.adapters import git
from corral.adapters.checkouts import Tree, checkout_at, common_dir
from corral.kernel.errors import Refused

SECONDS = 120.0


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
        git.told(top, "add", "--intent-to-add", *_LISTED, given=git.listed(new))
    words = ("commit", "--quiet", "--only", f"--message={message}", *_LISTED)
    try:
        git.told(
            top,
            *words,
            given=git.listed(files),
            environment=environment,
            seconds=SECONDS,
            hooks=True,
        )
    except BaseException:
        if new:
            back = ("update-index", "--force-remove", "-z", "--stdin")
            git.run(top, *back, given=git.listed(new))
        raise
    return git.told(top, "rev-parse", "HEAD").decode().strip()


_LISTED = ("--pathspec-from-file=-", "--pathspec-file-nul")


class Clash(msgspec.Struct, frozen=True):
    """A file that needs a person."""

    name: str
    why: str
    """In git's words: content, add/add, modify/delete, rename …"""


def merge_tree(
    top: str, ours: str, theirs: str, *, environment: Mapping[str, str] | None = None
) -> tuple[str, list[Clash]]:
    """The id of the files that a merge of two commits comes to, and what needs a person in it; no
    file is touched. Commits that have nothing in common have no conflict, and no such id ("")."""
    words = ("merge-tree", "--write-tree", "-z", ours, theirs)
    done = git.run(top, *words, environment=environment, seconds=SECONDS)
    if b"unrelated histories" in done.err:
        return "", []
    if b"usage:" in done.err:
        raise Refused(
            "This git cannot try merges; git 2.38 or newer is needed.", reason="git_too_old"
        )
    if done.code > 1 or not done.out:
        raise git.failed(top, words[0], done)
    made, _, rest = done.out.partition(b"\0")
    return made.decode().strip(), _clashes(rest) if done.code else []


def _clashes(told: bytes) -> list[Clash]:
    entries, _, messages = told.partition(b"\0\0")
    files = [entry.partition(b"\t")[2] for entry in entries.split(b"\0")]
    why = dict.fromkeys(filter(None, files), "")
    fields = iter(messages.split(b"\0"))
    for count in fields:
        if count.strip().isdigit():
            paths = [next(fields) for _ in range(int(count))]
            kind, _ = next(fields).decode(errors="replace"), next(fields)
            if kind.startswith("CONFLICT"):
                reason = kind.removeprefix("CONFLICT").strip(" ()")
                for path in [path for path in paths if path in why] or paths[:1]:
                    why[path] = why.get(path) or reason
    return [Clash(os.fsdecode(name), reason or "content") for name, reason in why.items()]


class Trial:
    """Merges that are only tried: what they write goes into a folder of their own."""

    def __init__(self, top: str, folder: str) -> None:
        self._top = top
        self._folder = folder
        self._common = common_dir(top)
        objects = os.path.join(folder, "objects")
        os.mkdir(objects)
        others = [os.path.join(self._common, "objects")]
        if before := os.environ.get("GIT_ALTERNATE_OBJECT_DIRECTORIES"):
            others.append(before)
        self._objects = {
            "GIT_OBJECT_DIRECTORY": objects,
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": os.pathsep.join(others),
        }

    def state_of(self, tree: Tree) -> str:
        """A commit of a worktree as it is now, with all that is not committed yet. Where it belongs
        is asked of the repository: what stands in it may be an agent's."""
        found = checkout_at(self._common, tree.folder)
        looked = ("status", "--porcelain", "--untracked-files=normal", "--ignore-submodules=dirty")
        if not found.told(*looked).strip():
            return tree.head
        index = os.path.join(self._folder, "index")
        with suppress(FileNotFoundError):
            shutil.copyfile(os.path.join(found.own, "index"), index)
        apart = found.environment | self._objects | {"GIT_INDEX_FILE": index}
        try:
            git.told(tree.folder, "add", "--all", environment=apart)
            made = git.told(tree.folder, "write-tree", environment=apart).decode().strip()
        finally:
            with suppress(FileNotFoundError):
                os.unlink(index)
        nobody = apart | git.NOBODY
        return git.commit_tree(tree.folder, made, [tree.head], "as it is now", environment=nobody)

    def conflicts(self, one: str, other: str) -> list[str]:
        """The files in which two commits cannot be merged without a person."""
        _, clashes = merge_tree(self._top, one, other, environment=self._objects)
        return [clash.name for clash in clashes]
