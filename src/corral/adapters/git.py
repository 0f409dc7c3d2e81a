"""Git: where a worktree belongs, read from its files; all else is asked of the program.

Whoever calls the program calls it from here. `run` and `told` take no part of the caller's own
repository (a hook's GIT_DIR), ask nobody anything, and run no hook unless told to: the worktrees of
agents are looked at too, and what an agent left there must not come to be a program of ours.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, NamedTuple

from corral.kernel.errors import Refused

if TYPE_CHECKING:
    import subprocess

SECONDS = 60.0
LONG_SECONDS = 600.0  # for what writes a whole worktree, on a slow disk
MAX_SAID = 2_000
NOBODY = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "corral"), ("EMAIL", "corral@localhost"))
}
# What a hook of git, or whoever calls from one, has in its environment for another repository.
_LOCAL = frozenset(
    f"GIT_{name}"
    for name in (
        "ALTERNATE_OBJECT_DIRECTORIES",
        "COMMON_DIR",
        "CONFIG",
        "CONFIG_COUNT",
        "CONFIG_PARAMETERS",
        "DIR",
        "GRAFT_FILE",
        "IMPLICIT_WORK_TREE",
        "INDEX_FILE",
        "INTERNAL_SUPER_PREFIX",
        "NO_REPLACE_OBJECTS",
        "OBJECT_DIRECTORY",
        "PREFIX",
        "REPLACE_REF_BASE",
        "SHALLOW_FILE",
        "WORK_TREE",
    )
)
_NO_PROGRAMS = (
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "core.fsmonitor=false"),
    *("-c", "gc.auto=0"),
    *("-c", "maintenance.auto=false"),
)


class Done(NamedTuple):
    """How a call of git ended."""

    code: int
    out: bytes
    err: bytes

    @property
    def said(self) -> str:
        """What it said last, for a person."""
        text = (self.err or self.out).decode(errors="replace").strip()[-MAX_SAID:]
        return text or f"it ended with {self.code}"


def run(
    top: str,
    *words: str,
    given: bytes = b"",
    environment: Mapping[str, str] | None = None,
    seconds: float = SECONDS,
    hooks: bool = False,
    keeps: Sequence[int] = (),
) -> Done:
    """Call git in a folder, and wait for its end, whatever that is. Descriptors that it `keeps`
    stay open for as long as it goes, also when this process dies.

    Refused when there is no git, no such folder, or when it takes too long; it is ended then.
    """
    import subprocess

    with _started(top, words, environment, hooks, keeps) as child:
        try:
            out, err = child.communicate(given, timeout=seconds)
        except subprocess.TimeoutExpired:
            raise Refused(f"git {words[0]} took longer than {seconds:g} s.", dir=top) from None
    return Done(child.returncode, out, err)


def told(
    top: str,
    *words: str,
    given: bytes = b"",
    environment: Mapping[str, str] | None = None,
    seconds: float = SECONDS,
    hooks: bool = False,
) -> bytes:
    """The same, for a call that must go well: what it printed. Refused with what git said."""
    done = run(top, *words, given=given, environment=environment, seconds=seconds, hooks=hooks)
    if done.code:
        raise failed(top, words[0], done)
    return done.out


def commit_tree(
    top: str,
    tree: str,
    parents: Iterable[str],
    message: str,
    *,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Make a commit of a tree; its id. No branch is moved."""
    words = [word for parent in parents for word in ("-p", parent)]
    text = message.replace("\0", "").encode(errors="replace")
    return (
        told(top, "commit-tree", tree, *words, given=text, environment=environment).decode().strip()
    )


def on_all_cores(top: str) -> tuple[str, ...]:
    """The words that have git write many files on all cores; none when its user has said on how
    many."""
    said = run(top, "config", "checkout.workers").out
    return () if said.strip() else ("-c", "checkout.workers=0")


def failed(top: str, word: str, done: Done) -> Refused:
    """What to raise for a call that did not go well."""
    return Refused(f"git {word} failed in {top}: {done.said}", dir=top, reason="git_failed")


@contextmanager
def writing(top: str) -> Iterator[None]:
    """While files are written below a folder: Refused says what the disk would not do."""
    try:
        yield
    except OSError as error:
        raise Refused(
            f"{top} cannot be written: {error.strerror or error}; make room or correct that, and "
            "try again.",
            dir=top,
        ) from None


@contextmanager
def reading(
    top: str,
    *words: str,
    environment: Mapping[str, str] | None = None,
) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """A call of git as it goes: what is said to it, and what it says. It is gone afterwards.

    Refused when all was read and git says that it did not go well.
    """
    with _started(top, words, environment, False, ()) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        yield child.stdin, child.stdout
        child.stdin.close()
        if not child.stdout.read(1) and child.wait():
            assert child.stderr is not None
            raise failed(top, words[0], Done(child.returncode, b"", child.stderr.read()))


@contextmanager
def _started(
    top: str,
    words: tuple[str, ...],
    environment: Mapping[str, str] | None,
    hooks: bool,
    keeps: Sequence[int],
) -> "Iterator[subprocess.Popen[bytes]]":
    import subprocess

    own = {name: value for name, value in os.environ.items() if name not in _LOCAL}
    try:
        child = subprocess.Popen(
            ["git", "--literal-pathspecs", *(() if hooks else _NO_PROGRAMS), *words],
            cwd=top,
            env=own | {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"} | dict(environment or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=keeps,
        )
    except (FileNotFoundError, NotADirectoryError):
        raise Refused(
            "git is not on the PATH, or the folder is gone.", dir=top, reason="git_unavailable"
        ) from None
    with child:
        try:
            yield child
        finally:
            if child.poll() is None:
                child.kill()


def worktree_of(path: str) -> str | None:
    """The top of the worktree that a path is in; it need not exist yet."""
    folder = path
    while True:
        if os.path.lexists(os.path.join(folder, ".git")):
            return folder
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above


def main_path(path: str) -> str:
    """The path that a file of a linked worktree has in the repository's main one; others stay."""
    top = worktree_of(path)
    main = main_worktree(top) if top is not None else None
    if top is None or main is None:
        return path
    return os.path.normpath(os.path.join(main, os.path.relpath(path, top)))


def main_worktree(top: str) -> str | None:
    """The main worktree of a linked one; None for any other folder, and for a bare repository."""
    try:
        with open(os.path.join(top, ".git"), encoding="utf-8") as file:
            kind, _, where = file.read(8_192).partition(":")
        folder = os.path.join(top, where.strip())
        if kind != "gitdir" or os.path.basename(os.path.dirname(folder)) != "worktrees":
            return None
        with open(os.path.join(folder, "commondir"), encoding="utf-8") as file:
            common = os.path.realpath(os.path.join(folder, file.read(8_192).strip()))
    except (OSError, ValueError):
        return None
    return os.path.dirname(common) if os.path.basename(common) == ".git" else None


def hooks_folder(top: str) -> str | None:
    """Where a worktree's hooks are; None when git does not know it."""
    found = ask(top, "rev-parse", "--git-path", "hooks")
    return None if found is None else os.path.join(top, os.fsdecode(found.rstrip(b"\n")))


def storable(name: str) -> str:
    """A file's name as text that a store keeps; names need not be text."""
    return os.fsencode(name).decode(errors="replace")


def staged(top: str) -> list[str]:
    """The files of the commit that is being made, removed ones too, from the worktree's top."""
    return _names(top, "diff", "--cached", "--name-only", "-z", "--no-renames", "--no-ext-diff")


def _names(top: str, *words: str) -> list[str]:
    found = ask(top, *words)
    if found is None:
        raise Refused(f"git could not say what is in {top}; look at it with `git status`.", dir=top)
    return names_in(found)


def names_in(listed: bytes) -> list[str]:
    """The names in a list of git's that ends each with a zero."""
    return [os.fsdecode(name) for name in listed.split(b"\0") if name]


def listed(names: Iterable[str]) -> bytes:
    """Such a list."""
    return b"".join(os.fsencode(name) + b"\0" for name in names)


def ask(top: str, *words: str, seconds: float = SECONDS) -> bytes | None:
    """What git prints; None when it does not go well. It is the light way, for keepers and hooks,
    and takes the environment as it is: a hook asks about the commit that is being made."""
    from corral.adapters.subprocesses import (
        capture_output,  # not in hooks that only read a worktree's files
    )

    return capture_output(["git", "-C", top, *words], {"GIT_OPTIONAL_LOCKS": "0"}, seconds)


def changed(top: str) -> dict[str, str]:
    """The files that differ from the last commit, each with git's two letters for how."""
    found = _names(top, "status", "--porcelain=v1", "-z", "--untracked-files=all", "--no-renames")
    return {entry[3:]: entry[:2] for entry in found}
