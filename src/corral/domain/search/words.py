"""Words: how a person's text becomes a query that is always valid, and how a hit is shown."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec

from corral.kernel.errors import Invalid
from corral.kernel.text import clean_text, words_of

MAX_QUERY = 1_000
MAX_PASSAGE = 16_000  # characters; both engines index more slowly, or not at all, beyond some size
SNIPPET = 160

_WORD = re.compile(r"[^\W_]+")
_ESCAPE = re.compile(r"\\[bfnrt]")


def query_of(text: str) -> str:
    """Each word in quotes, those that punctuation joins (`foo_bar.py`) as one phrase.

    Both engines read that the same way, and nothing in it is an operator.
    """
    clean_text(text, "What to look for", most=MAX_QUERY)
    phrases = [" ".join(words_of(part)) for part in text.split()]
    query = " ".join(f'"{phrase}"' for phrase in phrases if phrase)
    if not query:
        raise Invalid(f"{text!r} holds no word to look for; give letters or digits.", value=text)
    return query


def folded_of(text: str) -> str | None:
    """The words of a text in small letters; None where an engine finds them by itself."""
    return None if text.isascii() else " ".join(words_of(text))


def pieces_of(text: str) -> list[str]:
    """The text in pieces that can be indexed, cut between words where there is a place to."""
    pieces = []
    while len(text) > MAX_PASSAGE:
        cut = max(text.rfind(" ", 0, MAX_PASSAGE), text.rfind("\n", 0, MAX_PASSAGE))
        cut = cut if cut > MAX_PASSAGE // 2 else MAX_PASSAGE
        pieces.append(text[:cut])
        text = text[cut:]
    return [*pieces, text]


def text_in(json: str) -> str:
    """The texts in a JSON text, which may be cut off at its end."""
    try:
        value = msgspec.json.decode(json)
    except msgspec.DecodeError:
        return _ESCAPE.sub(" ", json)
    return " ".join(_leaves(value))


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, part in value.items():
            yield key
            yield from _leaves(part)
    elif isinstance(value, list):
        for part in value:
            yield from _leaves(part)
    else:
        yield str(value)


def snippet_of(text: str, query: str) -> str:
    """One line of the text, around the first place that the query's words are at."""
    folded = text.lower()
    places = [
        match.start()
        for word in _WORD.findall(query.lower())
        if (match := re.search(rf"(?<![^\W_]){re.escape(word)}(?![^\W_])", folded))
    ]
    begin = max(min(places, default=0) - SNIPPET // 3, 0)
    cut = " ".join(text[begin : begin + SNIPPET].split())
    return f"{'…' if begin else ''}{cut}{'…' if begin + SNIPPET < len(text) else ''}"
