"""Parse a prompt like an agent does: by its fence lines."""

import re
from typing import NamedTuple

_BLOCK = re.compile(
    r"^\[corral:(?P<mark>[0-9a-f]{16}) begin\] (?P<source>.*)\n"
    r"(?P<files>(?:\[corral:(?P=mark) file\] .*\n)*)"
    r"(?P<text>(?: {4}.*\n)+)"
    r"\[corral:(?P=mark) end\]$",
    re.MULTILINE,
)


class Quoted(NamedTuple):
    source: str
    text: str
    files: tuple[str, ...] = ()


def quotes_in(prompt: str | None) -> list[Quoted]:
    """Return the quotes of a prompt in order, including earlier ones."""
    return [
        Quoted(
            item["source"],
            "\n".join(line[4:] for line in item["text"].splitlines()),
            tuple(line.partition("] ")[2] for line in item["files"].splitlines()),
        )
        for item in _BLOCK.finditer(prompt or "")
    ]


def texts_in(prompt: str | None) -> list[str]:
    """Return the texts of the quotes; the prompt itself if it has none."""
    return [quote.text for quote in quotes_in(prompt)] or [prompt or ""]


def now_in(prompt: str | None) -> str:
    """Return the current part of a prompt, without the history."""
    return (prompt or "").rpartition("\n\nNow: ")[2]
