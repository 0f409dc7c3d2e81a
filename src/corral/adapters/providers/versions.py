"""Version and option probes of installed CLIs, cached per program file."""

import os
import re
import shutil

PROBE_TIMEOUT = 10
_NUMBER = re.compile(r"\d+(?:\.\d+){1,3}(?:[-+][0-9A-Za-z.-]+)?")
# Output of a program by path, mtime, size and arguments.
_cache: dict[tuple[str, int, int, tuple[str, ...]], str | None] = {}


def probe_version(program: str, args: tuple[str, ...] = ("--version",)) -> str | None:
    """Return the version that `program` prints; None if it cannot be determined.

    The result is cached by path, mtime and size, so the program runs again after an update.
    """
    printed = _capture_output(program, args)
    number = _NUMBER.search(printed[:2_000]) if printed is not None else None
    return number[0] if number else None


def has_option(program: str, option: str) -> bool:
    """Return whether the help of `program` lists an option; False if there is no help."""
    printed = _capture_output(program, ("--help",))
    return printed is not None and re.search(rf"(?<!\S){re.escape(option)}\b", printed) is not None


def _capture_output(program: str, args: tuple[str, ...]) -> str | None:
    path = shutil.which(program)
    if path is None:
        return None
    try:
        stat = os.stat(path)
    except OSError:
        return None
    key = (os.path.realpath(path), stat.st_mtime_ns, stat.st_size, args)
    if key not in _cache:
        _cache[key] = _run(path, args)
    return _cache[key]


def _run(path: str, args: tuple[str, ...]) -> str | None:
    import subprocess

    try:
        result = subprocess.run(
            [path, *args],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_TIMEOUT,
            check=False,
            start_new_session=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.decode(errors="replace") if result.returncode == 0 else None
