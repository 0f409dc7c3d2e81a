"""Making commits with git, and trying merges without leaving anything behind."""

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress

from corral.adapters import git
from corral.adapters.worktrees import Tree
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


class Trial:
    """Merges that are only tried: what they write goes into a folder of their own."""

    def __init__(self, top: str, folder: str) -> None:
        self._top = top
        self._folder = folder
        own = git.told(top, "rev-parse", "--git-path", "objects").decode().strip()
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
        if not git.told(tree.folder, "status", "--porcelain", "--untracked-files=normal").strip():
            return tree.head
        index = os.path.join(self._folder, "index")
        own = git.told(tree.folder, "rev-parse", "--git-path", "index").decode().strip()
        with suppress(FileNotFoundError):
            shutil.copyfile(os.path.join(tree.folder, own), index)
        apart = self._objects | {"GIT_INDEX_FILE": index}
        try:
            git.told(tree.folder, "add", "--all", environment=apart)
            made = git.told(tree.folder, "write-tree", environment=apart).decode().strip()
        finally:
            with suppress(FileNotFoundError):
                os.unlink(index)
        words = ("commit-tree", made, "-p", tree.head, "-m", "as it is now")
        return git.told(tree.folder, *words, environment=apart | git.NOBODY).decode().strip()

    def conflicts(self, one: str, other: str) -> list[str]:
        """The files in which two commits cannot be merged without a person."""
        words = ("merge-tree", "--write-tree", "--name-only", "--no-messages", "-z", one, other)
        done = git.run(self._top, *words, environment=self._objects, seconds=SECONDS)
        if done.code == 0:
            return []
        if done.code == 1 and done.out:
            return git.names_in(done.out)[1:]
        if b"usage:" in done.err:
            raise Refused("This git cannot try merges; git 2.38 or newer is needed.")
        if b"unrelated histories" in done.err:
            return []
        raise git.failed(self._top, words[0], done)
