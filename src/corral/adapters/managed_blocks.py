"""Blocks that Corral manages in files of other programs.

A shell script gets a block between two markers after its first line. A JSON file gets entries
whose command is Corral's; all other entries keep their order. Removing a block restores the rest
of the file, and deletes a file or folder that was created only for it.
"""

import json
import os
import re
from contextlib import suppress
from typing import Any

from corral.kernel.errors import Refused

BLOCK_BEGIN = (
    "# >>> corral locks: written by `corral lock install`, removed by `corral lock uninstall` >>>"
)
BLOCK_END = "# <<< corral locks <<<"
_BLOCK = re.compile(rf"{re.escape(BLOCK_BEGIN)}\n.*?{re.escape(BLOCK_END)}\n", re.S)
_SHELL = re.compile(r"#!\s*\S*(?:/|env\s+)(?:ba|da|z|k)?sh\b")


def add_block(text: str, lines: str, file: str) -> str:
    """Return a shell script with exactly one managed block; raises Refused for other scripts."""
    plain = remove_block(text) or "#!/bin/sh\n"
    first, newline, rest = plain.partition("\n")
    if not _SHELL.match(first):
        raise Refused(
            f"{file} is not a shell script. Add this line to it yourself: {lines.strip()}",
            file=file,
        )
    return f"{first}\n{BLOCK_BEGIN}\n{lines}{BLOCK_END}\n{rest if newline else ''}"


def remove_block(text: str) -> str:
    """Return a script without the managed block; empty if nothing else remains."""
    plain = _BLOCK.sub("", text)
    return "" if re.fullmatch(r"#![^\n]*\n?\s*", plain) and plain != text else plain


SECTION_BEGIN = (
    "<!-- >>> corral: written by `corral init --agents`, removed by `corral init --no-agents` >>> "
    "-->"
)
SECTION_END = "<!-- <<< corral <<< -->"
_SECTION = re.compile(rf"\n*{re.escape(SECTION_BEGIN)}\n.*?{re.escape(SECTION_END)}\n", re.S)


def add_section(text: str, section: str) -> str:
    """Return a Markdown page with exactly one managed section at its end."""
    plain = remove_section(text).rstrip("\n")
    before = f"{plain}\n\n" if plain else ""
    return f"{before}{SECTION_BEGIN}\n{section.strip()}\n{SECTION_END}\n"


def remove_section(text: str) -> str:
    """Return a Markdown page without the managed section."""
    plain = _SECTION.sub("\n", text)
    return plain if plain == text else plain.lstrip("\n")


def parse_settings(text: str, file: str) -> dict[str, Any]:
    """Parse a JSON settings file with an optional `hooks` object; raises Refused otherwise."""
    try:
        settings = json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise Refused(
            f"{file} is not valid JSON ({error}). Nothing was changed.", file=file
        ) from None
    if not isinstance(settings, dict) or not isinstance(settings.get("hooks", {}), dict):
        raise Refused(f"{file} has an unexpected structure. Nothing was changed.", file=file)
    return settings


def add_hooks(
    text: str,
    hooks: dict[str, dict[str, Any]],
    own_command: re.Pattern[str],
    file: str,
    *,
    new: str = "{}",
) -> str:
    """Return a JSON file with exactly one entry of Corral per event.

    An entry that matches `own_command` belongs to Corral. `new` is the minimal content of such a
    file.
    """
    settings = parse_settings(remove_hooks(text, own_command, file) or new, file)
    events = settings.setdefault("hooks", {})
    for event, entry in hooks.items():
        if not isinstance(events.setdefault(event, []), list):
            raise Refused(f"{file} has an unexpected structure. Nothing was changed.", file=file)
        events[event].append(entry)
    return _format_json(settings, text)


def remove_hooks(text: str, own_command: re.Pattern[str], file: str) -> str:
    """Return a JSON file without the entries of Corral; empty if nothing else remains."""
    settings = parse_settings(text, file)
    events: dict[str, Any] = settings.get("hooks", {})
    if not own_command.search(json.dumps(events)):
        return text
    for event, entries in list(events.items()):
        if isinstance(entries, list):
            events[event] = [
                entry for entry in entries if not own_command.search(json.dumps(entry))
            ]
            if not events[event]:
                del events[event]
    if not events:
        del settings["hooks"]
    return "" if {*settings} <= {"version"} else _format_json(settings, text)


def _format_json(settings: dict[str, Any], previous: str) -> str:
    """Format JSON with the indentation and final line break of the previous text."""
    indented = re.search(r"\n([ \t]+)\S", previous)
    indent: str | int | None = indented[1] if indented else 2
    if previous.strip() and "\n" not in previous.strip():
        indent = None
    written = json.dumps(settings, indent=indent, ensure_ascii=False)
    if not written.isascii() and re.search("[\\ud800-\\udfff]", written):
        written = json.dumps(settings, indent=indent)  # a lone surrogate cannot be encoded as UTF-8
    return written + ("\n" if not previous or previous.endswith("\n") else "")


def read_text(file: str) -> str:
    """Read a text file; empty if it does not exist. Raises Refused when it cannot be read."""
    if os.path.exists(file) and not os.path.isfile(file):  # opening a pipe would block
        raise Refused(
            f"{file} is not a regular file. Move it away.", file=file, reason="not_a_file"
        )
    try:
        with open(file, encoding="utf-8", newline="") as opened:
            return opened.read()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"Cannot read {file}: {error}.", file=file) from None


def write_text(file: str, text: str, *, program: bool = False) -> None:
    """Replace the content of a file atomically.

    An empty text deletes the file, and its folder if that is empty then.
    """
    real = os.path.realpath(file)
    try:
        if not text:
            with suppress(FileNotFoundError):
                os.unlink(real)
            with suppress(OSError):
                os.rmdir(os.path.dirname(real))
            return
        os.makedirs(os.path.dirname(real), exist_ok=True)
        temporary = f"{real}.corral-{os.getpid()}"
        default_mode = 0o755 if program else 0o644
        mode = os.stat(real).st_mode & 0o777 if os.path.exists(real) else default_mode
        with open(temporary, "w", encoding="utf-8", newline="") as opened:
            opened.write(text)
        os.chmod(temporary, mode)
        os.replace(temporary, real)
    except OSError as error:
        raise Refused(f"Cannot write {file}: {error.strerror}.", file=file) from None
