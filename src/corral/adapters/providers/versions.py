"""Which version of a CLI is installed: asked once for a file as it is, never waited for long."""

import os
import re
import shutil

SECONDS = 10
_NUMBER = re.compile(r"\d+(?:\.\d+){1,3}(?:[-+][0-9A-Za-z.-]+)?")
_known: dict[tuple[str, int, int], str | None] = {}


def probe(program: str, args: tuple[str, ...] = ("--version",)) -> str | None:
    """The version that `program` names, or None when it cannot be learned.

    The answer is kept for this file of this size and change time, so that it is asked again after
    an update and not before.
    """
    path = shutil.which(program)
    if path is None:
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    key = (os.path.realpath(path), found.st_mtime_ns, found.st_size)
    if key not in _known:
        _known[key] = _ask(path, args)
    return _known[key]


def _ask(path: str, args: tuple[str, ...]) -> str | None:
    import subprocess

    try:
        done = subprocess.run(
            [path, *args],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=False,
            start_new_session=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    number = _NUMBER.search(done.stdout.decode(errors="replace")[:2_000])
    return number[0] if number and done.returncode == 0 else None
