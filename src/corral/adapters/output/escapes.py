"""What stands in an output and is not seen: terminal escapes and controls, as a pattern's text.

Whoever shows an output leaves these out, and whoever looks for a secret in it must look past them:
letters with a colour between them are joined where a person reads them.
"""

import re

# An escape and what belongs to it. A string (a title, a link, …) ends with its terminator, or
# where the next escape begins.
ESCAPE = (
    r"\x1b(?:"
    r"\[(?P<control>[0-?]*[ -/]*[@-~])"
    r"|[\]PX^_][^\x07\x18\x1a\x1b]*(?:\x07|\x18|\x1a|\x1b\\)?"
    r"|[ -/]+[0-~]?"
    r"|(?P<single>[0-~])"
    r")?"
)
# At the end of a text: an escape that is not whole.
OPEN = r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x18\x1a\x1b]*\x1b?|[ -/]*)?\Z"

# Letters that must not reach a person's terminal, but for line ends and tabs.
HARMFUL = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
)

# The same in bytes, one thing that is not seen. A carriage return goes back, which is seen.
_ENCODED = (
    rb"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]"
    rb"|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]"
    rb"|\xf3\xa0[\x80\x81][\x80-\xbf]"
)
_CUT_SHORT = rb"(?:\xc2|\xd8|\xe2[\x80\x81]?|\xf3(?:\xa0[\x80\x81]?)?)\Z"

UNSEEN = re.compile(ESCAPE.encode() + b"|" + _ENCODED)
UNSEEN_SO_FAR = re.compile(OPEN.encode() + b"|" + _CUT_SHORT)
"""At the end of a text: what may become something that is not seen."""
