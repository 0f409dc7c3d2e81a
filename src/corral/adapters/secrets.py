"""Secrets: resolve a reference to its value at the moment of use.

    env:NAME              an environment variable
    file:PATH             the text of a private file, without the final line break
    cmd:COMMAND           the output of a command, such as a password manager
    keyring:SERVICE/NAME  the keyring of the desktop

Values are never stored, logged or included in errors. `store_in_file` and `store_in_keyring`
write a value only when the user asks for it.
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
MAX_SECRET_BYTES = 64 * 1024


def resolve_secret(reference: str) -> str:
    """Return the value of a reference.

    An error names what is missing and never contains a value.
    """
    kind, _, location = reference.partition(":")
    if kind not in ("env", "file", "cmd", "keyring") or not location.strip():
        # Do not repeat the text: it may be the secret itself.
        raise Invalid(
            "Invalid secret reference: expected env:NAME, file:PATH, cmd:COMMAND or "
            "keyring:SERVICE/NAME."
        )
    return {"env": _read_env, "file": _read_file, "cmd": _read_command, "keyring": _read_keyring}[
        kind
    ](location)


def _read_env(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise NotFound(
            f"The environment variable {name} is not set. Set it in the environment of this "
            "command and of the daemon, then restart the daemon (`corral down`, `corral up`).",
            name=name,
        )
    return value


def _read_file(path: str) -> str:
    file = Path(path).expanduser()
    try:
        # O_NONBLOCK: do not wait for a writer if the path is a pipe.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as opened:
            status = os.fstat(descriptor)
            _check_private(file, status)
            value = opened.read(MAX_SECRET_BYTES).decode().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise NotFound(f"Cannot read the secret file {file}: {reason}.", path=str(file)) from None
    if not value:
        raise NotFound(f"The secret file {file} is empty.", path=str(file))
    return value


def _check_private(file: Path, status: os.stat_result) -> None:
    """Check the opened file before reading it: a check by path could be raced."""
    if not stat.S_ISREG(status.st_mode) or status.st_size >= MAX_SECRET_BYTES:
        raise Refused(
            f"{file} is not a regular file of less than {MAX_SECRET_BYTES:,} bytes.",
            path=str(file),
        )
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise Refused(
            f"The secret file {file} is readable by other users. Run `chmod 600 {file}`.",
            path=str(file),
            reason="readable_by_others",
        )


def _read_command(command: str) -> str:
    try:
        result = subprocess.run(
            shlex.split(command),
            stdin=subprocess.DEVNULL,
            text=True,
            capture_output=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise NotFound(
            f"Cannot run the command of the secret ({type(error).__name__}). Try it by hand.",
            command=command,
        ) from None
    value = result.stdout.rstrip("\r\n")
    if result.returncode != 0 or not value:
        raise NotFound(
            f"The command of the secret exited with {result.returncode} and printed "
            f"{'nothing' if not value else 'something'}. Try it by hand.",
            command=command,
            exit_code=result.returncode,
            reason="command_failed",
        )
    return value


def _read_keyring(entry: str) -> str:
    service, _, name = entry.partition("/")
    keyring = _import_keyring()
    try:
        value = keyring.get_password(service, name)
    except Exception as error:  # every backend has errors of its own
        raise NotFound(
            f"The keyring did not answer ({type(error).__name__}). Unlock it, or use "
            "env:, file: or cmd:."
        ) from None
    if not value:
        raise NotFound(f"The keyring has no entry {entry}.", entry=entry)
    return str(value)


def _import_keyring() -> Any:
    try:
        import keyring
    except ImportError:
        raise Invalid(
            "Keyrings need an extra package. Run `pip install 'corral[keyring]'`, or "
            "use env:, file: or cmd:."
        ) from None
    return keyring


def _check_value(value: str) -> None:
    """Reject values that cannot be passed to a process; the error does not repeat the value."""
    if not value or "\0" in value or (not value.isascii() and not _is_utf8(value)):
        raise Invalid("The value is empty, contains a NUL byte, or is not valid UTF-8.")


def _is_utf8(value: str) -> bool:
    try:
        return bool(value.encode())
    except UnicodeEncodeError:
        return False


def store_in_file(folder: Path, name: str, value: str) -> str:
    """Write a value to a private file, atomically; return its reference."""
    _check_value(value)
    path = folder / name
    temporary = path.with_name(f".{name}.new-{os.getpid()}")  # not a valid secret name
    try:
        make_private_folder(folder)
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(value)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(path)
    except OSError as error:
        raise Refused(
            f"Cannot store the secret in {folder}: {error.strerror}. Check the directory, or "
            "use a reference to an existing secret.",
            path=str(folder),
        ) from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    return f"file:{path}"


def read_all_values(folder: Path) -> list[str]:
    """Return the values stored in the files of a folder; empty if it does not exist."""
    values = []
    with suppress(OSError):
        for file in sorted(os.listdir(folder)):
            with suppress(NotFound, Refused):
                values.append(_read_file(str(folder / file)))
    return values


def store_in_keyring(name: str, value: str) -> str:
    """Store a value in the desktop's keyring; return its reference."""
    _check_value(value)
    keyring = _import_keyring()
    try:
        keyring.set_password("corral", name, value)
    except Exception as error:  # every backend has errors of its own
        raise Refused(
            f"No keyring accepted the secret ({type(error).__name__}). Store it in a private "
            "file instead (--keep file).",
            reason="no_keyring",
        ) from None
    return f"keyring:corral/{name}"
