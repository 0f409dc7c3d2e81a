"""Taking secrets out of records before they are stored: by their values and by their shapes."""

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from corral.kernel.text import MAX_TEXT, clean_text

S = TypeVar("S", bound=msgspec.Struct)


def without_secrets(record: S, values: Sequence[str] = ()) -> S:
    """The record, with every text in it redacted, however deep it stands."""
    changed = {
        name: clean
        for name, value in msgspec.structs.asdict(record).items()
        if (clean := clean_of_secrets(value, values)) != value
    }
    return msgspec.structs.replace(record, **changed) if changed else record


def clean_of_secrets(value: Any, values: Sequence[str] = ()) -> Any:
    """A text, or what holds texts, with every one of them redacted."""
    if isinstance(value, str):
        from corral.adapters.output.redact import redact  # its patterns take long to be made

        data = value.encode("utf-8", "surrogatepass")
        return redact(data, values).decode("utf-8", "surrogatepass")
    if isinstance(value, dict):
        return {
            clean_of_secrets(key, values): clean_of_secrets(part, values)
            for key, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [clean_of_secrets(part, values) for part in value]
    return value


def clean_words(text: str, what: str, *, most: int = MAX_TEXT) -> str:
    """Words that somebody wrote, checked as `clean_text` does, and without secrets by their shapes:
    what a room keeps of them."""
    words: str = clean_of_secrets(clean_text(text, what, most=most))
    return words
