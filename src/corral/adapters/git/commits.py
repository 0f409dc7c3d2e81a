"""Create commits of selected files, and try merges without side effects."""

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from corral.adapters.git import git
from corral.adapters.worktrees.worktree_registry import (
    ListedWorktree,
    find_common_dir,
    resolve_checkout,
)
from corral.kernel.errors import Refused

COMMIT_SECONDS = 120.0


def commit_files(
    top: str,
    message: str,
    files: Sequence[str],
    *,
    new: Sequence[str],
    environment: Mapping[str, str],
) -> str:
    """Commit exactly these files and return the id of the commit.

    The files are committed as they are now, whatever else is changed or staged. `new` are the
    untracked ones among them. If git fails, for instance because a hook of the repository
    rejects the commit, the index is as it was before.
    """
    if new:
        git.check_output(
            top, "add", "--intent-to-add", *_PATHS_FROM_STDIN, stdin=git.join_names(new)
        )
    arguments = ("commit", "--quiet", "--only", f"--message={message}", *_PATHS_FROM_STDIN)
    try:
        git.check_output(
            top,
            *arguments,
            stdin=git.join_names(files),
            environment=environment,
            seconds=COMMIT_SECONDS,
            hooks=True,
        )
    except BaseException:
        if new:
            undo = ("update-index", "--force-remove", "-z", "--stdin")
            git.run(top, *undo, stdin=git.join_names(new))
        raise
    return git.check_output(top, "rev-parse", "HEAD").decode().strip()


_PATHS_FROM_STDIN = ("--pathspec-from-file=-", "--pathspec-file-nul")


class FileConflict(msgspec.Struct, frozen=True):
    """A file that cannot be merged automatically."""

    name: str
    why: str
    """The kind of conflict, as git calls it: content, add/add, modify/delete, rename …"""


def merge_tree(
    top: str, ours: str, theirs: str, *, environment: Mapping[str, str] | None = None
) -> tuple[str, list[FileConflict]]:
    """Merge two commits without touching files; return the tree id and the conflicts.

    For unrelated histories there are no conflicts and the id is empty.
    """
    arguments = ("merge-tree", "--write-tree", "-z", ours, theirs)
    result = git.run(top, *arguments, environment=environment, seconds=COMMIT_SECONDS)
    if b"unrelated histories" in result.err:
        return "", []
    if b"usage:" in result.err:
        raise Refused(
            "This git is too old to test merges. Install git 2.38 or newer.", reason="git_too_old"
        )
    if result.code > 1 or not result.out:
        raise git.git_error(top, arguments[0], result)
    tree, _, rest = result.out.partition(b"\0")
    return tree.decode().strip(), _parse_conflicts(rest) if result.code else []


def _parse_conflicts(output: bytes) -> list[FileConflict]:
    entries, _, messages = output.partition(b"\0\0")
    files = [entry.partition(b"\t")[2] for entry in entries.split(b"\0")]
    reasons = dict.fromkeys(filter(None, files), "")
    fields = iter(messages.split(b"\0"))
    for count in fields:
        if count.strip().isdigit():
            paths = [next(fields) for _ in range(int(count))]
            kind, _ = next(fields).decode(errors="replace"), next(fields)
            if kind.startswith("CONFLICT"):
                reason = kind.removeprefix("CONFLICT").strip(" ()")
                for path in [path for path in paths if path in reasons] or paths[:1]:
                    reasons[path] = reasons.get(path) or reason
    return [
        FileConflict(os.fsdecode(name), reason or "content") for name, reason in reasons.items()
    ]


class MergeTrial:
    """Trial merges; all objects go into a temporary folder."""

    def __init__(self, top: str, folder: str) -> None:
        self._top = top
        self._folder = folder
        self._common = find_common_dir(top)
        objects = os.path.join(folder, "objects")
        os.mkdir(objects)
        others = [os.path.join(self._common, "objects")]
        if before := os.environ.get("GIT_ALTERNATE_OBJECT_DIRECTORIES"):
            others.append(before)
        self._objects = {
            "GIT_OBJECT_DIRECTORY": objects,
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": os.pathsep.join(others),
        }

    def state_of(self, worktree: ListedWorktree) -> str:
        """Return a commit of a worktree as it is now, including uncommitted work.

        The worktree is looked up in the repository, because an agent may have written its `.git`
        file.
        """
        checkout = resolve_checkout(self._common, worktree.folder)
        status = ("status", "--porcelain", "--untracked-files=normal", "--ignore-submodules=dirty")
        if not checkout.check_output(*status).strip():
            return worktree.head
        index = os.path.join(self._folder, "index")
        with suppress(FileNotFoundError):
            shutil.copyfile(os.path.join(checkout.own, "index"), index)
        environment = checkout.environment | self._objects | {"GIT_INDEX_FILE": index}
        try:
            git.check_output(worktree.folder, "add", "--all", environment=environment)
            tree_id = (
                git.check_output(worktree.folder, "write-tree", environment=environment)
                .decode()
                .strip()
            )
        finally:
            with suppress(FileNotFoundError):
                os.unlink(index)
        identity = environment | git.CORRAL_IDENTITY
        return git.commit_tree(
            worktree.folder, tree_id, [worktree.head], "Trial merge snapshot", environment=identity
        )

    def conflicts(self, one: str, other: str) -> list[str]:
        """List the files in which two commits conflict."""
        _, found_conflicts = merge_tree(self._top, one, other, environment=self._objects)
        return [conflict.name for conflict in found_conflicts]
