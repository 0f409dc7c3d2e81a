"""The file under a SQLite store: private, and not on a network file system by mistake.

SQLite's write-ahead log needs memory that all its users share, which machines do not. Where the
store lies on a network file system, as far as that can be told, one process at a time may have it.
"""

import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from corral.config import make_private_folder, sync
from corral.db.lockfile import LockFile
from corral.kernel.errors import Invalid, StoreUnavailable

REMOTE = frozenset(
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


def _make_folder(path: Path) -> None:
    try:
        make_private_folder(path.parent)
    except OSError as error:
        raise _cannot_create(path, error) from None


def _cannot_create(path: Path, error: OSError) -> StoreUnavailable:
    """Name the folder in which nothing can be created: that of the store, or one above it."""
    folder = next((each for each in path.parents if each.exists()), path.parent)
    why = error.strerror if folder.is_dir() else os.strerror(errno.ENOTDIR)
    return StoreUnavailable(
        f"Cannot create the store {path}: nothing can be created in {folder} ({why}); give another "
        "path.",
        reason="unwritable",
        path=str(path),
    )


def make_private_file(path: Path, *, create: bool) -> None:
    """Check that the file exists and is writable; a new one is readable only by its user.

    An existing file is never opened here: closing it would drop all locks that SQLite holds on it
    for this process. The caller keeps other threads from opening a file that is just being created.
    """
    try:
        if create and not path.exists():
            _make_folder(path)
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
            raise _cannot_create(path, error) from None
        raise StoreUnavailable(
            f"There is no store at {path} yet; check the path. It is made when it is first used.",
            reason="missing",
            path=str(path),
        ) from None
    except (IsADirectoryError, NotADirectoryError):
        raise StoreUnavailable(
            f"{path} cannot be a store: a folder stands where a file is needed, or the other way "
            "round; give another path with --store.",
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


def make_new_private_file(path: Path) -> None:
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        raise _taken(path) from None
    except OSError as error:
        raise _unwritable(path, error) from None


def _taken(path: Path) -> Invalid:
    return Invalid(f"{path} is there already; give a new name.", path=str(path))


def _unwritable(path: Path, error: OSError) -> Invalid:
    return Invalid(
        f"{path} cannot be written ({error.strerror}); give another path.", path=str(path)
    )


@contextmanager
def whole_file(target: Path) -> Iterator[Path]:
    """A new private file that stands under its name once it is whole and on the disk, or never.

    It is written in a hidden folder beside, which goes with it. What a killed process left of an
    earlier one is removed: a lock on the folder tells it from one that is being written.
    """
    import glob
    import shutil
    import tempfile

    if os.path.lexists(target):  # said at once, and not when all is written
        raise _taken(target)
    for left in target.parent.glob(f".{glob.escape(target.name)}.part-*"):
        _sweep(left)
    try:
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.part-", dir=target.parent))
    except OSError as error:
        raise _unwritable(target, error) from None
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        part = folder / target.name
        make_new_private_file(part)
        yield part
        sync(part)
        _place(part, target)
        sync(target.parent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(held)


def _place(part: Path, target: Path) -> None:
    """Give a whole file its name; never over something that came meanwhile."""
    try:
        os.link(part, target)
    except FileExistsError:
        raise _taken(target) from None
    except OSError:
        # Sticks and shares often have no second names for a file: the name is taken first.
        make_new_private_file(target)
        os.replace(part, target)


def _sweep(folder: Path) -> None:
    import shutil

    with suppress(OSError):
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(held)


def file_system(path: Path) -> str | None:
    """The type of the file system that holds `path`, where the system tells (Linux)."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        return None
    best, kind = "", None
    real = os.path.realpath(path)
    for line in mounts:
        left, _, right = line.partition(" - ")
        point = _spelled_out(left.split()[4])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, right.split()[0]
    return kind


def _spelled_out(point: str) -> str:
    """A mount point in which spaces and the like are written as \\040."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), point)


class SoleUse:
    """The right of this process to be the only one with a store on a network file system."""

    def __init__(self, path: Path, kind: str) -> None:
        self._file = LockFile(f"{path}-sole")
        descriptor = self._file.descriptor
        if not self._file.try_lock():
            who = os.pread(descriptor, 200, 0).decode(errors="replace") or "another process"
            self._file.close()
            raise StoreUnavailable(
                f"{path} is on a network file system ({kind}) and {who} has it open; close that "
                "one first, move the store to a local disk, or use PostgreSQL.",
                reason="network_file_system",
                path=str(path),
                holder=who,
            )
        import socket

        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)

    def close(self) -> None:
        self._file.close()


def sole_use_if_remote(path: Path) -> SoleUse | None:
    kind = file_system(path)
    return SoleUse(path, kind) if kind in REMOTE else None
