r"""Regular expressions of wirings, matched in linear time.

A wiring's pattern is matched against every message of a chat, and untrusted people may write both.
Python's `re` backtracks, so a hostile pattern could take exponential time, and a match cannot be
interrupted. RE2 takes time proportional to the length of the text, and rejects patterns
whose program would exceed `MAX_MEMORY`.

The syntax is that of RE2: no back-references and no look-around. Matching ignores case. `\w`, `\d`
and `\s` cover Unicode; the word boundary `\b` covers ASCII only, so it is rejected beside another
letter, where it would never match.
"""

import re
from functools import lru_cache
from typing import Any

from corral.kernel.errors import Invalid

MAX_PATTERN = 200
MAX_TEXT = 4_000
"""Maximum characters of a message that are searched."""
MAX_MEMORY = 1 << 20
"""Bytes of a compiled pattern and its caches. Limits the program to about 16,000 instructions."""

_PART = re.compile(r"\\(?:[pP]\{\^?\w*\}|.|\Z)|\[:\^?\w+:\]|\[\^?\]?|\]|[^\\\[\]]+", re.DOTALL)
_NON_ASCII_BOUNDARY = re.compile(r"\\b[^\x00-\x7f]|[^\x00-\x7f]\\b")
# RE2's own classes cover ASCII only.
_UNICODE_CLASSES = {r"\w": r"\p{L}\p{N}_", r"\d": r"\p{Nd}", r"\s": r"\s\p{Z}"}
_COMPLEMENTS = {r"\W": r"\w", r"\D": r"\d", r"\S": r"\s"}


class Pattern:
    """A compiled pattern; raises Invalid if it is malformed, not supported or too large."""

    def __init__(self, text: str) -> None:
        if not 1 <= len(text) <= MAX_PATTERN:
            raise Invalid(
                f"A pattern must have 1 to {MAX_PATTERN} characters.",
                pattern=text,
                reason="too_long" if text else "empty",
            )
        if _NON_ASCII_BOUNDARY.search(text):
            raise _build_error(text, r"\b works beside ASCII letters only; use (^|\W) or (\W|$)")
        self._program = _compile(text)

    def found_in(self, text: str) -> bool:
        """Whether the pattern matches anywhere in the first `MAX_TEXT` characters."""
        # The line break keeps `$` from matching where the text was cut.
        searched = text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "\n"
        # A lone surrogate cannot be encoded.
        return self._program.search(searched.encode("utf-8", "replace").decode()) is not None


@lru_cache(256)
def compile_pattern(text: str) -> Pattern:
    """Compile a pattern; raises Invalid. Cached."""
    return Pattern(text)


def _compile(text: str) -> Any:
    # Imported here: most processes never match a pattern.
    import re2

    options = re2.Options()
    options.max_mem = MAX_MEMORY
    options.case_sensitive = False
    options.never_capture = True
    options.log_errors = False
    try:
        return re2.compile(_translate(text), options)
    except re2.error as error:
        detail = error.args[0]
        reason = detail.decode() if isinstance(detail, bytes) else str(detail)
        raise _build_error(text, reason.partition(":")[0]) from None
    except UnicodeEncodeError:
        raise _build_error(text, "it is not valid UTF-8") from None


def _translate(text: str) -> str:
    """Replace the classes that RE2 limits to ASCII by their Unicode equivalents."""
    result: list[str] = []
    in_brackets = False
    for part in _PART.findall(text):
        positive = _COMPLEMENTS.get(part, part)
        members = _UNICODE_CLASSES.get(positive)
        if members is None:
            result.append(part)
            in_brackets = part.startswith("[") or (in_brackets and part != "]")
        elif not in_brackets:
            result.append(f"[{members}]" if positive == part else f"[^{members}]")
        elif positive == part:
            result.append(members)
        else:
            raise _build_error(text, f"{part} is not supported inside brackets")
    return "".join(result)


def _build_error(pattern: str, problem: str) -> Invalid:
    return Invalid(
        f"Invalid pattern {pattern!r}: {problem}. Use the syntax of RE2 regular expressions, "
        "without back-references and look-around.",
        pattern=pattern,
        reason="bad_pattern",
    )
