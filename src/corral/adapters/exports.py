"""Export commits and files to a folder, atomically and with a manifest.

    TARGET/manifest.json     path, size, sha256 and mode of everything else
    TARGET/round-1-winner/   the files of a commit, byte for byte
    TARGET/logs/…            other files

An export is written to a temporary folder beside the target, synced to disk and renamed. A crash
leaves only folders that `find_leftovers` finds.
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

from corral.adapters.git import git
from corral.adapters.worktrees.worktree_leftovers import delete_tree
from corral.adapters.worktrees.worktree_registry import resolve_commit
from corral.config import fsync_path
from corral.kernel.errors import Invalid, Refused
from corral.kernel.open_files import require_unused

MANIFEST = "manifest.json"
BLOCK_BYTES = 1024 * 1024
# Up to this number, files are synced one by one; above, with one os.sync().
MAX_SYNCED_FILES = 500
_LEFTOVER = re.compile(r"\.(.+)\.[0-9a-f]{32}\.(part|old)")
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class ExportEntry(msgspec.Struct, frozen=True):
    """A file in an export."""

    path: str
    """Relative to the target. Bytes that are not UTF-8 are written as `%XX`, and so is `%`."""
    size: int
    sha256: str
    """Of the content; for a symlink, of its target."""
    mode: str
    """The git mode: 100644, 100755, 120000 (symlink), 160000 (submodule, not exported)."""


class ExportManifest(msgspec.Struct, frozen=True):
    """The contents of an export."""

    entries: list[ExportEntry]
    commits: dict[str, str]
    """The commit of each tree, by folder."""


class CommitTree(NamedTuple):
    """The files of a commit."""

    repository: str
    commit: str


def write_export(
    target: Path,
    *,
    trees: Mapping[str, CommitTree],
    files: Mapping[str, Path | bytes | Iterable[bytes]],
    existing: Literal["refuse", "replace"] = "refuse",
) -> ExportManifest:
    """Write the trees of commits and other files, each below its own path, and the manifest.

    An existing target that is already identical is left alone. Otherwise raises Refused, unless
    `existing` is "replace" and the target is an unmodified export. Raises Refused and writes
    nothing for a symlink that leads out of its tree, a path with `..`, a source that is not a
    regular file, and a full disk; Invalid for duplicate or nested names.
    """
    target = target.absolute()
    _check_names([*trees, *files])
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{uuid4().hex}.part")
        temporary.mkdir(mode=0o700)
        with _lock_folder(temporary):
            try:
                manifest = _write_all(temporary, trees, files)
                _sync(temporary, len(manifest.entries))
                _move_to_target(temporary, target, manifest, existing)
            finally:
                if temporary.exists():
                    delete_tree(str(temporary))
    except OSError as error:
        if error.errno in _DISK_FULL:
            raise Refused(
                f"Cannot write {target}: the disk is full. Free some space, or choose another "
                "target.",
                target=str(target),
            ) from None
        raise Refused(f"Cannot write {target}: {error}.", target=str(target)) from None
    return manifest


def _check_names(names: list[str]) -> None:
    for name in names:
        parts = name.split("/")
        if not all(parts) or {".", ".."} & {*parts} or "\0" in name or name == MANIFEST:
            raise Invalid(f"Invalid path in an export: {name!r}.", name=name)
        above = {"/".join(parts[:count]) for count in range(1, len(parts))}
        if above & {*names} or names.count(name) > 1:
            raise Invalid(
                f"{name!r} is a duplicate or lies inside another path of the export.", name=name
            )


@contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder while it is written, so that it does not count as a leftover."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # a file system without flock
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(lock)


def _write_all(
    root: Path,
    trees: Mapping[str, CommitTree],
    files: Mapping[str, Path | bytes | Iterable[bytes]],
) -> ExportManifest:
    entries: list[ExportEntry] = []
    commits: dict[str, str] = {}
    for name, tree in trees.items():
        commits[name] = resolve_commit(tree.repository, tree.commit)
        entries += _write_tree(root, name, tree.repository, commits[name])
    for name, source in files.items():
        path = os.fsencode(name)
        entries.append(_write_file(root, path, "100644", _read_blocks(source)))
    entries.sort(key=lambda entry: entry.path)
    manifest = ExportManifest(entries, commits)
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    (root / MANIFEST).write_bytes(text + b"\n")
    return manifest


def _move_to_target(
    temporary: Path, target: Path, manifest: ExportManifest, existing: Literal["refuse", "replace"]
) -> None:
    is_export = (
        os.path.lexists(target) and _read_manifest(target) is not None and not verify_export(target)
    )
    if not os.path.lexists(target):
        os.rename(temporary, target)
    elif is_export and _read_manifest(target) == manifest:
        return
    elif is_export and existing == "replace":
        old = target.with_name(f".{target.name}.{uuid4().hex}.old")
        with _lock_folder(target):
            os.rename(target, old)
            os.rename(temporary, target)
            delete_tree(str(old))
    else:
        changed = existing == "replace" or not is_export
        raise Refused(
            f"{target} exists and is not an unmodified export. Choose another target, or move it "
            "away."
            if changed
            else f"{target} already exists. Choose another target, or replace the export with "
            "--replace.",
            target=str(target),
            reason="not_an_export" if changed else "export_exists",
        )
    fsync_path(target.parent)


# -- trees -----------------------------------------------------------------------------------------


def _write_tree(root: Path, below: str, repository: str, commit: str) -> Iterator[ExportEntry]:
    """Write regular files first and symlinks last, so that nothing is written through a symlink."""
    listed = git.check_output(repository, "ls-tree", "-r", "-z", "--full-tree", commit)
    links = []
    (root / below).mkdir(parents=True)
    with git.open_stream(repository, "cat-file", "--batch") as (request, output):
        for line in filter(None, listed.split(b"\0")):
            fields, _, name = line.partition(b"\t")
            mode, _, blob = fields.decode().split(" ")
            _check_path(name)
            path = os.fsencode(below) + b"/" + name
            if mode == "160000":
                os.makedirs(os.path.join(os.fsencode(root), path))
                yield ExportEntry(_encode_path(path), 0, sha256(blob.encode()).hexdigest(), mode)
                continue
            content = _read_blob(request, output, blob)
            if mode == "120000":
                link = b"".join(content)
                _check_link(name, link)
                links.append((path, link))
            else:
                yield _write_file(root, path, mode, content)
        for path, link in links:
            os.makedirs(os.path.dirname(os.path.join(os.fsencode(root), path)), exist_ok=True)
            os.symlink(link, os.path.join(os.fsencode(root), path))
            yield ExportEntry(_encode_path(path), len(link), sha256(link).hexdigest(), "120000")


def _read_blob(request: IO[bytes], output: IO[bytes], blob: str) -> Iterator[bytes]:
    request.write(f"{blob}\n".encode())
    request.flush()
    head = output.readline().split()
    if len(head) != 3:
        raise Refused(f"The repository has no object {blob}. Check it with `git fsck`.", blob=blob)
    left = int(head[2])
    while left:
        block = output.read(min(left, BLOCK_BYTES))
        if not block:
            raise Refused(f"Cannot read the object {blob} of the repository.", blob=blob)
        left -= len(block)
        yield block
    output.read(1)


def _check_path(name: bytes) -> None:
    parts = name.split(b"/")
    if any(part in (b"", b".", b"..") or part.lower() == b".git" for part in parts):
        raise Refused(
            f"{_encode_path(name)} leads out of its tree. Nothing was written.",
            reason="outside_tree",
        )


def _check_link(name: bytes, link: bytes) -> None:
    """Check that a symlink stays inside its tree.

    `..` is allowed only at the start, and at most as often as the symlink is deep. A later `..`
    could apply to the target of another symlink, which can be anywhere.
    """
    parts = [part for part in link.split(b"/") if part not in (b"", b".")]
    climbs = parts.count(b"..")
    if link.startswith(b"/") or climbs > name.count(b"/") or b".." in parts[climbs:]:
        raise Refused(
            f"The symlink {_encode_path(name)} leads out of its tree (to {_encode_path(link)}). "
            "Nothing was written.",
            link=_encode_path(name),
            reason="link_outside_tree",
        )


# -- files -----------------------------------------------------------------------------------------


def _read_blocks(source: Path | bytes | Iterable[bytes]) -> Iterator[bytes]:
    if isinstance(source, bytes):
        yield source
    elif isinstance(source, Path):
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        require_unused(source, follow=False)
        with os.fdopen(os.open(source, flags), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise Refused(
                    f"{source} is not a regular file. Nothing was written.", file=str(source)
                )
            while block := file.read(BLOCK_BYTES):
                yield block
    else:
        yield from source


def _write_file(root: Path, path: bytes, mode: str, blocks: Iterable[bytes]) -> ExportEntry:
    target = os.path.join(os.fsencode(root), path)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    permissions = 0o755 if mode == "100755" else 0o644
    size, digest = 0, sha256()
    with os.fdopen(os.open(target, flags, permissions), "wb") as file:
        for block in blocks:
            file.write(block)
            digest.update(block)
            size += len(block)
    os.chmod(target, permissions)  # independent of the umask
    return ExportEntry(
        _encode_path(path), size, digest.hexdigest(), "100755" if permissions == 0o755 else "100644"
    )


def _encode_path(path: bytes) -> str:
    """Encode a path as text, reversibly."""
    try:
        return path.decode().replace("%", "%25")
    except UnicodeDecodeError:
        return quote_from_bytes(path, safe="/ !\"#$&'()*+,:;<=>?@[\\]^`{|}\n\t")


def _sync(root: Path, count: int) -> None:
    """Sync all files to disk before the rename."""
    if count > MAX_SYNCED_FILES:
        os.sync()
        return
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                fsync_path(path)
        fsync_path(folder)


# -- verification ---------------------------------------------------------------------------------


def _read_manifest(target: Path) -> ExportManifest | None:
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((target / MANIFEST).read_bytes(), type=ExportManifest)
    return None


def verify_export(target: Path) -> list[str]:
    """List the differences from the manifest; empty when nothing changed."""
    manifest = _read_manifest(target)
    if manifest is None:
        return [f"{MANIFEST} is missing or damaged"]
    known = {unquote_to_bytes(entry.path): entry for entry in manifest.entries}
    differences = [
        f"{entry.path} is {difference}"
        for path, entry in known.items()
        if (difference := _find_difference(os.path.join(os.fsencode(target), path), entry))
        is not None
    ]
    for folder, folders, files in os.walk(os.fsencode(target)):
        linked = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        for name in (*files, *linked):
            path = os.path.relpath(os.path.join(folder, name), os.fsencode(target))
            if path not in known and path != MANIFEST.encode():
                differences.append(f"{_encode_path(path)} is not in the manifest")
    return differences


def _find_difference(path: bytes, entry: ExportEntry) -> str | None:
    try:
        info = os.lstat(path)
        if entry.mode == "160000":
            return None if stat.S_ISDIR(info.st_mode) else "not a directory"
        if entry.mode == "120000":
            same = sha256(os.readlink(path)).hexdigest() == entry.sha256
            return None if same else "a different symlink"
        if not stat.S_ISREG(info.st_mode):
            return "not a regular file"
        if bool(info.st_mode & 0o100) != (entry.mode == "100755"):
            return "of a different mode"
        digest = sha256()
        for block in _read_blocks(Path(os.fsdecode(path))):
            digest.update(block)
        return None if digest.hexdigest() == entry.sha256 else "changed"
    except OSError:
        return "missing"


def find_leftovers(folder: Path) -> list[Path]:
    """List the folders that crashed exports left in a folder, except those in use."""
    leftovers = []
    with suppress(FileNotFoundError):
        for path in sorted(folder.iterdir()):
            if _LEFTOVER.fullmatch(path.name) and path.is_dir() and not path.is_symlink():
                lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    leftovers.append(path)
                except BlockingIOError:
                    pass
                finally:
                    os.close(lock)
    return leftovers


def delete_leftovers(folder: Path) -> list[Path]:
    """Delete the leftovers and return them. An export whose replacement crashed is restored."""
    removed = []
    for path in find_leftovers(folder):
        name = _LEFTOVER.fullmatch(path.name)
        assert name is not None
        if name[2] == "old" and not os.path.lexists(folder / name[1]):
            os.rename(path, folder / name[1])
        else:
            delete_tree(str(path))
            removed.append(path)
    return removed
