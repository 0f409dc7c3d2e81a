"""Regular expressions for terminal escapes and control characters in an output.

Rendering removes them. Redaction looks past them: the letters of a secret with a colour sequence
between them are still readable on a screen.
"""

import re

# A complete escape sequence. A string (title, link, …) ends with its terminator, or where the next
# escape begins.
ESCAPE = (
    r"\x1b(?:"
    r"\[(?P<control>[0-?]*[ -/]*[@-~])"
    r"|[\]PX^_][^\x07\x18\x1a\x1b]*(?:\x07|\x18|\x1a|\x1b\\)?"
    r"|[ -/]+[0-~]?"
    r"|(?P<single>[0-~])"
    r")?"
)
# At the end of a text: an escape sequence that is not complete.
INCOMPLETE_ESCAPE = r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x18\x1a\x1b]*\x1b?|[ -/]*)?\Z"

# Characters that must not reach a terminal; line ends and tabs are allowed.
UNSAFE_CHARACTERS = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
)

# The same as UTF-8 bytes, without the carriage return, whose effect is visible.
_ENCODED = (
    rb"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]"
    rb"|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]"
    rb"|\xf3\xa0[\x80\x81][\x80-\xbf]"
)
_INCOMPLETE_CHARACTER = rb"(?:\xc2|\xd8|\xe2[\x80\x81]?|\xf3(?:\xa0[\x80\x81]?)?)\Z"

INVISIBLE = re.compile(ESCAPE.encode() + b"|" + _ENCODED)
INCOMPLETE_INVISIBLE = re.compile(INCOMPLETE_ESCAPE.encode() + b"|" + _INCOMPLETE_CHARACTER)
"""At the end of a text: the beginning of an invisible sequence."""
