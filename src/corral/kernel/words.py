"""Splitting of text into words."""

import re
from unicodedata import normalize

from corral.kernel.errors import Invalid

_WORD = re.compile(r"[^\W_]+")


def split_command(command: str) -> list[str]:
    """Split a command into words as a shell does; raises Invalid if it is empty or malformed."""
    import shlex

    try:
        words = shlex.split(command)
    except ValueError as error:
        raise Invalid(
            f"Cannot parse the command: {error}. Correct its quotes.", reason="bad_quotes"
        ) from None
    if not words:
        raise Invalid("The command is empty. Give a program to run.", reason="empty")
    return words


def tokenize(text: str) -> list[str]:
    """Split a text into words, lower-case and in Unicode normal form C."""
    return _WORD.findall(normalize("NFC", text).lower())
