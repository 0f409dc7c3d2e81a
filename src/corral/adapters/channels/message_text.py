"""Texts of messages: their length on a platform, cards as text, and mentions."""

import re

from corral.adapters.channels.contract import ChannelTraits, LengthUnit, MessageKind


def has_mention(text: str, account: str) -> bool:
    """Whether a text mentions an account by its full name.

    A longer name with the same prefix does not count.
    """
    if not account:
        return False
    pattern = rf"(?<![\w@]){re.escape(account)}(?![\w-]|[.:]\w)"
    return re.search(pattern, text, re.IGNORECASE) is not None


def measure_text(text: str, unit: LengthUnit = LengthUnit.CHARACTERS) -> int:
    """Return the length of a text in the unit of a platform."""
    match unit:
        case LengthUnit.CHARACTERS:
            return len(text)
        case LengthUnit.UTF16_UNITS:
            return len(text.encode("utf-16-le", "surrogatepass")) // 2
        case LengthUnit.BYTES:
            return len(text.encode("utf-8", "surrogatepass"))


def truncate_text(text: str, limit: int, unit: LengthUnit = LengthUnit.CHARACTERS) -> str:
    """Return the longest prefix within `limit`, without splitting a character."""
    low, high = 0, min(len(text), limit)
    while low < high:
        middle = (low + high + 1) // 2
        if measure_text(text[:middle], unit) <= limit:
            low = middle
        else:
            high = middle - 1
    return text[:low]


def split_text(text: str, limit: int, unit: LengthUnit = LengthUnit.CHARACTERS) -> list[str]:
    """Split a text into pieces within `limit`, at the ends of paragraphs, lines or words."""
    pieces = []
    while measure_text(text, unit) > limit:
        size = len(truncate_text(text, limit, unit))
        cut = next(
            (at for end in ("\n\n", "\n", " ") if (at := text.rfind(end, size // 2, size)) > 0),
            size,
        )
        pieces.append(text[:cut].rstrip())
        text = text[cut:].lstrip() if cut < size else text[cut:]
    return [*pieces, text] if text or not pieces else pieces


def split_for_channel(text: str, traits: ChannelTraits, kind: MessageKind) -> list[str]:
    """Split a text message for a platform; other kinds are truncated to one message."""
    if kind is MessageKind.TEXT:
        return split_text(text, traits.max_text, traits.length_unit)
    return [truncate_text(text, traits.max_text, traits.length_unit)]


def format_card(text: str, options: list[str]) -> str:
    """Return a question as text with numbered options, for a platform without buttons."""
    listed = "".join(f"\n{number}. {option}" for number, option in enumerate(options, 1))
    hint = "\n\nAnswer with a number." if options else ""
    return f"{text}{listed}{hint}"
