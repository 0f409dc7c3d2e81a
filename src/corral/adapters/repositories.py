"""A private repository for a folder that is in no git repository.

Its git folder is elsewhere and for its user alone; the folder itself is only read. The private
repository is a bare one: worktrees and merges name it by its git folder.
"""

import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from uuid import uuid4

import msgspec

from corral.adapters import git
from corral.adapters.checkouts import TAKE_IN, Checkout, real, scratch_index
from corral.kernel.errors import Conflict, Refused

# Made by a tool from what is kept, and large; a `.gitignore` in the folder counts as well.
LEFT_OUT = (
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
BRANCH = "main"


class Snapshot(msgspec.Struct, frozen=True):
    commit: str
    """The folder's files as they are; the commit before when nothing has changed since."""
    made: bool
    left_out: list[str]
    """Repositories inside the folder: they have a history of their own, and are not in it."""


def is_in_git(folder: str) -> bool:
    """Whether a folder is in a git repository (also a bare one)."""
    return git.run(folder, "rev-parse", "--git-dir").code == 0


def snapshot(
    folder: str, git_dir: str, *, message: str, left_out: Sequence[str] = LEFT_OUT
) -> Snapshot:
    """Commit a folder's files as they are to the private repository in `git_dir` (made when it is
    not there, with 0700), on its branch `main`. Nothing in the folder is written.

    Refused for a folder that git knows already, for one that cannot be read whole, and for a
    `git_dir` inside of it. Conflict when another process does the same just now.
    """
    folder, git_dir = os.path.realpath(folder), real(git_dir)
    if not os.path.isdir(folder):
        raise Refused(f"{folder} is no folder.", dir=folder, reason="not_a_folder")
    if git_dir == folder or git_dir.startswith(os.path.join(folder, "")):
        raise Refused(
            f"{git_dir}, where its files would be copied to, is inside of {folder}; start in a "
            "folder below that one, or set CORRAL_HOME to one outside of it.",
            dir=git_dir,
            reason="contains_data",
        )
    if is_in_git(folder):
        raise Refused(
            f"{folder} is in a git repository already; use that.",
            dir=folder,
            reason="already_a_repository",
        )
    _make_private(git_dir, left_out)
    found = Checkout(folder, git_dir, git_dir)
    before = found.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}").out.decode().strip()
    kept = os.path.join(git_dir, "snapshot-index")
    with scratch_index(found) as index:
        with suppress(FileNotFoundError):
            shutil.copyfile(kept, index)  # it knows which files have not changed since
        words = ("ls-files", "--cached", "--others", "--exclude-standard", "-z")
        names = git.names_in(found.told(*words, GIT_INDEX_FILE=index))
        plain = [name for name in names if not name.endswith("/")]
        found.told(*TAKE_IN, given=git.listed(plain), GIT_INDEX_FILE=index)
        made = found.told("write-tree", GIT_INDEX_FILE=index).decode().strip()
        os.replace(index, kept)
    left = [name for name in names if name.endswith("/")]
    if before and found.line("rev-parse", f"{before}^{{tree}}") == made:
        return Snapshot(before, False, left)
    parents = [before] if before else []
    whole = found.environment | git.NOBODY
    commit = git.commit_tree(folder, made, parents, message, environment=whole)
    done = found.run("update-ref", f"refs/heads/{BRANCH}", commit, before or "0" * len(commit))
    if done.code:
        raise Conflict(f"{git_dir} is written by another process just now; try again.", dir=git_dir)
    return Snapshot(commit, True, left)


def _make_private(git_dir: str, left_out: Sequence[str]) -> None:
    """Whole or not at all: a repository that was begun is not found under its name."""
    if not os.path.exists(os.path.join(git_dir, "HEAD")):
        above = os.path.dirname(git_dir)
        os.makedirs(above, mode=0o700, exist_ok=True)
        part = os.path.join(above, f".{os.path.basename(git_dir)}.{uuid4().hex}")
        os.mkdir(part, 0o700)
        try:
            words = ("init", "--quiet", "--bare", "--template=", f"--initial-branch={BRANCH}")
            git.told(above, *words, part)
            os.mkdir(os.path.join(part, "info"))
            os.rename(part, git_dir)
        except OSError:
            if not os.path.exists(os.path.join(git_dir, "HEAD")):  # somebody else was faster
                raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
    os.chmod(git_dir, 0o700)
    exclude = os.path.join(git_dir, "info", "exclude")
    part = f"{exclude}.{uuid4().hex}"
    with open(part, "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in left_out)
    os.replace(part, exclude)
