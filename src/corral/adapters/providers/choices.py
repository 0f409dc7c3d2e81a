"""Map a person's answer to an option of a dialog and to the keys that select it.

Only an option is a valid answer: Enter selects the marked option, so any other text typed into an
open dialog could approve the request.
"""

import re

from corral.adapters.providers.screens import ENTER, ESCAPE, ScreenLayout, ScreenReading, arrow_keys

YES_ANSWERS = frozenset({"y", "yes", "allow", "ok"})
NO_ANSWERS = frozenset({"n", "no", "deny", "reject"})
_NUMBER = re.compile(r"^\d+\. ")
_HINT = re.compile(r"\s*\([^()]*\)$")
_BY_ESCAPE = re.compile(r"\(esc\b[^()]*\)$", re.IGNORECASE)
_DECLINES = re.compile(r"(?:no|reject|deny|don.t|cancel)\b", re.IGNORECASE)


def find_option(screen: ScreenLayout, reading: ScreenReading, text: str) -> int | None:
    """Return the index of the option that a text names: by number, by label, or by yes or no.

    Yes selects the option that allows only this request. None: the text names no option, or more
    than one.
    """
    answer = _normalize(text)
    options = reading.options
    if answer.isdecimal():
        return int(answer) - 1 if 1 <= int(answer) <= len(options) else None
    labels = [_normalize(_NUMBER.sub("", option)) for option in options]
    short = [_normalize(_HINT.sub("", label)) for label in labels]
    for names in ([_normalize(option) for option in options], labels, short):
        if answer and names.count(answer) == 1:
            return names.index(answer)
    if answer in YES_ANSWERS:
        return _get_only([at for at, option in enumerate(options) if screen.yes.match(option)])
    if answer in NO_ANSWERS:
        return _get_only([at for at, label in enumerate(labels) if _DECLINES.match(label)])
    return None


def keys_for(screen: ScreenLayout, reading: ScreenReading, wanted: int) -> tuple[str, bool] | None:
    """Return the next keys to press for an option, and whether they select it.

    An option that names Escape is selected by Escape: some interfaces ignore Enter there. Arrows
    only move the mark; read the screen again before Enter. None: the marked option is not visible.
    """
    if _BY_ESCAPE.search(reading.options[wanted]):
        return ESCAPE, True
    if reading.marked is None:
        return None
    if reading.marked == wanted:
        return ENTER, True
    return arrow_keys(screen, reading.marked, wanted), False


def _normalize(text: str) -> str:
    return " ".join(text.split()).rstrip(".").casefold()


def _get_only(matches: list[int]) -> int | None:
    return matches[0] if len(matches) == 1 else None
