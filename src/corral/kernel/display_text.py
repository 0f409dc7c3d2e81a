"""Text made safe and short for people to read: one printable line of limited length."""

MAX_QUOTED = 100

_REPLACEMENTS = {"\n": "⏎", "\t": " ", "\r": ""}


def shorten(text: str, max_chars: int) -> str:
    """Cut a text to at most `max_chars` characters, between words if possible, and append `…`."""
    if len(text) <= max_chars:
        return text
    cut = text[: max_chars - 1]
    head = cut.rpartition(" ")[0]
    return (head if len(head) > max_chars // 2 else cut).rstrip() + "…"


def escape_unprintable(text: str, *, keep: str = "") -> str:
    """Escape control and bidirectional characters, so that the text is one printable line.

    Characters in `keep` stay as they are.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else _escape(c) for c in text)


def _escape(character: str) -> str:
    """Return the replacement of a character, or its escape as in a Python string literal."""
    if character in _REPLACEMENTS:
        return _REPLACEMENTS[character]
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def quote_inline(text: str) -> str:
    """Quote an external text inside a line of Corral's own, so that it cannot pose as that line.

    The result is one printable line of at most MAX_QUOTED characters.
    """
    return '"' + shorten(escape_unprintable(text.strip()), MAX_QUOTED).replace('"', "'") + '"'
