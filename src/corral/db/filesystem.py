"""The file of a SQLite store: private, and protected on network file systems.

SQLite's write-ahead log needs memory that all its processes share, which machines do not. If the
store is on a network file system, as far as that can be detected, only one process may open it.
"""

import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from corral.config import fsync_path, make_private_folder
from corral.db.lock_file import EXCLUSIVE_LOCK_SUFFIX, LockFile
from corral.kernel.errors import Invalid, StoreUnavailable

NETWORK_FILE_SYSTEMS = frozenset(
    {
        "9p",
        "afs",
        "afpfs",
        "beegfs",
        "ceph",
        "cifs",
        "fuse.glusterfs",
        "fuse.sshfs",
        "gfs2",
        "glusterfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "smb3",
        "smbfs",
        "virtiofs",
        "webdav",
    }
)

_BY_EFFECTIVE_IDS = os.access in os.supports_effective_ids


def _make_directory(path: Path) -> None:
    try:
        make_private_folder(path.parent)
    except OSError as error:
        raise _create_error(path, error) from None


def _create_error(path: Path, error: OSError) -> StoreUnavailable:
    """Build an error that names the existing directory in which nothing can be created."""
    directory = next((parent for parent in path.parents if parent.exists()), path.parent)
    why = error.strerror if directory.is_dir() else os.strerror(errno.ENOTDIR)
    return StoreUnavailable(
        f"Cannot create the store {path}: cannot write to the directory {directory} ({why}). Give "
        "another path.",
        reason="unwritable",
        path=str(path),
    )


def ensure_private_file(path: Path, *, create: bool) -> None:
    """Check that the file exists and is writable; a new one is readable only by its user.

    An existing file is never opened here: closing it would drop all locks that SQLite holds on it
    for this process. The caller keeps other threads from opening a file that is just being created.
    """
    try:
        if create and not path.exists():
            _make_directory(path)
            with suppress(FileExistsError):  # another process created it in the meantime
                target = os.path.realpath(path)  # a symlink to a missing file: create its target
                os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if not os.access(path, os.R_OK | os.W_OK, effective_ids=_BY_EFFECTIVE_IDS):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    except FileNotFoundError as error:
        if create:
            raise _create_error(path, error) from None
        raise StoreUnavailable(
            f"No store at {path}. Check the path; a store is created on first use.",
            reason="missing",
            path=str(path),
        ) from None
    except (IsADirectoryError, NotADirectoryError):
        raise StoreUnavailable(
            f"{path} cannot be a store: it is a directory, or a part of its path is a file. Give "
            "another path with --store.",
            reason="unwritable",
            path=str(path),
        ) from None
    except OSError as error:
        raise StoreUnavailable(
            f"Cannot open the store {path} for writing: {error.strerror}. Check its permissions, "
            "or give another path with --store.",
            reason="unwritable",
            path=str(path),
        ) from None


def create_private_file(path: Path) -> None:
    """Create an empty file readable only by its user; raises Invalid if it exists."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        raise _exists_error(path) from None
    except OSError as error:
        raise _write_error(path, error) from None


def _exists_error(path: Path) -> Invalid:
    return Invalid(f"{path} already exists. Give another name.", path=str(path))


def _write_error(path: Path, error: OSError) -> Invalid:
    return Invalid(f"Cannot write {path}: {error.strerror}. Give another path.", path=str(path))


@contextmanager
def atomic_file(target: Path) -> Iterator[Path]:
    """Create a private file atomically: it gets its name only when it is complete and synced.

    The file is written in a hidden directory beside the target, which is removed afterwards.
    Directories that killed processes left are removed too: unlike those in use, they are unlocked.
    """
    import glob
    import shutil
    import tempfile

    if os.path.lexists(target):  # fail before anything is written
        raise _exists_error(target)
    for stale in target.parent.glob(f".{glob.escape(target.name)}.part-*"):
        _remove_if_unlocked(stale)
    try:
        directory = Path(tempfile.mkdtemp(prefix=f".{target.name}.part-", dir=target.parent))
    except OSError as error:
        raise _write_error(target, error) from None
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        part = directory / target.name
        create_private_file(part)
        yield part
        fsync_path(part)
        _place(part, target)
        fsync_path(target.parent)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        os.close(lock)


def _place(part: Path, target: Path) -> None:
    """Give the complete file its name; raises Invalid if the name was taken in the meantime."""
    try:
        os.link(part, target)
    except FileExistsError:
        raise _exists_error(target) from None
    except OSError:
        # The file system has no hard links (USB sticks, network shares): reserve the name first.
        create_private_file(target)
        os.replace(part, target)


def _remove_if_unlocked(directory: Path) -> None:
    import shutil

    with suppress(OSError):
        lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(directory, ignore_errors=True)
        finally:
            os.close(lock)


def read_file_system_type(path: Path) -> str | None:
    """Return the type of the file system of `path`, where the system reports it (Linux)."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return None
    best, kind = "", None
    real = os.path.realpath(path)
    for line in mounts:
        left, _, right = line.partition(" - ")
        point = _unescape(left.split()[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind


def _unescape(point: str) -> str:
    """Decode octal escapes such as \\040 in a mount point."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), point)


class ExclusiveUse:
    """The lock of the only process that may open a store on a network file system."""

    def __init__(self, path: Path, kind: str) -> None:
        self._file = LockFile(f"{path}{EXCLUSIVE_LOCK_SUFFIX}")
        descriptor = self._file.descriptor
        if not self._file.try_lock():
            holder = os.pread(descriptor, 200, 0).decode(errors="replace") or "another process"
            self._file.close()
            raise StoreUnavailable(
                f"{path} is on a network file system ({kind}) and {holder} has it open. Close "
                "that one, move the store to a local disk, or use PostgreSQL.",
                reason="network_file_system",
                path=str(path),
                holder=holder,
            )
        import socket

        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)

    def close(self) -> None:
        self._file.close()


def lock_if_remote(path: Path) -> ExclusiveUse | None:
    """Lock the store for this process if it is on a network file system."""
    kind = read_file_system_type(path)
    return ExclusiveUse(path, kind) if kind in NETWORK_FILE_SYSTEMS else None
