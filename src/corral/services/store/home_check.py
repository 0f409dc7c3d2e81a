"""Checks of the files in a home: permissions, and leftovers of processes that died.

Leftovers are harmless, because every process replaces the ones that it meets. They are reported and
removed because they confuse people who look into the home.
"""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from corral.db.types import Finding

# A temporary file, renamed when complete. The hidden name contains the pid of its writer, so that
# no secret and no file of the user has such a name.
_TEMPORARY = re.compile(r"\..+\.new-(\d+)")
_DAEMON = re.compile(r"daemon(?:-[0-9a-f]{12})?\.json")
MAX_NAMED = 3


def check_home(home: Path, *, fix: bool = False) -> list[Finding]:
    """Check the files of an existing home; `fix` makes them private and removes leftovers."""
    return [
        _check_permissions(home, fix),
        _check_leftovers("daemon files", "daemons", _iter_daemon_files(home), fix),
        _check_leftovers("supervisors' sockets", "supervisors", _iter_sockets(home), fix),
        _check_leftovers("unfinished files", "processes", _iter_temporary_files(home), fix),
    ]


def _check_leftovers(check: str, owners: str, leftovers: Iterator[Path], fix: bool) -> Finding:
    """Report leftovers of dead processes.

    Each one is removed as soon as the iterator has checked it, because a new process may use the
    path afterwards. A daemon file is locked meanwhile.
    """
    paths = []
    for path in leftovers:
        paths.append(path)
        if fix:
            path.unlink(missing_ok=True)
    if not paths:
        return Finding(check, "ok", "No leftovers.")
    names = _join(paths)
    if not fix:
        message = f"Left by {owners} that died: {names}. Remove them with `corral doctor --fix`."
        return Finding(check, "warning", message)
    return Finding(check, "ok", f"Removed, left by {owners} that died: {names}.")


def _check_permissions(home: Path, fix: bool) -> Finding:
    """Check the home and its secrets. Folders below the home are private themselves."""
    paths = []
    for path in [*home.iterdir(), *_list_folder(home / "secrets")]:
        with suppress(FileNotFoundError):
            mode = path.lstat().st_mode
            if stat.S_IMODE(mode) & 0o077 and not stat.S_ISLNK(mode):
                paths.append(path)
                if fix:
                    path.chmod(0o700 if stat.S_ISDIR(mode) else 0o600)
    if not paths:
        return Finding("files", "ok", "All files of the home are private to their user.")
    names = _join(paths)
    if fix:
        return Finding("files", "ok", f"Made private; other users could read: {names}.")
    return Finding(
        "files",
        "warning",
        f"{names}: readable by other users. Make them private with `corral doctor --fix`.",
    )


def _join(paths: list[Path]) -> str:
    return ", ".join(map(str, paths[:MAX_NAMED])) + (", …" if len(paths) > MAX_NAMED else "")


def _list_folder(folder: Path) -> list[Path]:
    return [*folder.iterdir()] if folder.is_dir() else []


def _iter_daemon_files(home: Path) -> Iterator[Path]:
    """Yield the files of dead daemons, each locked. A live daemon holds the lock on its file."""
    import fcntl

    for path in [file for file in home.iterdir() if _DAEMON.fullmatch(file.name)]:
        with suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                yield path


def _iter_sockets(home: Path) -> Iterator[Path]:
    from corral.adapters import control_socket

    for folder in _list_folder(home / "runs"):
        path = folder / control_socket.SOCKET_NAME
        # Any other OSError than a refused connection: unknown, so it is left alone.
        with suppress(OSError):
            before = path.lstat()
            is_dead = stat.S_ISSOCK(before.st_mode) and _refuses_connections(folder)
            # A supervisor that started meanwhile has replaced the socket.
            if is_dead and os.path.samestat(before, path.lstat()):
                yield path


def _refuses_connections(folder: Path) -> bool:
    """Whether no process listens on the control socket of a run; raises OSError if unknown."""
    from corral.adapters import control_socket

    try:
        control_socket.connect(folder, timeout=1.0).close()
    except ConnectionRefusedError:
        return True
    return False


def _iter_temporary_files(home: Path) -> Iterator[Path]:
    for path in [*home.iterdir(), *_list_folder(home / "secrets")]:
        match = _TEMPORARY.fullmatch(path.name)
        if match is not None and path.is_file() and not _is_alive(int(match[1])):
            yield path


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
