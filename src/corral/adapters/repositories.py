"""A private repository for a folder that is in no git repository.

Its git folder is elsewhere and for its user alone; the folder itself is only read. The private
repository is a bare one: worktrees and merges name it by its git folder.
"""

from collections.abc import Sequence

import msgspec

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
    raise NotImplementedError


def snapshot(
    folder: str, git_dir: str, *, message: str, left_out: Sequence[str] = LEFT_OUT
) -> Snapshot:
    """Commit a folder's files as they are to the private repository in `git_dir` (made when it is
    not there, with 0700), on its branch `main`. Nothing in the folder is written.

    Refused for a folder that git knows already, for one that cannot be read whole, and for a
    `git_dir` inside of it.
    """
    raise NotImplementedError
