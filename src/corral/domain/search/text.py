"""Text processing of the search: queries that are always valid, passages and snippets."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from corral.kernel.errors import Invalid
from corral.kernel.validation import check_text
from corral.kernel.words import tokenize

MAX_QUERY = 1_000
MAX_PASSAGE = 16_000  # characters; both engines index larger texts slowly or not at all
SNIPPET_LENGTH = 160

_WORD = re.compile(r"[^\W_]+")
_ESCAPE = re.compile(r"\\[bfnrt]")


def build_query(text: str) -> str:
    """Build a query of quoted phrases: words joined by punctuation (`foo_bar.py`) are one phrase.

    Both engines interpret it the same way, and it contains no operators.
    """
    check_text(text, "The search text", max_bytes=MAX_QUERY)
    phrases = [" ".join(tokenize(part)) for part in text.split()]
    query = " ".join(f'"{phrase}"' for phrase in phrases if phrase)
    if not query:
        raise Invalid(f"Invalid search text {text!r}: it has no letters or digits.", value=text)
    return query


def fold_words(text: str) -> str | None:
    """Return the words of a text in lower case; None for ASCII, which the engines fold."""
    return None if text.isascii() else " ".join(tokenize(text))


def split_text(text: str) -> list[str]:
    """Split a text into passages of at most MAX_PASSAGE characters, between words if possible."""
    pieces = []
    while len(text) > MAX_PASSAGE:
        cut = max(text.rfind(" ", 0, MAX_PASSAGE), text.rfind("\n", 0, MAX_PASSAGE))
        cut = cut if cut > MAX_PASSAGE // 2 else MAX_PASSAGE
        pieces.append(text[:cut])
        text = text[cut:]
    return [*pieces, text]


def extract_text(json: str) -> str:
    """Extract the keys and values of a JSON text, which may be truncated."""
    try:
        value = msgspec.json.decode(json)
    except msgspec.DecodeError:
        return _ESCAPE.sub(" ", json)
    return " ".join(_iter_leaves(value))


def _iter_leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield key
            yield from _iter_leaves(part)
    elif isinstance(value, list):
        for part in value:
            yield from _iter_leaves(part)
    else:
        yield str(value)


def make_snippet(text: str, query: str) -> str:
    """Return one line of the text around the first match of the query."""
    folded = text.lower()
    positions = [
        match.start()
        for word in _WORD.findall(query.lower())
        if (match := re.search(rf"(?<![^\W_]){re.escape(word)}(?![^\W_])", folded))
    ]
    begin = max(min(positions, default=0) - SNIPPET_LENGTH // 3, 0)
    cut = " ".join(text[begin : begin + SNIPPET_LENGTH].split())
    return f"{'…' if begin else ''}{cut}{'…' if begin + SNIPPET_LENGTH < len(text) else ''}"
