"""A private repository for a folder that is in no git repository.

Its git folder is outside the folder and private to the user; the folder itself is only read. The
private repository is bare: worktrees and merges name it by its git folder.
"""

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from uuid import uuid4

import msgspec

from corral.adapters.git import git
from corral.adapters.worktrees.worktree_registry import (
    STAGE_COMMAND,
    Checkout,
    normalize_path,
    scratch_index,
)
from corral.kernel.errors import Conflict, Refused

# Large folders that tools generate. A `.gitignore` in the folder applies as well.
DEFAULT_EXCLUDES = (
    ".cache/",
    ".gradle/",
    ".mypy_cache/",
    ".next/",
    ".nox/",
    ".nuxt/",
    ".pytest_cache/",
    ".ruff_cache/",
    ".terraform/",
    ".tox/",
    ".venv/",
    "__pycache__/",
    "bower_components/",
    "node_modules/",
    "venv/",
)
SNAPSHOT_BRANCH = "main"


class FolderSnapshot(msgspec.Struct, frozen=True):
    """A commit of the files in a folder."""

    commit: str
    """The commit of the current files; the previous one if nothing changed."""
    made: bool
    """Whether a commit was created."""
    left_out: list[str]
    """Nested repositories: they have their own history and are not in the commit."""


def is_in_git(folder: str) -> bool:
    """Whether a folder is in a git repository, including a bare one."""
    return git.run(folder, "rev-parse", "--git-dir").code == 0


def snapshot_folder(
    folder: str, git_dir: str, *, message: str, left_out: Sequence[str] = DEFAULT_EXCLUDES
) -> FolderSnapshot:
    """Commit the files of a folder to the private repository in `git_dir`, on its branch `main`.

    The repository is created with mode 0700 if needed. Nothing in the folder is written. Raises
    Refused when the folder is in a git repository, cannot be read completely, or contains
    `git_dir`; Conflict when another process takes a snapshot at the same time.
    """
    folder, git_dir = os.path.realpath(folder), normalize_path(git_dir)
    if not os.path.isdir(folder):
        raise Refused(
            f"{folder} is not a directory. Correct the path.", dir=folder, reason="not_a_folder"
        )
    if git_dir == folder or git_dir.startswith(os.path.join(folder, "")):
        raise Refused(
            f"{folder} contains {git_dir}, where its files would be copied to. Start in a "
            "subdirectory, or set CORRAL_HOME to a directory outside.",
            dir=git_dir,
            reason="contains_data",
        )
    if is_in_git(folder):
        raise Refused(
            f"{folder} is already in a git repository. Use that one.",
            dir=folder,
            reason="already_a_repository",
        )
    _ensure_repository(git_dir, left_out)
    checkout = Checkout(folder, git_dir, git_dir)
    before = checkout.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}").out.decode().strip()
    saved_index = os.path.join(git_dir, "snapshot-index")
    with scratch_index(checkout) as index:
        with suppress(FileNotFoundError):
            shutil.copyfile(saved_index, index)  # its stat data avoids reading unchanged files
        arguments = ("ls-files", "--cached", "--others", "--exclude-standard", "-z")
        names = git.split_names(checkout.check_output(*arguments, GIT_INDEX_FILE=index))
        files = [name for name in names if not name.endswith("/")]
        checkout.check_output(*STAGE_COMMAND, stdin=git.join_names(files), GIT_INDEX_FILE=index)
        tree = checkout.check_output("write-tree", GIT_INDEX_FILE=index).decode().strip()
        os.replace(index, saved_index)
    nested = [name for name in names if name.endswith("/")]
    if before and checkout.read_line("rev-parse", f"{before}^{{tree}}") == tree:
        return FolderSnapshot(before, False, nested)
    parents = [before] if before else []
    environment = checkout.environment | git.CORRAL_IDENTITY
    commit = git.commit_tree(folder, tree, parents, message, environment=environment)
    result = checkout.run(
        "update-ref", f"refs/heads/{SNAPSHOT_BRANCH}", commit, before or "0" * len(commit)
    )
    if result.code:
        raise Conflict(f"Another process is writing to {git_dir}. Try again.", dir=git_dir)
    return FolderSnapshot(commit, True, nested)


def _ensure_repository(git_dir: str, left_out: Sequence[str]) -> None:
    """Create the repository atomically: it gets its name only when it is complete."""
    if not os.path.exists(os.path.join(git_dir, "HEAD")):
        parent = os.path.dirname(git_dir)
        os.makedirs(parent, mode=0o700, exist_ok=True)
        temporary = os.path.join(parent, f".{os.path.basename(git_dir)}.{uuid4().hex}")
        os.mkdir(temporary, 0o700)
        try:
            arguments = (
                "init",
                "--quiet",
                "--bare",
                "--template=",
                f"--initial-branch={SNAPSHOT_BRANCH}",
            )
            git.check_output(parent, *arguments, temporary)
            os.mkdir(os.path.join(temporary, "info"))
            os.rename(temporary, git_dir)
        except OSError:
            if not os.path.exists(
                os.path.join(git_dir, "HEAD")
            ):  # another process created it first
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    os.chmod(git_dir, 0o700)
    exclude = os.path.join(git_dir, "info", "exclude")
    temporary = f"{exclude}.{uuid4().hex}"
    with open(temporary, "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in left_out)
    os.replace(temporary, exclude)
