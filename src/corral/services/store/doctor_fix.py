"""What a home is left with when processes die: found, explained, cleared away where that is safe.

Nothing here is needed by anybody: whoever meets it takes it over. It is told because it puzzles
those who look, and cleared away because they would otherwise do it by hand.
"""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from corral.db.database import Finding

# Files that are written beside the one that they become: the process that does so is in their name,
# which is hidden, so that no secret and no file of the user's is called so.
_UNFINISHED = re.compile(r"\..+\.new-(\d+)")
_DAEMON = re.compile(r"daemon(?:-[0-9a-f]{12})?\.json")
MOST_NAMED = 3


def look(home: Path, *, fix: bool = False) -> list[Finding]:
    """The findings of a home that is there."""
    return [
        _open_to_others(home, fix),
        _told("daemon files", "by daemons that are gone", _daemons(home), fix),
        _told("keepers' sockets", "by keepers that are gone", _sockets(home), fix),
        _told("unfinished files", "by processes that are gone", _unfinished(home), fix),
    ]


def _told(check: str, what: str, left: Iterator[Path], fix: bool) -> Finding:
    """Each is removed while it is looked at: what is sure of it then may not be so later."""
    found = []
    for path in left:
        found.append(path)
        if fix:
            path.unlink(missing_ok=True)
    if not found:
        return Finding(check, "ok", "None is left behind.")
    named = ", ".join(map(str, found[:MOST_NAMED])) + (", …" if len(found) > MOST_NAMED else "")
    if not fix:
        words = f"Left {what}: {named}; `corral doctor --fix` removes it."
        return Finding(check, "warning", words)
    return Finding(check, "ok", f"Left {what}, and removed: {named}.")


def _open_to_others(home: Path, fix: bool) -> Finding:
    """What stands in the home itself, and its secrets: below that, folders are private."""
    found = []
    for path in [*home.iterdir(), *_listed(home / "secrets")]:
        with suppress(FileNotFoundError):
            mode = path.lstat().st_mode
            if stat.S_IMODE(mode) & 0o077 and not stat.S_ISLNK(mode):
                found.append(path)
                if fix:
                    path.chmod(0o700 if stat.S_ISDIR(mode) else 0o600)
    if not found:
        return Finding("files", "ok", "All in the home are private to their user.")
    named = ", ".join(map(str, found[:MOST_NAMED])) + (", …" if len(found) > MOST_NAMED else "")
    if fix:
        return Finding("files", "ok", f"{named}: open to others, and private now.")
    words = f"{named} can be read by others; `corral doctor --fix` makes them private."
    return Finding("files", "warning", words)


def _listed(folder: Path) -> list[Path]:
    return [*folder.iterdir()] if folder.is_dir() else []


def _daemons(home: Path) -> Iterator[Path]:
    """Files that tell of a daemon that is gone; a living one keeps its file locked, and so is each
    while it is told, that none takes it meanwhile."""
    import fcntl

    for path in [each for each in home.iterdir() if _DAEMON.fullmatch(each.name)]:
        with suppress(OSError), path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                yield path


def _sockets(home: Path) -> Iterator[Path]:
    from corral.adapters import control_socket

    for folder in _listed(home / "runs"):
        if stat.S_ISSOCK(_mode(folder / control_socket.NAME)):
            try:
                control_socket.connect(folder, timeout=1.0).close()
            except ConnectionRefusedError:
                yield folder / control_socket.NAME
            except OSError:
                pass  # not told for certain


def _mode(path: Path) -> int:
    try:
        return path.lstat().st_mode
    except OSError:
        return 0


def _unfinished(home: Path) -> Iterator[Path]:
    for path in [*home.iterdir(), *_listed(home / "secrets")]:
        named = _UNFINISHED.fullmatch(path.name)
        if named is not None and path.is_file() and not _lives(int(named[1])):
            yield path


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
