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
    return "".join(
        c if c.isprintable() or c in keep else _REPLACEMENTS.get(c, f"\\x{ord(c):02x}")
        for c in text
    )


def quote_inline(text: str) -> str:
    """Quote an external text inside a line of Corral's own, so that it cannot pose as that line.

    The result is one printable line of at most MAX_QUOTED characters.
    """
    return '"' + shorten(escape_unprintable(text.strip()), MAX_QUOTED).replace('"', "'") + '"'
