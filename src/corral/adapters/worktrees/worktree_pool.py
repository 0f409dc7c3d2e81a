"""A pool of files from removed worktrees, reused to create the next one faster.

An entry is a plain folder that git does not know. An agent wrote it, so nothing in it is trusted.
Each file that a new worktree reuses is compared with the commit by content, not by what an index
claims, and everything else is deleted. Git does the comparison because it is several times faster;
files that git would convert first are compared here. A crash leaves an intact entry, a claimed one
that `delete_abandoned` deletes, or an incomplete worktree that `worktrees.create` creates again.
"""

import fcntl
import hashlib
import os
import stat
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

from corral.adapters.git import git
from corral.adapters.worktrees.worktree_leftovers import delete_tree
from corral.adapters.worktrees.worktree_registry import Checkout, find_common_dir
from corral.config import make_private_folder
from corral.kernel.open_files import require_unused

REPOSITORY_FILE = "repository"  # file beside the entries; contains the path of the repository
CLAIM_PREFIX = ".taken-"  # names of claimed entries
SYMLINK_MODE = 0o120000
SUBMODULE_MODE = 0o160000
EXECUTABLE_MODE = 0o100755
MAX_COMPARED_BYTES = 64 << 20  # larger files are checked out again instead
CHECKOUT_ATTRIBUTES = ("eol", "filter", "ident", "working-tree-encoding", "crlf")
COMPARISON_ATTRIBUTES = ("text",)
NO_CONVERSION = ("-c", "core.autocrlf=false")  # makes git compare bytes
ATTRIBUTES_FILE = b".gitattributes"


class WorktreePool(NamedTuple):
    """The pool of one repository."""

    folder: str
    max_entries: int
    """Maximum number of entries."""


class PoolEntry(NamedTuple):
    """A folder in a pool."""

    folder: str
    repository: str
    added_at: int
    """When it was added, in milliseconds."""


def find_pool(root: str, repository: str, max_entries: int) -> WorktreePool:
    """Return the pool of a repository below `root`, the folder of all pools."""
    name = hashlib.sha256(os.fsencode(find_common_dir(repository))).hexdigest()[:24]
    return WorktreePool(os.path.join(root, name), max_entries)


def list_entries(root: str) -> list[PoolEntry]:
    """List the entries of all pools, oldest first."""
    entries = []
    for pool in _list_pools(root):
        try:
            with open(os.path.join(pool, REPOSITORY_FILE), "rb") as file:
                repository = os.fsdecode(file.read(65_536))
        except OSError:
            repository = ""
        for entry in _list_folders(pool):
            with suppress(OSError):
                entries.append(PoolEntry(entry, repository, _read_added_at(entry)))
    return sorted(entries, key=lambda item: item.added_at)


def list_committed_files(checkout: Checkout) -> set[bytes] | None:
    """List the files of a worktree's last commit; None if it has submodules or no commit."""
    result = checkout.run("ls-tree", "-r", "-z", "--full-tree", "HEAD")
    entries = [entry for entry in result.out.split(b"\0") if entry]
    if result.code or any(entry.startswith(b"160000 ") for entry in entries):
        return None
    return {entry.partition(b"\t")[2] for entry in entries}


def add_entry(folder: str, names: Container[bytes], repository: str, pool: WorktreePool) -> bool:
    """Move a folder into the pool, after deleting all files but `names`.

    False: the pool is full or the move failed; the folder stays where it is.
    """
    if pool.max_entries < 1:
        return False
    try:
        make_private_folder(Path(pool.folder))
        with _hold_lock(pool.folder):
            if len(_list_folders(pool.folder)) >= pool.max_entries:
                return False
            with open(os.path.join(pool.folder, REPOSITORY_FILE), "wb") as file:
                file.write(os.fsencode(find_common_dir(repository)))
            delete_all_except(folder, names)
            os.utime(folder)
            os.rename(folder, os.path.join(pool.folder, uuid4().hex))
    except (OSError, RecursionError):  # another file system, a full disk, or unreadable content
        return False
    return True


def delete_entry(entry: str) -> None:
    """Delete an entry. Does nothing if another process has claimed it."""
    with suppress(OSError), _claim(entry) as claimed:
        delete_tree(claimed)
    with suppress(OSError):
        pool = os.path.dirname(entry)
        if os.listdir(pool) == [REPOSITORY_FILE]:
            delete_tree(os.path.join(pool, REPOSITORY_FILE))
        os.rmdir(pool)


def delete_abandoned(root: str) -> None:
    """Delete entries that were claimed by a process that died."""
    for pool in _list_pools(root):
        for name in os.listdir(pool):
            if name.startswith(CLAIM_PREFIX):
                with suppress(OSError), _try_lock(os.path.join(pool, name)):
                    delete_tree(os.path.join(pool, name))


@contextmanager
def claim_newest(pool: WorktreePool) -> Iterator[str | None]:
    """Claim the newest entry exclusively; None: the pool is empty.

    On exit, the files that were not reused are deleted.
    """
    with ExitStack() as stack:
        claimed = None
        for entry in sorted(_list_folders(pool.folder), key=_read_added_at_or_zero, reverse=True):
            with suppress(OSError):  # another process claimed it first
                claimed = stack.enter_context(_claim(entry))
                stack.callback(delete_tree, claimed)
                break
        yield claimed


def _list_pools(root: str) -> list[str]:
    with suppress(FileNotFoundError):
        return sorted(os.path.join(root, name) for name in os.listdir(root))
    return []


def _list_folders(pool: str) -> list[str]:
    with suppress(FileNotFoundError, NotADirectoryError):
        names = os.listdir(pool)
        return [
            os.path.join(pool, name)
            for name in names
            if name[:1] != "." and name != REPOSITORY_FILE
        ]
    return []


def _read_added_at(entry: str) -> int:
    return os.stat(entry).st_mtime_ns // 1_000_000


def _read_added_at_or_zero(entry: str) -> int:
    try:
        return _read_added_at(entry)
    except OSError:
        return 0


@contextmanager
def _hold_lock(folder: str) -> Iterator[int]:
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)


@contextmanager
def _try_lock(folder: str) -> Iterator[None]:
    """Lock a folder during the block; raises OSError when another process holds it."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


@contextmanager
def _claim(entry: str) -> Iterator[str]:
    """Rename an entry so that no other process claims it; raises OSError when one has already."""
    with _try_lock(entry):
        claimed = os.path.join(os.path.dirname(entry), f"{CLAIM_PREFIX}{uuid4().hex}")
        os.rename(entry, claimed)
        yield claimed


# -- reuse -----------------------------------------------------------------------------------------


class _IndexEntry(NamedTuple):
    mode: int
    id: str


def can_reuse_files(repository: str) -> bool:
    """Whether worktrees of a repository contain exactly the bytes of its commits.

    Line-end conversion and sparse checkouts prevent that.
    """
    arguments = ("config", "--get-regexp", r"^core\.(autocrlf|eol|sparsecheckout)$")
    lines = git.run(repository, *arguments).out.decode(errors="replace").lower().split("\n")
    return not any(line.partition(" ")[2] not in ("", "false", "lf", "input") for line in lines)


def fill_worktree(checkout: Checkout, commit: str, entry: str) -> bool:
    """Fill an empty worktree with the files of a commit, reusing those of `entry` that match.

    False: the commit has submodules, and nothing was changed.
    """
    checkout.check_output("read-tree", commit)
    wanted = _read_index(checkout)
    if any(index_entry.mode == SUBMODULE_MODE for index_entry in wanted.values()):
        return False
    for name in _filter_by_attributes(checkout, wanted, CHECKOUT_ATTRIBUTES):
        del wanted[name]
    compared_here = _filter_by_attributes(checkout, wanted, COMPARISON_ATTRIBUTES)
    # Git reads .gitattributes from the worktree, so an agent's version must not be there during the
    # comparison.
    compared_here.update(
        name for name in wanted if name.rpartition(b"/")[2].lower() == ATTRIBUTES_FILE
    )
    file_mode = stat.S_IMODE(os.lstat(os.path.join(checkout.folder, ".git")).st_mode)
    executable_mode = _add_execute(file_mode)

    def is_kept(name: bytes, entry: "os.DirEntry[bytes]") -> bool:
        index_entry = wanted.get(name)
        mode = (
            executable_mode
            if index_entry is not None and index_entry.mode == EXECUTABLE_MODE
            else file_mode
        )
        if index_entry is None or not _has_mode(entry, index_entry, mode):
            return False
        return (
            _has_same_content(entry, index_entry)
            if index_entry.mode == SYMLINK_MODE or name in compared_here
            else True
        )

    _prune(os.fsencode(entry), is_kept, executable_mode)
    for remaining in os.listdir(entry):
        os.rename(os.path.join(entry, remaining), os.path.join(checkout.folder, remaining))
    # The index has no stat data yet, so git reads every file. It fails if any differs; that is
    # expected, and checkout-index rewrites those.
    checkout.run(*NO_CONVERSION, "update-index", "-q", "--really-refresh")
    checkout.check_output("checkout-index", "--force", "--all", "--index", "--quiet")
    return True


def _read_index(checkout: Checkout) -> dict[bytes, _IndexEntry]:
    entries = checkout.check_output("ls-files", "--stage", "-z").split(b"\0")
    parts = (entry.partition(b"\t") for entry in entries if entry)
    return {
        name: _IndexEntry(int(fields[:6], 8), fields[7:].partition(b" ")[0].decode())
        for fields, _, name in parts
    }


def _filter_by_attributes(
    checkout: Checkout, names: Iterable[bytes], attributes: Sequence[str]
) -> set[bytes]:
    """Return the files for which one of these attributes makes git convert the content."""
    data = b"".join(name + b"\0" for name in names)
    listing = checkout.check_output(
        "check-attr", "-z", "--stdin", "--cached", *attributes, stdin=data
    )
    fields = listing.split(b"\0")
    return {
        name
        for name, value in zip(fields[::3], fields[2::3], strict=False)
        if value not in (b"unspecified", b"unset", b"lf")
    }


def delete_all_except(folder: str, names: Container[bytes]) -> None:
    """Delete everything below a folder except these files."""
    _prune(os.fsencode(folder), lambda name, _: name in names, 0o700)


def _prune(
    folder: bytes,
    is_kept: "Callable[[bytes, os.DirEntry[bytes]], bool]",
    mode: int,
    prefix: bytes = b"",
) -> bool:
    """Delete everything below a folder except the files that stay; return whether any stays.

    Folders that remain get `mode`.
    """
    os.chmod(folder, mode)
    any_kept = False
    for entry in [*os.scandir(folder)]:
        name = prefix + entry.name
        if entry.is_dir(follow_symlinks=False):
            kept = _prune(entry.path, is_kept, mode, name + b"/")
        else:
            kept = is_kept(name, entry)
        if not kept:
            delete_tree(os.fsdecode(entry.path))
        any_kept = any_kept or kept
    return any_kept


def _add_execute(mode: int) -> int:
    """Add execute permission wherever `mode` has read permission."""
    return mode | (mode & 0o444) >> 2


def _has_mode(entry: "os.DirEntry[bytes]", index_entry: _IndexEntry, mode: int) -> bool:
    status = entry.stat(follow_symlinks=False)
    if status.st_nlink != 1:  # a hard link: another process could change the content later
        return False
    if index_entry.mode == SYMLINK_MODE:
        return stat.S_ISLNK(status.st_mode)
    return stat.S_ISREG(status.st_mode) and stat.S_IMODE(status.st_mode) == mode


def _has_same_content(entry: "os.DirEntry[bytes]", index_entry: _IndexEntry) -> bool:
    if index_entry.mode == SYMLINK_MODE:
        return _hash_blob(os.readlink(entry.path), index_entry.id) == index_entry.id
    require_unused(entry.path, follow=False)
    file = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(file, "rb", buffering=0) as opened:
        content = opened.read(MAX_COMPARED_BYTES + 1)
    return (
        len(content) <= MAX_COMPARED_BYTES and _hash_blob(content, index_entry.id) == index_entry.id
    )


def _hash_blob(content: bytes, like: str) -> str:
    """Return the git object id of a blob with this content."""
    digest = hashlib.sha256() if len(like) == 64 else hashlib.sha1(usedforsecurity=False)
    digest.update(b"blob %d\0" % len(content))
    digest.update(content)
    return digest.hexdigest()
