"""Run git, and read where a worktree belongs.

All calls of git start here. `run` and `check_output` ignore the caller's own repository (the
GIT_DIR of a hook, for instance), never prompt, and run no hook unless asked to. They are also used
in worktrees of agents, where a configured hook or monitor must not run as a program of Corral.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, NamedTuple

from corral.kernel.errors import Refused

if TYPE_CHECKING:
    import subprocess

SECONDS = 60.0
LONG_SECONDS = 600.0  # for commands that write a whole worktree on a slow disk
MAX_MESSAGE = 2_000
CORRAL_IDENTITY = {
    f"GIT_{role}_{field}": value
    for role in ("AUTHOR", "COMMITTER")
    for field, value in (("NAME", "corral"), ("EMAIL", "corral@localhost"))
}
# Variables that git sets for hooks; they name the repository of the hook, not the one asked for.
_HOOK_VARIABLES = frozenset(
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
_NO_HOOKS = (
    *("-c", "core.hooksPath=/dev/null"),
    *("-c", "core.fsmonitor=false"),
    *("-c", "gc.auto=0"),
    *("-c", "maintenance.auto=false"),
)


class GitResult(NamedTuple):
    """The result of a git command."""

    code: int
    out: bytes
    err: bytes

    @property
    def message(self) -> str:
        """The last part of its error output (or output), for error messages."""
        text = (self.err or self.out).decode(errors="replace").strip()[-MAX_MESSAGE:]
        return text or f"exit code {self.code}"


def run(
    top: str,
    *arguments: str,
    stdin: bytes = b"",
    environment: Mapping[str, str] | None = None,
    seconds: float = SECONDS,
    hooks: bool = False,
    pass_fds: Sequence[int] = (),
) -> GitResult:
    """Run git in a folder and wait for it, whatever its exit code.

    The descriptors in `pass_fds` stay open in git, even if this process dies. Raises Refused if git
    is not installed, when the folder does not exist, and after `seconds`; git is killed then.
    """
    import subprocess

    with _start(top, arguments, environment, hooks, pass_fds) as child:
        try:
            out, err = child.communicate(stdin, timeout=seconds)
        except subprocess.TimeoutExpired:
            raise Refused(f"git {arguments[0]} timed out after {seconds:g} s.", dir=top) from None
    return GitResult(child.returncode, out, err)


def check_output(
    top: str,
    *arguments: str,
    stdin: bytes = b"",
    environment: Mapping[str, str] | None = None,
    seconds: float = SECONDS,
    hooks: bool = False,
) -> bytes:
    """Run git and return its output. Raises Refused with the message of git when it fails."""
    result = run(
        top, *arguments, stdin=stdin, environment=environment, seconds=seconds, hooks=hooks
    )
    if result.code:
        raise git_error(top, arguments[0], result)
    return result.out


def commit_tree(
    top: str,
    tree: str,
    parents: Iterable[str],
    message: str,
    *,
    environment: Mapping[str, str] | None = None,
) -> str:
    """Create a commit of a tree and return its id. Moves no branch."""
    arguments = [word for parent in parents for word in ("-p", parent)]
    text = message.replace("\0", "").encode(errors="replace")
    return (
        check_output(top, "commit-tree", tree, *arguments, stdin=text, environment=environment)
        .decode()
        .strip()
    )


def parallel_checkout_options(top: str) -> tuple[str, ...]:
    """Return the options to check out files on all cores; empty if the user configured a number."""
    configured = run(top, "config", "checkout.workers").out
    return () if configured.strip() else ("-c", "checkout.workers=0")


def git_error(top: str, command: str, result: GitResult) -> Refused:
    """Return the error for a failed git command."""
    return Refused(f"git {command} failed in {top}: {result.message}", dir=top, reason="git_failed")


@contextmanager
def refuse_write_errors(top: str) -> Iterator[None]:
    """Convert OSError to Refused while files below a folder are written."""
    try:
        yield
    except OSError as error:
        raise Refused(
            f"Cannot write to {top}: {error.strerror or error}.",
            dir=top,
        ) from None


@contextmanager
def open_stream(
    top: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Run git and give its stdin and stdout; the process is killed on exit if still running.

    Raises Refused when the output was read to its end and git failed.
    """
    with _start(top, arguments, environment, False, ()) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        yield child.stdin, child.stdout
        child.stdin.close()
        if not child.stdout.read(1) and child.wait():
            assert child.stderr is not None
            raise git_error(
                top, arguments[0], GitResult(child.returncode, b"", child.stderr.read())
            )


@contextmanager
def _start(
    top: str,
    arguments: tuple[str, ...],
    environment: Mapping[str, str] | None,
    hooks: bool,
    pass_fds: Sequence[int],
) -> "Iterator[subprocess.Popen[bytes]]":
    import subprocess

    inherited = {name: value for name, value in os.environ.items() if name not in _HOOK_VARIABLES}
    try:
        child = subprocess.Popen(
            ["git", "--literal-pathspecs", *(() if hooks else _NO_HOOKS), *arguments],
            cwd=top,
            env=inherited | {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"} | dict(environment or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=pass_fds,
        )
    except (FileNotFoundError, NotADirectoryError):
        raise Refused(
            "git is not on the PATH, or the directory does not exist.",
            dir=top,
            reason="git_unavailable",
        ) from None
    with child:
        try:
            yield child
        finally:
            if child.poll() is None:
                child.kill()


def find_worktree_root(path: str) -> str | None:
    """Return the top folder of the worktree that contains a path, or None.

    The path need not exist.
    """
    folder = path
    while True:
        if os.path.lexists(os.path.join(folder, ".git")):
            return folder
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent


def path_in_main_worktree(path: str) -> str:
    """Map a path in a linked worktree to the same file in the main worktree.

    Other paths are returned unchanged.
    """
    top = find_worktree_root(path)
    main = find_main_worktree(top) if top is not None else None
    if top is None or main is None:
        return path
    return os.path.normpath(os.path.join(main, os.path.relpath(path, top)))


def is_linked_worktree(dir: str) -> bool:
    """Whether a directory is in a linked worktree.

    Uncommitted files of the project's own directory, such as hooks, are missing there.
    """
    top = find_worktree_root(os.path.realpath(dir))
    return top is not None and find_main_worktree(top) is not None


def find_main_worktree(top: str) -> str | None:
    """Return the main worktree of a linked one; None for other folders and bare repositories."""
    try:
        with open(os.path.join(top, ".git"), encoding="utf-8") as file:
            kind, _, target = file.read(8_192).partition(":")
        folder = os.path.join(top, target.strip())
        if kind != "gitdir" or os.path.basename(os.path.dirname(folder)) != "worktrees":
            return None
        with open(os.path.join(folder, "commondir"), encoding="utf-8") as file:
            common = os.path.realpath(os.path.join(folder, file.read(8_192).strip()))
    except (OSError, ValueError):
        return None
    return os.path.dirname(common) if os.path.basename(common) == ".git" else None


def find_hooks_folder(top: str) -> str | None:
    """Return the hooks folder of a worktree; None if it is not a git worktree."""
    output = try_output(top, "rev-parse", "--git-path", "hooks")
    return None if output is None else os.path.join(top, os.fsdecode(output.rstrip(b"\n")))


def decode_name(name: str) -> str:
    """Decode a file name to text that a store accepts; invalid bytes are replaced."""
    return os.fsencode(name).decode(errors="replace")


def list_staged(top: str) -> list[str]:
    """List the files of the commit in progress, relative to the top; includes deleted files."""
    return _list_names(
        top, "diff", "--cached", "--name-only", "-z", "--no-renames", "--no-ext-diff"
    )


def _list_names(top: str, *arguments: str) -> list[str]:
    output = try_output(top, *arguments)
    if output is None:
        raise Refused(f"Cannot read the state of {top}. Check it with `git status`.", dir=top)
    return split_names(output)


def split_names(listed: bytes) -> list[str]:
    """Split a NUL-terminated list of names, as git prints with -z."""
    return [os.fsdecode(name) for name in listed.split(b"\0") if name]


def join_names(names: Iterable[str]) -> bytes:
    """Join names to a NUL-terminated list, as git reads with -z."""
    return b"".join(os.fsencode(name) + b"\0" for name in names)


def try_output(top: str, *arguments: str, seconds: float = SECONDS) -> bytes | None:
    """Run git and return its output; None when it fails.

    A light variant for supervisors and hooks. It keeps the environment: a hook asks about the
    commit in progress.
    """
    from corral.adapters.processes.subprocesses import (
        capture_output,  # imported late: some hooks never need it
    )

    return capture_output(["git", "-C", top, *arguments], {"GIT_OPTIONAL_LOCKS": "0"}, seconds)


def list_changes(top: str) -> dict[str, str]:
    """Return the files that differ from the last commit, with the two-letter status of git."""
    entries = _list_names(
        top, "status", "--porcelain=v1", "-z", "--untracked-files=all", "--no-renames"
    )
    return {entry[3:]: entry[:2] for entry in entries}
