"""What is attached to messages, both ways, is in private files, with names that can do no harm.

A name comes from a stranger: only its last part is used, only plain characters of it, and the file
is made anew in a folder of its own, so that no link and no other message's file is ever followed or
written. What an agent sends is read once, when it sends it, from a folder that it works in and
through no link; what it does with its file later does not matter.
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

from corral.adapters.channels.contract import Attached, File
from corral.config import make_private_folder
from corral.kernel.errors import Invalid, Refused
from corral.kernel.open_files import require_unused

MOST_FILES = 20
MAX_NAME = 80
_STRANGE = re.compile(r"[^A-Za-z0-9._-]+")


def safe_name(given: str, number: int) -> str:
    """A plain file name, made of what is harmless in a given one; the number keeps two apart."""
    last = given.replace("\\", "/").rpartition("/")[2]
    plain = _STRANGE.sub("_", last).strip("._-")[-MAX_NAME:]
    return f"{number}-{plain or 'file'}"


def keep(folder: Path, event: str, attached: list[Attached], *, most: int) -> list[File]:
    """Write what is attached to an event into private files. Doing it again gives the same files.

    What is too large, or too much, or cannot be written is told and not taken.
    """
    own = folder / sha256(event.encode(errors="replace")).hexdigest()[:32]
    kept = []
    for number, each in enumerate(attached[:MOST_FILES], 1):
        kept.append(_keep_one(own, number, each, most))
    for each in attached[MOST_FILES:]:
        kept.append(File(each.name[:MAX_NAME], None, each.bytes, each.type, "too many files"))
    return kept


def _keep_one(folder: Path, number: int, attached: Attached, most: int) -> File:
    name = safe_name(attached.name, number)
    size = len(attached.data) if attached.data is not None else attached.bytes
    shown = attached.name[:MAX_NAME].replace("\0", "")
    if attached.data is None:
        why = attached.reason or "it could not be fetched"
        return File(shown, None, size, attached.type, why)
    if size > most:
        return File(shown, None, size, attached.type, f"it has more than {most:,} bytes")
    try:
        path = _write(folder, name, attached.data)
    except OSError as error:
        return File(shown, None, size, attached.type, f"not kept: {error.strerror}")
    return File(shown, str(path), size, attached.type)


def _write(folder: Path, name: str, data: bytes) -> Path:
    make_private_folder(folder)
    path = folder / name
    path.unlink(missing_ok=True)  # left by whoever died before the message was stored
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(data)
    return path


# -- what agents send -----------------------------------------------------------------------------


def take(given: str, folders: Sequence[str], *, most: int, never: Path) -> bytes:
    """The bytes of a file that lies in one of these folders. Each step of its path is opened by
    itself and must be no link, so that nothing outside is read, whoever changes the path meanwhile.

    Refused when it lies elsewhere, or below `never`; Invalid when it cannot be read or is too
    large.
    """
    path = PurePath(given)
    if "\0" in given or ".." in path.parts:
        raise Refused(
            f"{given!r} leads out of its folder; name the file itself.",
            file=given,
            reason="outside_folder",
        )
    inside = list(_inside(path, folders))
    if not inside:
        known = ", ".join(folders) or "no folder"
        raise Refused(f"{given!r} is not in a folder that you work in: {known}.", file=given)
    trouble: OSError | None = None
    for folder, steps in inside:
        if Path(folder, *steps).is_relative_to(never) and never not in Path(folder).parents:
            raise Refused(f"{given!r} belongs to Corral itself.", file=given)
        try:
            return _read(folder, steps, given, most)
        except OSError as error:
            trouble = trouble or error
    assert trouble is not None
    linked = trouble.errno in (errno.ELOOP, errno.ENOTDIR)
    why = "is a link, or behind one" if linked else f"cannot be read: {trouble.strerror}"
    raise Invalid(f"{given!r} {why}.", file=given)


def _inside(path: PurePath, folders: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The folders that a path may lie in, each with the steps from there."""
    for folder in folders:
        for known in dict.fromkeys((folder, os.path.realpath(folder))):
            if not path.is_absolute():
                yield known, path.parts
                break
            if path.is_relative_to(known):
                yield known, path.relative_to(known).parts
                break


def _read(folder: str, steps: tuple[str, ...], given: str, most: int) -> bytes:
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
    at = os.open(folder, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY)
    try:
        for step in steps[:-1]:
            below = os.open(step, flags | os.O_DIRECTORY, dir_fd=at)
            os.close(at)
            at = below
        require_unused(steps[-1] if steps else ".", dir_fd=at, follow=False)
        # Not to wait for whoever would write into a pipe.
        found = os.open(steps[-1] if steps else ".", flags | os.O_NONBLOCK, dir_fd=at)
    finally:
        os.close(at)
    with os.fdopen(found, "rb") as file:
        if not stat.S_ISREG(os.fstat(found).st_mode):
            raise Invalid(f"{given!r} is no plain file.", file=given)
        data = file.read(most + 1)
    if len(data) > most:
        raise Invalid(
            f"{given!r} has more than {most:,} bytes; `gateway.max_file_bytes` says how many.",
            file=given,
        )
    return data


def keep_sent(folder: Path, given: str, data: bytes) -> File:
    """Keep what an agent sends. The same file sent again is the same private file."""
    digest = sha256(data).hexdigest()
    name = safe_name(given, 1).removeprefix("1-")
    path = folder / digest[:32] / name
    try:
        if _changed(path, len(data), digest) is not None:
            _write(path.parent, name, data)
        os.utime(path)  # it is young again: `forget` counts from here
    except OSError as error:
        raise Invalid(f"{given!r} cannot be kept: {error.strerror}.", file=given) from None
    return File(name, str(path), len(data), guess_type(name)[0], sha256=digest)


def read_kept(file: File, folder: Path) -> bytes:
    """The bytes of a file that was kept below a folder; no link leads out of it.

    OSError or Invalid: it is gone, or not what was kept.
    """
    path = Path(file.path or "")
    if not path.is_relative_to(folder) or ".." in path.parts:
        raise Invalid(f"{file.name!r} is not among the files that are kept here.", file=file.name)
    data = _read(str(folder), path.relative_to(folder).parts, file.name, file.bytes)
    if len(data) != file.bytes or file.sha256 not in (None, sha256(data).hexdigest()):
        raise Invalid(f"{file.name!r} is not any more what was kept.", file=file.name)
    return data


GONE = "is gone"


def kept_of(data: dict[str, Any]) -> Iterator[File]:
    """The files that were kept of a message, by what is stored with it."""
    for each in (*data.get("files", ()), *([data["file"]] if "file" in data else ())):
        with suppress(msgspec.ValidationError):
            file = msgspec.convert(each, File)
            if file.path is not None:
                yield file


def changed(file: File, folder: Path) -> str | None:
    """How a file that was kept below a folder differs from what was kept; None: not at all."""
    try:
        read_kept(file, folder)
    except FileNotFoundError:
        return GONE
    except Invalid:
        return "is not what was kept"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return None


def trouble_with(file: File, folder: Path) -> str | None:
    """Why a file that was kept is not what is delivered; None: it is the same, in its place."""
    if file.path is None or file.sha256 is None:
        return "it was never kept"
    path = Path(file.path)
    if not path.is_relative_to(folder) or ".." in path.parts:
        return "it is not among the files that agents sent"
    return _changed(path, file.bytes, file.sha256)


def _changed(path: Path, size: int, digest: str) -> str | None:
    try:
        data = _read(str(path.parent), (path.name,), path.name, size)
    except (OSError, Invalid):
        return "its private copy is gone"
    return None if sha256(data).hexdigest() == digest else "its private copy was changed"


def forget(folder: Path, before: float) -> int:
    """Remove the private files that nobody touched since a moment; gives how many there were."""
    gone = 0
    for path in [*folder.rglob("*")] if folder.is_dir() else ():
        with suppress(OSError):
            if stat.S_ISREG(path.lstat().st_mode) and path.lstat().st_mtime < before:
                path.unlink()
                gone += 1
                path.parent.rmdir()  # fails where others are left
    return gone
