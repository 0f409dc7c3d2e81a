"""Attachments of messages, stored in private files with safe names.

A file name comes from a stranger: only safe characters of its last component are used, and the
file is created in its own folder, so that no symlink is followed and no other message's file is
overwritten. A file that an agent sends is read once, at the time of sending, from a folder that
the agent works in and through no symlink. Later changes by the agent have no effect.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from mimetypes import guess_type
from pathlib import Path, PurePath
from typing import Any

import msgspec

from corral.adapters.channels.contract import RawAttachment, StoredFile
from corral.config import make_private_folder
from corral.kernel.errors import Invalid, Refused
from corral.kernel.open_files import require_unused

MAX_FILES = 20
MAX_NAME_LENGTH = 80
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def make_safe_name(file_name: str, number: int) -> str:
    """Return a safe file name with the safe characters of `file_name`; `number` makes it unique."""
    last = file_name.replace("\\", "/").rpartition("/")[2]
    plain = _UNSAFE.sub("_", last).strip("._-")[-MAX_NAME_LENGTH:]
    return f"{number}-{plain or 'file'}"


def store_attachments(
    folder: Path, event: str, attached: list[RawAttachment], *, max_bytes: int
) -> list[StoredFile]:
    """Store the attachments of an event in private files. Idempotent.

    Files that are too large, too many, or cannot be written are listed with a reason and not
    stored.
    """
    own = folder / sha256(event.encode(errors="replace")).hexdigest()[:32]
    files = []
    for number, attachment in enumerate(attached[:MAX_FILES], 1):
        files.append(_store_one(own, number, attachment, max_bytes))
    for attachment in attached[MAX_FILES:]:
        files.append(
            StoredFile(
                attachment.name[:MAX_NAME_LENGTH],
                None,
                attachment.bytes,
                attachment.type,
                "too many files",
            )
        )
    return files


def _store_one(folder: Path, number: int, attached: RawAttachment, max_bytes: int) -> StoredFile:
    name = make_safe_name(attached.name, number)
    size = len(attached.data) if attached.data is not None else attached.bytes
    display_name = attached.name[:MAX_NAME_LENGTH].replace("\0", "")
    if attached.data is None:
        reason = attached.reason or "it could not be downloaded"
        return StoredFile(display_name, None, size, attached.type, reason)
    if size > max_bytes:
        return StoredFile(
            display_name, None, size, attached.type, f"it is larger than {max_bytes:,} bytes"
        )
    try:
        path = _write(folder, name, attached.data)
    except OSError as error:
        return StoredFile(display_name, None, size, attached.type, f"not stored: {error.strerror}")
    return StoredFile(display_name, str(path), size, attached.type)


def _write(folder: Path, name: str, data: bytes) -> Path:
    make_private_folder(folder)
    path = folder / name
    path.unlink(missing_ok=True)  # left by a process that crashed before the message was stored
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(data)
    return path


# -- files from agents ----------------------------------------------------------------------------


def read_attachment(
    file_name: str, folders: Sequence[str], *, max_bytes: int, forbidden_folder: Path
) -> bytes:
    """Read a file that lies in one of these folders.

    Each path component is opened without following symlinks, so that nothing outside is read
    even if the path changes meanwhile. Raises Refused when the file lies elsewhere or below
    `forbidden_folder`, and Invalid when it cannot be read or is too large.
    """
    path = PurePath(file_name)
    if "\0" in file_name or ".." in path.parts:
        raise Refused(
            f"{file_name!r} leads out of its directory. Name the file without `..`.",
            file=file_name,
            reason="outside_folder",
        )
    candidates = list(_match_folders(path, folders))
    if not candidates:
        known = ", ".join(folders) or "no directory"
        raise Refused(
            f"{file_name!r} is not in one of your working directories: {known}.", file=file_name
        )
    first_error: OSError | None = None
    # Both real paths: a symlink above either one must not hide that the file is inside. Symlinks
    # below `folder` are not resolved here, because `_read` does not follow them.
    forbidden = Path(os.path.realpath(forbidden_folder))
    for folder, steps in candidates:
        real = Path(os.path.realpath(folder))
        if real.joinpath(*steps).is_relative_to(forbidden) and forbidden not in real.parents:
            raise Refused(f"{file_name!r} belongs to Corral itself.", file=file_name)
        try:
            return _read(folder, steps, file_name, max_bytes)
        except OSError as error:
            first_error = first_error or error
    assert first_error is not None
    is_symlink = first_error.errno in (errno.ELOOP, errno.ENOTDIR)
    reason = (
        "is a symlink, or behind one" if is_symlink else f"cannot be read: {first_error.strerror}"
    )
    raise Invalid(f"{file_name!r} {reason}.", file=file_name)


def _match_folders(path: PurePath, folders: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the folders that can contain a path, with its components relative to each."""
    for folder in folders:
        for known in dict.fromkeys((folder, os.path.realpath(folder))):
            if not path.is_absolute():
                yield known, path.parts
                break
            if path.is_relative_to(known):
                yield known, path.relative_to(known).parts
                break


def _read(folder: str, steps: tuple[str, ...], file_name: str, max_bytes: int) -> bytes:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    parent = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        for step in steps[:-1]:
            child = os.open(step, flags | os.O_DIRECTORY, dir_fd=parent)
            os.close(parent)
            parent = child
        require_unused(steps[-1] if steps else ".", dir_fd=parent, follow=False)
        # O_NONBLOCK: do not wait for a writer if it is a pipe.
        descriptor = os.open(steps[-1] if steps else ".", flags | os.O_NONBLOCK, dir_fd=parent)
    finally:
        os.close(parent)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Invalid(f"{file_name!r} is not a regular file.", file=file_name)
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise Invalid(
            f"{file_name!r} is larger than {max_bytes:,} bytes (setting `chat.max_file_bytes`).",
            file=file_name,
        )
    return data


def store_sent(folder: Path, file_name: str, data: bytes) -> StoredFile:
    """Store a file that an agent sends. The same content and name give the same private file."""
    digest = sha256(data).hexdigest()
    name = make_safe_name(file_name, 1).removeprefix("1-")
    path = folder / digest[:32] / name
    try:
        if _find_modification(path, len(data), digest) is not None:
            _write(path.parent, name, data)
        os.utime(path)  # `delete_older` counts from here
    except OSError as error:
        raise Invalid(f"Cannot store {file_name!r}: {error.strerror}.", file=file_name) from None
    return StoredFile(name, str(path), len(data), guess_type(name)[0], sha256=digest)


def read_stored(file: StoredFile, folder: Path) -> bytes:
    """Read a stored file; follows no symlink out of the folder.

    Raises OSError or Invalid when the file is missing or was modified.
    """
    path = Path(file.path or "")
    if not path.is_relative_to(folder) or ".." in path.parts:
        raise Invalid(f"{file.name!r} is not a stored file.", file=file.name)
    data = _read(str(folder), path.relative_to(folder).parts, file.name, file.bytes)
    if len(data) != file.bytes or file.sha256 not in (None, sha256(data).hexdigest()):
        raise Invalid(f"{file.name!r} was modified after it was stored.", file=file.name)
    return data


GONE = "is missing"


def list_stored(data: dict[str, Any]) -> Iterator[StoredFile]:
    """Yield the stored files in the data of a message."""
    for item in (*data.get("files", ()), *([data["file"]] if "file" in data else ())):
        with suppress(msgspec.ValidationError):
            file = msgspec.convert(item, StoredFile)
            if file.path is not None:
                yield file


def describe_change(file: StoredFile, folder: Path) -> str | None:
    """Describe how a stored file differs from what was stored; None: unchanged."""
    try:
        read_stored(file, folder)
    except FileNotFoundError:
        return GONE
    except Invalid:
        return "was modified"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None


def explain_undeliverable(file: StoredFile, folder: Path) -> str | None:
    """Explain why a stored file cannot be delivered; None: it is unchanged and in place."""
    if file.path is None or file.sha256 is None:
        return "it was never stored"
    path = Path(file.path)
    if not path.is_relative_to(folder) or ".." in path.parts:
        return "it is not a file that an agent sent"
    return _find_modification(path, file.bytes, file.sha256)


def _find_modification(path: Path, size: int, digest: str) -> str | None:
    try:
        data = _read(str(path.parent), (path.name,), path.name, size)
    except (OSError, Invalid):
        return "its private copy is missing"
    return None if sha256(data).hexdigest() == digest else "its private copy was modified"


def delete_older(folder: Path, before: float) -> int:
    """Delete the private files that were last used before a moment; return their number."""
    deleted = 0
    for path in [*folder.rglob("*")] if folder.is_dir() else ():
        with suppress(OSError):
            if stat.S_ISREG(path.lstat().st_mode) and path.lstat().st_mtime < before:
                path.unlink()
                deleted += 1
                path.parent.rmdir()  # fails if the folder is not empty
    return deleted
