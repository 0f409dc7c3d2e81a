"""The version and the options of an installed CLI; each program file is asked once."""

import os
import re
import shutil

SECONDS = 10
_NUMBER = re.compile(r"\d+(?:\.\d+){1,3}(?:[-+][0-9A-Za-z.-]+)?")
# The output of a program, by its file and its arguments.
_known: dict[tuple[str, int, int, tuple[str, ...]], str | None] = {}


def probe(program: str, args: tuple[str, ...] = ("--version",)) -> str | None:
    """The version that `program` names, or None when it cannot be learned.

    The answer is kept for this file of this size and change time, so that it is asked again after
    an update and not before.
    """
    printed = _printed(program, args)
    number = _NUMBER.search(printed[:2_000]) if printed is not None else None
    return number[0] if number else None


def has_option(program: str, option: str) -> bool:
    """Whether the help of `program` names an option; False when the help is not available."""
    printed = _printed(program, ("--help",))
    return printed is not None and re.search(rf"(?<!\S){re.escape(option)}\b", printed) is not None


def _printed(program: str, args: tuple[str, ...]) -> str | None:
    path = shutil.which(program)
    if path is None:
        return None
    try:
        found = os.stat(path)
    except OSError:
        return None
    key = (os.path.realpath(path), found.st_mtime_ns, found.st_size, args)
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
    return done.stdout.decode(errors="replace") if done.returncode == 0 else None
