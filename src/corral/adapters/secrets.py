"""Secrets: from a reference to the value, at the moment it is needed.

    env:NAME              an environment variable
    file:PATH             a file's text, without the line end at its end; private to its user
    cmd:COMMAND           what a command prints (a password manager's, say)
    keyring:SERVICE/NAME  the desktop's key ring

A value is never stored, logged or put into an error. `keep` writes one to a private file or the key
ring, only when a person asks for it.
"""

import os
import shlex
import stat
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from corral.config import make_private_folder
from corral.kernel.errors import Invalid, NotFound, Refused

COMMAND_SECONDS = 30
MAX_SECRET = 64 * 1024


def resolve(reference: str) -> str:
    """The value behind a reference; an error says what is missing and never shows a value."""
    kind, _, where = reference.partition(":")
    if kind not in ("env", "file", "cmd", "keyring") or not where.strip():
        # The text is not repeated: it may be the secret itself.
        raise Invalid("That is no reference; write env:, file:, cmd: or keyring: and a place.")
    return {"env": _from_env, "file": _from_file, "cmd": _from_command, "keyring": _from_keyring}[
        kind
    ](where)


def _from_env(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise NotFound(
            f"The environment variable {name} is not set; set it where Corral starts.", name=name
        )
    return value


def _from_file(path: str) -> str:
    file = Path(path).expanduser()
    try:
        # Not blocking: a pipe that nobody writes to must not hold up whoever asks.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as opened:
            found = os.fstat(descriptor)
            _check_private(file, found)
            value = opened.read(MAX_SECRET).decode().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise NotFound(
            f"The secret file {file} cannot be read: {reason}.", path=str(file)
        ) from None
    if not value:
        raise NotFound(f"The secret file {file} is empty.", path=str(file))
    return value


def _check_private(file: Path, found: os.stat_result) -> None:
    """Look at the very file that is open, before anything of it is read."""
    if not stat.S_ISREG(found.st_mode) or found.st_size >= MAX_SECRET:
        raise Refused(
            f"{file} is no file with a secret in it; give one of less than {MAX_SECRET:,} bytes.",
            path=str(file),
        )
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise Refused(
            f"The secret file {file} can be read by others; run `chmod 600 {file}`.",
            path=str(file),
            reason="readable_by_others",
        )


def _from_command(command: str) -> str:
    try:
        told = subprocess.run(
            shlex.split(command),
            stdin=subprocess.DEVNULL,
            text=True,
            capture_output=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise NotFound(
            f"The secret's command could not be run ({type(error).__name__}); try it by hand.",
            command=command,
        ) from None
    value = told.stdout.rstrip("\r\n")
    if told.returncode != 0 or not value:
        raise NotFound(
            f"The secret's command ended with {told.returncode} and gave "
            f"{'nothing' if not value else 'something'}; try it by hand.",
            command=command,
            exit_code=told.returncode,
            reason="command_failed",
        )
    return value


def _from_keyring(where: str) -> str:
    service, _, name = where.partition("/")
    keyring = _keyring()
    try:
        value = keyring.get_password(service, name)
    except Exception as error:  # every backend has errors of its own
        raise NotFound(
            f"The key ring did not answer ({type(error).__name__}); unlock it, or use "
            "env:, file: or cmd:."
        ) from None
    if not value:
        raise NotFound(f"The key ring has no entry {where}.", entry=where)
    return str(value)


def _keyring() -> Any:
    try:
        import keyring
    except ImportError:
        raise Invalid(
            "Key rings need one more package; run `pip install 'corral[keyring]'`, or "
            "use env:, file: or cmd:."
        ) from None
    return keyring


def _check_value(value: str) -> None:
    """Refuse what no process could be given; the value itself is not repeated."""
    if not value or "\0" in value or (not value.isascii() and not _is_utf8(value)):
        raise Invalid("The value is empty, holds a NUL byte or is not valid UTF-8; give another.")


def _is_utf8(value: str) -> bool:
    try:
        return bool(value.encode())
    except UnicodeEncodeError:
        return False


def keep_in_file(folder: Path, name: str, value: str) -> str:
    """Write a value to a private file and give back the reference to it."""
    _check_value(value)
    path = folder / name
    fresh = path.with_name(f".{name}.new-{os.getpid()}")  # no secret is called so
    try:
        make_private_folder(folder)
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(value)
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(path)
    except OSError as error:
        raise Refused(
            f"The secret could not be kept in {folder} ({error.strerror}); check the folder, or "
            "refer to the secret where it is.",
            path=str(folder),
        ) from None
    finally:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
    return f"file:{path}"


def values_in(folder: Path) -> list[str]:
    """The values that are kept in a folder's files; none when there is no such folder."""
    found = []
    with suppress(OSError):
        for file in sorted(os.listdir(folder)):
            with suppress(NotFound, Refused):
                found.append(_from_file(str(folder / file)))
    return found


def keep_in_keyring(name: str, value: str) -> str:
    """Put a value into the desktop's key ring and give back the reference to it."""
    _check_value(value)
    keyring = _keyring()
    try:
        keyring.set_password("corral", name, value)
    except Exception as error:  # every backend has errors of its own
        raise Refused(
            f"No key ring took the secret ({type(error).__name__}); keep it in a private "
            "file instead (--keep file).",
            reason="no_keyring",
        ) from None
    return f"keyring:corral/{name}"
