"""Read and write files in a folder that a sandboxed program can write.

Every path component is opened with O_NOFOLLOW relative to its parent's descriptor, so a symlink
that the program planted is never followed, also when it is swapped in during the walk. Only
regular files with one link are read: a hard link could point to a file outside the folder.
"""

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from itertools import islice
from typing import NamedTuple

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
MAX_DEPTH = 32


class UntrustedFile(NamedTuple):
    path: str
    """Relative to the folder, with slashes."""
    size: int
    descriptor: int
    """Open for reading; the walk closes it."""


def read_file(root: str, path: str, max_bytes: int) -> bytes | None:
    """Read a file below `root`.

    None when it is missing, not a plain file, or larger than `max_bytes` bytes.
    """
    opened: list[int] = []
    try:
        opened.append(os.open(root, _FOLDER))
        *folders, name = path.split("/")
        for folder in folders:
            opened.append(os.open(folder, _FOLDER, dir_fd=opened[-1]))
        opened.append(os.open(name, _FILE, dir_fd=opened[-1]))
        status = os.fstat(opened[-1])
        if not is_plain(status) or status.st_size > max_bytes:
            return None
        with os.fdopen(opened.pop(), "rb") as file:
            data = file.read(max_bytes + 1)
        return data if len(data) <= max_bytes else None
    except OSError:
        return None
    finally:
        for descriptor in opened:
            os.close(descriptor)


def is_plain(status: os.stat_result) -> bool:
    """Whether a file is a regular file with exactly one link."""
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1


def walk_files(root: str, wanted: Callable[[str], bool]) -> Iterator[UntrustedFile]:
    """Yield the plain files below `root` whose relative path is `wanted`, each opened.

    Symlinks, pipes, sockets, devices and hard links are skipped. A missing `root` has no files.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        descriptor = os.open(root, _FOLDER)
        try:
            yield from _walk(descriptor, "", wanted, MAX_DEPTH)
        finally:
            os.close(descriptor)


def _walk(
    folder: int, prefix: str, wanted: Callable[[str], bool], depth: int
) -> Iterator[UntrustedFile]:
    with os.scandir(folder) as entries:
        names = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
    for name, is_folder in names:
        path = f"{prefix}{name}"
        if not is_folder and not wanted(path):
            continue
        if is_folder and not depth:
            continue
        try:
            descriptor = os.open(name, _FOLDER if is_folder else _FILE, dir_fd=folder)
        except OSError:
            continue
        try:
            if is_folder:
                yield from _walk(descriptor, f"{path}/", wanted, depth - 1)
            elif is_plain(status := os.fstat(descriptor)):
                yield UntrustedFile(path, status.st_size, descriptor)
        finally:
            os.close(descriptor)


def find_files(
    root: str, patterns: Sequence[str], *, max_entries: int
) -> Iterator[tuple[str, int, os.stat_result]]:
    """Yield path, descriptor and status of the plain files below `root` that match a pattern.

    A pattern has one component per folder, each with `*` as in a shell; only folders that can
    contain a match are listed. At most `max_entries` directory entries are read, so that a
    program that creates a million files cannot stall the caller. The walk closes the
    descriptors.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        descriptor = os.open(root, _FOLDER)
        try:
            left = [max_entries]
            for pattern in patterns:
                yield from _search(descriptor, "", pattern.split("/"), left)
        finally:
            os.close(descriptor)


def _search(
    folder: int, prefix: str, parts: list[str], left: list[int]
) -> Iterator[tuple[str, int, os.stat_result]]:
    first, *rest = parts
    names = [first]
    if "*" in first:
        with os.scandir(folder) as entries:
            entry_names = [entry.name for entry in islice(entries, left[0])]
        left[0] -= len(entry_names)
        names = sorted(name for name in entry_names if fnmatchcase(name, first))
    for name in names:
        try:
            descriptor = os.open(name, _FOLDER if rest else _FILE, dir_fd=folder)
        except OSError:
            continue
        try:
            if rest:
                yield from _search(descriptor, f"{prefix}{name}/", rest, left)
            elif is_plain(status := os.fstat(descriptor)):
                yield f"{prefix}{name}", descriptor, status
        finally:
            os.close(descriptor)


@contextmanager
def parent_folder(root: str, path: str) -> Iterator[tuple[int, str]]:
    """Open the parent folder of a path below `root`, creating missing folders.

    Gives its descriptor and the last component of the path. Raises OSError when a component
    below `root` is a symlink: the sandboxed program must not choose where the file goes.
    """
    opened = [os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)]
    try:
        *folders, name = path.split("/")
        for folder in folders:
            with suppress(FileExistsError):
                os.mkdir(folder, 0o700, dir_fd=opened[-1])
            opened.append(os.open(folder, _FOLDER, dir_fd=opened[-1]))
        yield opened[-1], name
    finally:
        for descriptor in opened:
            os.close(descriptor)


def copy_file(file: UntrustedFile, target: str, max_bytes: int) -> int:
    """Copy a walked file to a new file and return its size.

    Raises OSError when it has grown over `max_bytes` bytes.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    written = 0
    with os.fdopen(os.open(target, flags, 0o600), "wb") as copy:
        while piece := os.read(file.descriptor, 1 << 20):
            written += len(piece)
            if written > max_bytes:
                raise OSError(f"{file.path} is larger than {max_bytes} bytes")
            copy.write(piece)
    return written
