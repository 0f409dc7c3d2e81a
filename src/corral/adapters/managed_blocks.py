"""What Corral writes into other programs' files, so that it can be found and taken out again.

A script gets a block between two marks, right behind its first line. A JSON file gets entries whose
command is ours; all others stay in their order. Taking ours out leaves the rest as it was, and no
file and no folder that was made only for it.
"""

import json
import os
import re
from contextlib import suppress
from typing import Any

from corral.kernel.errors import Refused

BEGIN = (
    "# >>> corral locks: written by `corral lock install`, removed by `corral lock uninstall` >>>"
)
END = "# <<< corral locks <<<"
_BLOCK = re.compile(rf"{re.escape(BEGIN)}\n.*?{re.escape(END)}\n", re.S)
_SHELL = re.compile(r"#!\s*\S*(?:/|env\s+)(?:ba|da|z|k)?sh\b")


def with_block(text: str, lines: str, file: str) -> str:
    """A shell script with our block in it, once; Refused when it is a script of another kind."""
    plain = without_block(text) or "#!/bin/sh\n"
    first, newline, rest = plain.partition("\n")
    if not _SHELL.match(first):
        raise Refused(
            f"{file} is no shell script; let it run this line itself: {lines.strip()}", file=file
        )
    return f"{first}\n{BEGIN}\n{lines}{END}\n{rest if newline else ''}"


def without_block(text: str) -> str:
    """A script without our block; empty when there is nothing else in it."""
    plain = _BLOCK.sub("", text)
    return "" if re.fullmatch(r"#![^\n]*\n?\s*", plain) and plain != text else plain


SECTION_BEGIN = (
    "<!-- >>> corral: written by `corral init --agents`, removed by `corral init --no-agents` >>> "
    "-->"
)
SECTION_END = "<!-- <<< corral <<< -->"
_SECTION = re.compile(rf"\n*{re.escape(SECTION_BEGIN)}\n.*?{re.escape(SECTION_END)}\n", re.S)


def with_section(text: str, section: str) -> str:
    """A page of Markdown with our section at its end, once."""
    plain = without_section(text).rstrip("\n")
    before = f"{plain}\n\n" if plain else ""
    return f"{before}{SECTION_BEGIN}\n{section.strip()}\n{SECTION_END}\n"


def without_section(text: str) -> str:
    """The page without it, and with one line end at its end."""
    plain = _SECTION.sub("\n", text)
    return plain if plain == text else plain.lstrip("\n")


def read_json(text: str, file: str) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise Refused(
            f"{file} is not plain JSON ({error}). Nothing was changed; correct it first.", file=file
        ) from None
    if not isinstance(found, dict) or not isinstance(found.get("hooks", {}), dict):
        raise Refused(f"{file} does not look as expected; nothing was changed.", file=file)
    return found


def with_hooks(
    text: str,
    hooks: dict[str, dict[str, Any]],
    ours: re.Pattern[str],
    file: str,
    *,
    new: str = "{}",
) -> str:
    """A JSON file with our entry for each event, once; an entry is ours when it fits `ours`.

    `new` is what such a file holds at the least.
    """
    found = read_json(without_hooks(text, ours, file) or new, file)
    events = found.setdefault("hooks", {})
    for event, entry in hooks.items():
        if not isinstance(events.setdefault(event, []), list):
            raise Refused(f"{file} does not look as expected; nothing was changed.", file=file)
        events[event].append(entry)
    return _as_text(found, text)


def without_hooks(text: str, ours: re.Pattern[str], file: str) -> str:
    """A JSON file without our entries; empty when there is nothing else in it."""
    found = read_json(text, file)
    events: dict[str, Any] = found.get("hooks", {})
    if not ours.search(json.dumps(events)):
        return text
    for event, entries in list(events.items()):
        if isinstance(entries, list):
            events[event] = [entry for entry in entries if not ours.search(json.dumps(entry))]
            if not events[event]:
                del events[event]
    if not events:
        del found["hooks"]
    return "" if {*found} <= {"version"} else _as_text(found, text)


def _as_text(found: dict[str, Any], like: str) -> str:
    """JSON, written in the way in which it was written before."""
    indented = re.search(r"\n([ \t]+)\S", like)
    indent: str | int | None = indented[1] if indented else 2
    if like.strip() and "\n" not in like.strip():
        indent = None
    written = json.dumps(found, indent=indent, ensure_ascii=False)
    if not written.isascii() and re.search("[\\ud800-\\udfff]", written):
        written = json.dumps(found, indent=indent)  # half a character, which no file can hold
    return written + ("\n" if not like or like.endswith("\n") else "")


def read(file: str) -> str:
    if os.path.exists(file) and not os.path.isfile(file):  # a pipe would be waited for
        raise Refused(
            f"{file} is no plain file; take away what is there.", file=file, reason="not_a_file"
        )
    try:
        with open(file, encoding="utf-8", newline="") as opened:
            return opened.read()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{file} cannot be read: {error}.", file=file) from None


def write(file: str, text: str, *, program: bool = False) -> None:
    """Put a text in the place of a file's, whole or not at all; an empty one removes the file, and
    the folder that it was in when nothing else is there."""
    real = os.path.realpath(file)
    try:
        if not text:
            with suppress(FileNotFoundError):
                os.unlink(real)
            with suppress(OSError):
                os.rmdir(os.path.dirname(real))
            return
        os.makedirs(os.path.dirname(real), exist_ok=True)
        part = f"{real}.corral-{os.getpid()}"
        new = 0o755 if program else 0o644
        mode = os.stat(real).st_mode & 0o777 if os.path.exists(real) else new
        with open(part, "w", encoding="utf-8", newline="") as opened:
            opened.write(text)
        os.chmod(part, mode)
        os.replace(part, real)
    except OSError as error:
        raise Refused(f"{file} cannot be written: {error.strerror}.", file=file) from None
