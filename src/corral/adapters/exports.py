"""Folders that are written whole or not at all, with a list of what is in them.

    TARGET/manifest.json     path, size, sha256 and mode of everything else
    TARGET/round-1-winner/   the files of a commit, byte for byte
    TARGET/logs/…            other files

It is made in a folder beside, synced to disk and renamed. Whatever a crash leaves is a folder with
a name that `leftovers` finds.
"""

import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import IO, Literal, NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes
from uuid import uuid4

import msgspec

from corral.adapters import git
from corral.adapters.checkouts import resolve
from corral.adapters.leftovers import delete
from corral.config import fsync_path
from corral.kernel.errors import Invalid, Refused
from corral.kernel.open_files import require_unused

MANIFEST = "manifest.json"
BLOCK = 1024 * 1024
# Each file is synced on its own up to here; more are synced at once, with all the disk.
MOST_SYNCED = 500
_LEFT = re.compile(r"\.(.+)\.[0-9a-f]{32}\.(part|old)")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Entry(msgspec.Struct, frozen=True):
    path: str
    """From the target; bytes that are no text are written as `%XX`, and so is `%` itself."""
    size: int
    sha256: str
    """Of its bytes; of the target's text for a link."""
    mode: str
    """As git writes it: 100644, 100755, 120000 (a link), 160000 (a submodule, left out)."""


class Manifest(msgspec.Struct, frozen=True):
    entries: list[Entry]
    commits: dict[str, str]
    """The commit of each tree, by the folder it is in."""


class TreeOf(NamedTuple):
    """The files of a commit."""

    repository: str
    commit: str


def export(
    target: Path,
    *,
    trees: Mapping[str, TreeOf],
    files: Mapping[str, Path | bytes | Iterable[bytes]],
    existing: Literal["refuse", "replace"] = "refuse",
) -> Manifest:
    """Write commits' trees and other files, each below a path of its own, and the manifest.

    A target that is there is left alone when it is the same already; otherwise it is Refused, or
    replaced when `existing` says so and it is an export that nobody has changed since. Refused, and
    nothing is written, for a link that leads out of its tree, a path that climbs, a name twice, a
    source that is no plain file; also when the disk is full: what was begun is taken away.
    """
    target = target.absolute()
    _check_names([*trees, *files])
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.{uuid4().hex}.part")
        part.mkdir(mode=0o700)
        with _in_use(part):
            try:
                made = _write_all(part, trees, files)
                _sync(part, len(made.entries))
                _put_in_place(part, target, made, existing)
            finally:
                if part.exists():
                    delete(str(part))
    except OSError as error:
        if error.errno in _FULL:
            raise Refused(
                f"There is no room left for {target}; nothing was written. Make room, or choose "
                "another place.",
                target=str(target),
            ) from None
        raise Refused(f"{target} could not be written: {error}.", target=str(target)) from None
    return made


def _check_names(names: list[str]) -> None:
    for name in names:
        parts = name.split("/")
        if not all(parts) or {".", ".."} & {*parts} or "\0" in name or name == MANIFEST:
            raise Invalid(f"{name!r} is no place inside of an export.", name=name)
        above = {"/".join(parts[:count]) for count in range(1, len(parts))}
        if above & {*names} or names.count(name) > 1:
            raise Invalid(f"{name!r} is inside of another one, or there twice.", name=name)


@contextmanager
def _in_use(folder: Path) -> Iterator[None]:
    """While somebody writes there, it is no leftover."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # a file system without such locks
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


def _write_all(
    part: Path,
    trees: Mapping[str, TreeOf],
    files: Mapping[str, Path | bytes | Iterable[bytes]],
) -> Manifest:
    entries: list[Entry] = []
    commits: dict[str, str] = {}
    for name, tree in trees.items():
        commits[name] = resolve(tree.repository, tree.commit)
        entries += _write_tree(part, name, tree.repository, commits[name])
    for name, source in files.items():
        path = os.fsencode(name)
        entries.append(_write_file(part, path, "100644", _blocks(source)))
    entries.sort(key=lambda entry: entry.path)
    made = Manifest(entries, commits)
    text = msgspec.json.format(msgspec.json.encode(made), indent=1)
    (part / MANIFEST).write_bytes(text + b"\n")
    return made


def _put_in_place(
    part: Path, target: Path, made: Manifest, existing: Literal["refuse", "replace"]
) -> None:
    is_export = os.path.lexists(target) and _manifest(target) is not None and not verify(target)
    if not os.path.lexists(target):
        os.rename(part, target)
    elif is_export and _manifest(target) == made:
        return
    elif is_export and existing == "replace":
        old = target.with_name(f".{target.name}.{uuid4().hex}.old")
        with _in_use(target):
            os.rename(target, old)
            os.rename(part, target)
            delete(str(old))
    else:
        changed = existing == "replace" or not is_export
        raise Refused(
            f"{target} is there already, and is not as an export left it; choose another place, or "
            "move it away."
            if changed
            else f"{target} is there already; choose another place, or replace that export with "
            "--replace.",
            target=str(target),
            reason="not_an_export" if changed else "export_exists",
        )
    fsync_path(target.parent)


# -- trees -----------------------------------------------------------------------------------------


def _write_tree(part: Path, below: str, repository: str, commit: str) -> Iterator[Entry]:
    """Its plain files first and its links last, so that nothing is ever written through a link."""
    listed = git.told(repository, "ls-tree", "-r", "-z", "--full-tree", commit)
    links = []
    (part / below).mkdir(parents=True)
    with git.reading(repository, "cat-file", "--batch") as (ask, told):
        for line in filter(None, listed.split(b"\0")):
            facts, _, name = line.partition(b"\t")
            mode, _, blob = facts.decode().split(" ")
            _check_path(name)
            path = os.fsencode(below) + b"/" + name
            if mode == "160000":
                os.makedirs(os.path.join(os.fsencode(part), path))
                yield Entry(_shown(path), 0, sha256(blob.encode()).hexdigest(), mode)
                continue
            content = _read_blob(ask, told, blob)
            if mode == "120000":
                link = b"".join(content)
                _check_link(name, link)
                links.append((path, link))
            else:
                yield _write_file(part, path, mode, content)
        for path, link in links:
            os.makedirs(os.path.dirname(os.path.join(os.fsencode(part), path)), exist_ok=True)
            os.symlink(link, os.path.join(os.fsencode(part), path))
            yield Entry(_shown(path), len(link), sha256(link).hexdigest(), "120000")


def _read_blob(ask: IO[bytes], told: IO[bytes], blob: str) -> Iterator[bytes]:
    ask.write(f"{blob}\n".encode())
    ask.flush()
    head = told.readline().split()
    if len(head) != 3:
        raise Refused(f"The repository has lost {blob}; look at it with `git fsck`.", blob=blob)
    left = int(head[2])
    while left:
        block = told.read(min(left, BLOCK))
        if not block:
            raise Refused(f"The repository could not be read at {blob}.", blob=blob)
        left -= len(block)
        yield block
    told.read(1)


def _check_path(name: bytes) -> None:
    parts = name.split(b"/")
    if any(part in (b"", b".", b"..") or part.lower() == b".git" for part in parts):
        raise Refused(
            f"{_shown(name)} leads out of its tree; nothing was written.", reason="outside_tree"
        )


def _check_link(name: bytes, link: bytes) -> None:
    """A link stays inside when it climbs first and no further than it is deep: what it goes through
    then is inside too. Climbing later could begin anywhere, because a link may be on the way."""
    parts = [part for part in link.split(b"/") if part not in (b"", b".")]
    climbs = parts.count(b"..")
    if link.startswith(b"/") or climbs > name.count(b"/") or b".." in parts[climbs:]:
        raise Refused(
            f"The link {_shown(name)} leads out of its tree (to {_shown(link)}); nothing was "
            "written.",
            link=_shown(name),
            reason="link_outside_tree",
        )


# -- files -----------------------------------------------------------------------------------------


def _blocks(source: Path | bytes | Iterable[bytes]) -> Iterator[bytes]:
    if isinstance(source, bytes):
        yield source
    elif isinstance(source, Path):
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        require_unused(source, follow=False)
        with os.fdopen(os.open(source, flags), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise Refused(f"{source} is no plain file; nothing was written.", file=str(source))
            while block := file.read(BLOCK):
                yield block
    else:
        yield from source


def _write_file(part: Path, path: bytes, mode: str, blocks: Iterable[bytes]) -> Entry:
    where = os.path.join(os.fsencode(part), path)
    os.makedirs(os.path.dirname(where), exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    rights = 0o755 if mode == "100755" else 0o644
    size, seen = 0, sha256()
    with os.fdopen(os.open(where, flags, rights), "wb") as file:
        for block in blocks:
            file.write(block)
            seen.update(block)
            size += len(block)
    os.chmod(where, rights)  # whatever the umask says
    return Entry(_shown(path), size, seen.hexdigest(), "100755" if rights == 0o755 else "100644")


def _shown(path: bytes) -> str:
    """A path as text from which it can be had again."""
    try:
        return path.decode().replace("%", "%25")
    except UnicodeDecodeError:
        return quote_from_bytes(path, safe="/ !\"#$&'()*+,:;<=>?@[\\]^`{|}\n\t")


def _sync(part: Path, count: int) -> None:
    """Have all of it on disk before it gets its name."""
    if count > MOST_SYNCED:
        os.sync()
        return
    for folder, _, names in os.walk(part):
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                fsync_path(path)
        fsync_path(folder)


# -- what is there ---------------------------------------------------------------------------------


def _manifest(target: Path) -> Manifest | None:
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((target / MANIFEST).read_bytes(), type=Manifest)
    return None


def verify(target: Path) -> list[str]:
    """What differs from the manifest, in words; empty when all is as it was written."""
    made = _manifest(target)
    if made is None:
        return [f"{MANIFEST} is missing or damaged"]
    known = {unquote_to_bytes(entry.path): entry for entry in made.entries}
    found = [
        f"{entry.path} is {wrong}"
        for path, entry in known.items()
        if (wrong := _wrong(os.path.join(os.fsencode(target), path), entry)) is not None
    ]
    for folder, folders, files in os.walk(os.fsencode(target)):
        linked = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in (*files, *linked):
            path = os.path.relpath(os.path.join(folder, name), os.fsencode(target))
            if path not in known and path != MANIFEST.encode():
                found.append(f"{_shown(path)} is not in it")
    return found


def _wrong(path: bytes, entry: Entry) -> str | None:
    try:
        info = os.lstat(path)
        if entry.mode == "160000":
            return None if stat.S_ISDIR(info.st_mode) else "no folder"
        if entry.mode == "120000":
            same = sha256(os.readlink(path)).hexdigest() == entry.sha256
            return None if same else "another link"
        if not stat.S_ISREG(info.st_mode):
            return "no plain file"
        if bool(info.st_mode & 0o100) != (entry.mode == "100755"):
            return "of another mode"
        seen = sha256()
        for block in _blocks(Path(os.fsdecode(path))):
            seen.update(block)
        return None if seen.hexdigest() == entry.sha256 else "changed"
    except OSError:
        return "missing"


def leftovers(folder: Path) -> list[Path]:
    """What crashes have left beside the exports in a folder, and nobody writes any more."""
    found = []
    with suppress(FileNotFoundError):
        for path in sorted(folder.iterdir()):
            if _LEFT.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    found.append(path)
                except BlockingIOError:
                    pass
                finally:
                    os.close(lock)
    return found


def sweep(folder: Path) -> list[Path]:
    """Remove them; an export that was about to be replaced is put back. Gives what was removed."""
    removed = []
    for path in leftovers(folder):
        name = _LEFT.fullmatch(path.name)
        assert name is not None
        if name[2] == "old" and not os.path.lexists(folder / name[1]):
            os.rename(path, folder / name[1])
        else:
            delete(str(path))
            removed.append(path)
    return removed
