"""What is attached to messages goes into private files, with names that can do no harm.

A name comes from a stranger: only its last part is used, only plain characters of it, and the file
is made anew in a folder of its own, so that no link and no other message's file is ever followed or
written.
"""

import os
import re
from hashlib import sha256
from pathlib import Path

from corral.adapters.channels.contract import Attached, File
from corral.config import make_private_folder

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
        make_private_folder(folder)
        path = folder / name
        path.unlink(missing_ok=True)  # left by whoever died before the message was stored
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            file.write(attached.data)
    except OSError as error:
        return File(shown, None, size, attached.type, f"not kept: {error.strerror}")
    return File(shown, str(path), size, attached.type)
