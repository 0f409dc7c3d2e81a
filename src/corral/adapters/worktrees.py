"""Git worktrees: a place of its own for each piece of work, on a branch of its own.

Nothing here removes anything: what was left in a worktree is found there again.
"""

import os
import re
import subprocess
from pathlib import Path

GIT_SECONDS = 60.0
MAX_TOLD = 300


class NoWorktree(Exception):
    """There is no worktree to be had; the text says why."""


def make(repository: str, folder: Path, branch: str) -> str:
    """A worktree of a repository in `folder`, on `branch`; the directory that stands for
    `repository` in it comes back.

    One that is there already is taken as it is, with all that was left in it.
    """
    try:
        inside = _git(repository, "rev-parse", "--show-prefix")
    except NoWorktree as error:
        raise NoWorktree(f"{repository} is no git repository ({error})") from None
    if not (folder / ".git").exists():
        _git(repository, "rev-parse", "--verify", "HEAD")
        known = _succeeds(repository, "rev-parse", "--verify", "--quiet", f"refs/heads/{branch}")
        # A branch that is known is from a worktree whose folder is gone; git remembers it still.
        words = ["--force", str(folder), branch] if known else ["-b", branch, str(folder), "HEAD"]
        _git(repository, "worktree", "add", "--quiet", *words)
    return str(folder / inside) if inside else str(folder)


def branch_name(key: str, unique: str) -> str:
    """A branch for a task: git takes the name, and no other task has it."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", key).strip("-") or "task"
    return f"corral/{plain[:60]}-{unique[-6:]}"


def _git(repository: str, *words: str) -> str:
    done = _run(repository, *words)
    if done.returncode != 0:
        told = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise NoWorktree((told or f"git {words[0]} ended with {done.returncode}")[:MAX_TOLD])
    return done.stdout.decode(errors="surrogateescape").strip()


def _succeeds(repository: str, *words: str) -> bool:
    return _run(repository, *words).returncode == 0


def _run(repository: str, *words: str) -> "subprocess.CompletedProcess[bytes]":
    try:
        return subprocess.run(
            ["git", "-C", repository, *words],
            env=os.environ | {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise NoWorktree("git is not installed") from None
    except subprocess.TimeoutExpired:
        raise NoWorktree(f"git {words[0]} took too long") from None
