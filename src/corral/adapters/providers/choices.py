"""Which option of a dialog a person's answer names, and the keys that select it.

Only an option can be an answer: Enter selects whatever is marked, so any other text that is typed
into an open dialog would approve what it asks for.
"""

import re

from corral.adapters.providers.screens import ENTER, ESCAPE, Reading, Screen, moves

YES = frozenset({"y", "yes", "allow", "ok"})
NO = frozenset({"n", "no", "deny", "reject"})
_NUMBER = re.compile(r"^\d+\. ")
_HINT = re.compile(r"\s*\([^()]*\)$")
_BY_ESCAPE = re.compile(r"\(esc\b[^()]*\)$", re.IGNORECASE)
_DECLINES = re.compile(r"(?:no|reject|deny|don.t|cancel)\b", re.IGNORECASE)


def find_option(screen: Screen, reading: Reading, text: str) -> int | None:
    """The option that a text names: its number, its label, or a plain yes or no.

    Yes is the option that allows this one thing and nothing later. None when the text names no
    option, or more than one.
    """
    words = _plain(text)
    options = reading.options
    if words.isdecimal():
        return int(words) - 1 if 1 <= int(words) <= len(options) else None
    labels = [_plain(_NUMBER.sub("", option)) for option in options]
    short = [_plain(_HINT.sub("", label)) for label in labels]
    for names in ([_plain(option) for option in options], labels, short):
        if words and names.count(words) == 1:
            return names.index(words)
    if words in YES:
        return _only([at for at, option in enumerate(options) if screen.yes.match(option)])
    if words in NO:
        return _only([at for at, label in enumerate(labels) if _DECLINES.match(label)])
    return None


def keys_for(screen: Screen, reading: Reading, wanted: int) -> tuple[str, bool] | None:
    """The next keys on the way to an option, and whether they select it.

    An option that names Escape is selected by it: some interfaces ignore Enter there. Arrow keys
    only move the mark; look again before the Enter. None when the marked option cannot be seen.
    """
    if _BY_ESCAPE.search(reading.options[wanted]):
        return ESCAPE, True
    if reading.marked is None:
        return None
    if reading.marked == wanted:
        return ENTER, True
    return moves(screen, reading.marked, wanted), False


def _plain(text: str) -> str:
    return " ".join(text.split()).rstrip(".").casefold()


def _only(found: list[int]) -> int | None:
    return found[0] if len(found) == 1 else None
