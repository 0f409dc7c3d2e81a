"""Files of worktrees that are done with, kept for the next one: most of its own are among them.

What is kept is a plain folder that git does not know. It was an agent's, so nothing of it is
trusted: what the next worktree takes over is compared byte for byte with what belongs there, by its
content and not by what an index says of it, and all the rest is deleted. Git does that, several
times as fast as it can be done here; what git would convert before it compares is compared here. A
crash leaves an entry in the pool, one that `sweep` deletes, or a worktree that `worktrees.make`
makes anew.
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

from corral.adapters import git
from corral.adapters.checkouts import Checkout, common_dir
from corral.adapters.leftovers import delete
from corral.config import make_private_folder
from corral.kernel.open_files import require_unused

WHOSE = "repository"  # the file beside the entries that names the repository
TAKEN = ".taken-"  # the start of the name of an entry that somebody is at
LINK = 0o120000
SUBMODULE = 0o160000
PROGRAM = 0o100755
MOST_BYTES = 64 << 20  # what is larger is written anew instead of being read here
WRITTEN_OTHERWISE = ("eol", "filter", "ident", "working-tree-encoding", "crlf")
READ_OTHERWISE = ("text",)
AS_IT_IS = ("-c", "core.autocrlf=false")  # how git compares what has none of these attributes
ATTRIBUTES = b".gitattributes"


class Pool(NamedTuple):
    """The pool of one repository."""

    folder: str
    most: int
    """How many it may hold."""


class Pooled(NamedTuple):
    """What is in a pool."""

    folder: str
    repository: str
    kept_at: int
    """When it came there, in milliseconds."""


def pool_of(root: str, repository: str, most: int) -> Pool:
    """The pool of a repository, below a folder for the pools of all."""
    name = hashlib.sha256(os.fsencode(common_dir(repository))).hexdigest()[:24]
    return Pool(os.path.join(root, name), most)


def pooled(root: str) -> list[Pooled]:
    """What is in the pools, oldest first."""
    found = []
    for pool in _folders(root):
        try:
            with open(os.path.join(pool, WHOSE), "rb") as file:
                repository = os.fsdecode(file.read(65_536))
        except OSError:
            repository = ""
        for entry in _entries(pool):
            with suppress(OSError):
                found.append(Pooled(entry, repository, _kept_at(entry)))
    return sorted(found, key=lambda each: each.kept_at)


def files_of(found: Checkout) -> set[bytes] | None:
    """The files of a worktree's last commit; None when it has submodules, or no commit."""
    done = found.run("ls-tree", "-r", "-z", "--full-tree", "HEAD")
    entries = [entry for entry in done.out.split(b"\0") if entry]
    if done.code or any(entry.startswith(b"160000 ") for entry in entries):
        return None
    return {entry.partition(b"\t")[2] for entry in entries}


def keep(folder: str, names: Container[bytes], repository: str, pool: Pool) -> bool:
    """Take a folder into the pool, with no other files than these; False when there is no room, and
    then it stays where it is."""
    if pool.most < 1:
        return False
    try:
        make_private_folder(Path(pool.folder))
        with _held(pool.folder):
            if len(_entries(pool.folder)) >= pool.most:
                return False
            with open(os.path.join(pool.folder, WHOSE), "wb") as file:
                file.write(os.fsencode(common_dir(repository)))
            only(folder, names)
            os.utime(folder)
            os.rename(folder, os.path.join(pool.folder, uuid4().hex))
    except (OSError, RecursionError):  # another disk, a full one, or made so that nobody can read
        return False
    return True


def drop(entry: str) -> None:
    """Delete what is in the pool; no harm when somebody has taken it, or is at it."""
    with suppress(OSError), _claimed(entry) as apart:
        delete(apart)
    with suppress(OSError):
        pool = os.path.dirname(entry)
        if os.listdir(pool) == [WHOSE]:
            delete(os.path.join(pool, WHOSE))
        os.rmdir(pool)


def sweep(root: str) -> None:
    """Delete what was taken from the pools by a process that died over it."""
    for pool in _folders(root):
        for name in os.listdir(pool):
            if name.startswith(TAKEN):
                with suppress(OSError), _locked(os.path.join(pool, name)):
                    delete(os.path.join(pool, name))


@contextmanager
def taken(pool: Pool) -> Iterator[str | None]:
    """The newest entry, which nobody else gets; what is left of it goes. None: there is none."""
    with ExitStack() as stack:
        apart = None
        for entry in sorted(_entries(pool.folder), key=_kept_at_or_never, reverse=True):
            with suppress(OSError):  # another process was faster
                apart = stack.enter_context(_claimed(entry))
                stack.callback(delete, apart)
                break
        yield apart


def _folders(root: str) -> list[str]:
    with suppress(FileNotFoundError):
        return sorted(os.path.join(root, name) for name in os.listdir(root))
    return []


def _entries(pool: str) -> list[str]:
    with suppress(FileNotFoundError, NotADirectoryError):
        names = os.listdir(pool)
        return [os.path.join(pool, name) for name in names if name[:1] != "." and name != WHOSE]
    return []


def _kept_at(entry: str) -> int:
    return os.stat(entry).st_mtime_ns // 1_000_000


def _kept_at_or_never(entry: str) -> int:
    try:
        return _kept_at(entry)
    except OSError:
        return 0


@contextmanager
def _held(folder: str) -> Iterator[int]:
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)


@contextmanager
def _locked(folder: str) -> Iterator[None]:
    """A folder that no other process is at; OSError when one is."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


@contextmanager
def _claimed(entry: str) -> Iterator[str]:
    """An entry under another name; OSError when another process was faster."""
    with _locked(entry):
        apart = os.path.join(os.path.dirname(entry), f"{TAKEN}{uuid4().hex}")
        os.rename(entry, apart)
        yield apart


# -- taking files over -----------------------------------------------------------------------------


class _Wanted(NamedTuple):
    mode: int
    id: str


def can_fill(repository: str) -> bool:
    """Whether worktrees of a repository hold what its commits hold: all of it, as it is there."""
    words = ("config", "--get-regexp", r"^core\.(autocrlf|eol|sparsecheckout)$")
    told = git.run(repository, *words).out.decode(errors="replace").lower().split("\n")
    return not any(line.partition(" ")[2] not in ("", "false", "lf", "input") for line in told)


def fill(found: Checkout, commit: str, entry: str) -> bool:
    """Fill a worktree that has no files yet with those of a commit, from an entry of the pool where
    that has them, byte for byte; False, and nothing is done, when it has submodules."""
    found.told("read-tree", commit)
    wanted = _wanted(found)
    if any(each.mode == SUBMODULE for each in wanted.values()):
        return False
    for name in _with_attributes(found, wanted, WRITTEN_OTHERWISE):
        del wanted[name]
    by_hand = _with_attributes(found, wanted, READ_OTHERWISE)
    # Git reads these in the worktree: an agent's must not be there when it compares the rest.
    by_hand.update(name for name in wanted if name.rpartition(b"/")[2].lower() == ATTRIBUTES)
    plain = stat.S_IMODE(os.lstat(os.path.join(found.folder, ".git")).st_mode)
    program = _searchable(plain)

    def stays(name: bytes, entry: "os.DirEntry[bytes]") -> bool:
        each = wanted.get(name)
        mode = program if each is not None and each.mode == PROGRAM else plain
        if each is None or not _is_of_its_kind(entry, each, mode):
            return False
        return _has_content(entry, each) if each.mode == LINK or name in by_hand else True

    _strip(os.fsencode(entry), stays, program)
    for left in os.listdir(entry):
        os.rename(os.path.join(entry, left), os.path.join(found.folder, left))
    # The index knows of no file yet, so each is read; those that differ are told as a failure.
    found.run(*AS_IT_IS, "update-index", "-q", "--really-refresh")
    found.told("checkout-index", "--force", "--all", "--index", "--quiet")
    return True


def _wanted(found: Checkout) -> dict[bytes, _Wanted]:
    entries = found.told("ls-files", "--stage", "-z").split(b"\0")
    parts = (entry.partition(b"\t") for entry in entries if entry)
    return {
        name: _Wanted(int(facts[:6], 8), facts[7:].partition(b" ")[0].decode())
        for facts, _, name in parts
    }


def _with_attributes(found: Checkout, names: Iterable[bytes], asked: Sequence[str]) -> set[bytes]:
    """Files that git converts when it writes or reads them."""
    given = b"".join(name + b"\0" for name in names)
    told = found.told("check-attr", "-z", "--stdin", "--cached", *asked, given=given)
    fields = told.split(b"\0")
    return {
        name
        for name, value in zip(fields[::3], fields[2::3], strict=False)
        if value not in (b"unspecified", b"unset", b"lf")
    }


def only(folder: str, names: Container[bytes]) -> None:
    """Delete all below a folder but these files."""
    _strip(os.fsencode(folder), lambda name, _: name in names, 0o700)


def _strip(
    folder: bytes,
    stays: "Callable[[bytes, os.DirEntry[bytes]], bool]",
    mode: int,
    above: bytes = b"",
) -> bool:
    """Delete all below a folder but the files that stay; whether there are any. Folders that have
    some get a mode."""
    os.chmod(folder, mode)
    some = False
    for entry in [*os.scandir(folder)]:
        name = above + entry.name
        if entry.is_dir(follow_symlinks=False):
            left = _strip(entry.path, stays, mode, name + b"/")
        else:
            left = stays(name, entry)
        if not left:
            delete(os.fsdecode(entry.path))
        some = some or left
    return some


def _searchable(mode: int) -> int:
    """The mode of a folder or a program where this is that of a file."""
    return mode | (mode & 0o444) >> 2


def _is_of_its_kind(entry: "os.DirEntry[bytes]", wanted: _Wanted, mode: int) -> bool:
    facts = entry.stat(follow_symlinks=False)
    if facts.st_nlink != 1:  # others could change it under its next owner
        return False
    if wanted.mode == LINK:
        return stat.S_ISLNK(facts.st_mode)
    return stat.S_ISREG(facts.st_mode) and stat.S_IMODE(facts.st_mode) == mode


def _has_content(entry: "os.DirEntry[bytes]", wanted: _Wanted) -> bool:
    if wanted.mode == LINK:
        return _id(os.readlink(entry.path), wanted.id) == wanted.id
    require_unused(entry.path, follow=False)
    file = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(file, "rb", buffering=0) as opened:
        content = opened.read(MOST_BYTES + 1)
    return len(content) <= MOST_BYTES and _id(content, wanted.id) == wanted.id


def _id(content: bytes, like: str) -> str:
    """What git calls some content."""
    told = hashlib.sha256() if len(like) == 64 else hashlib.sha1(usedforsecurity=False)
    told.update(b"blob %d\0" % len(content))
    told.update(content)
    return told.hexdigest()
