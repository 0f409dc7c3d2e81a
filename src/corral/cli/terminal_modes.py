"""The modes that a program has set in a terminal, and the sequences that reset them.

After detaching from a run, the alternate screen, a hidden cursor, mouse reports and other modes of
its program must not stay in the user's terminal.
"""

import re

_SEQUENCE = re.compile(
    rb"\x1b(?:"
    rb"\[\?(?P<modes>[0-9;]{1,64})(?P<action>[hl])"
    rb"|\[>(?P<push>[0-9;]{0,8})u"
    rb"|\[<(?P<pop>[0-9]{0,4})u"
    rb"|\[>4(?:;(?P<keys>[0-9]))?m"
    rb"|\[(?P<style>[0-9]?) q"
    rb"|\[(?P<region>[0-9;]{0,16})r"
    rb"|(?P<keypad>[=>])"
    rb"|(?P<reset>c)"
    rb")"
)
MAX_SEQUENCE = 80
"""Maximum length in bytes of a sequence that may be split between two chunks."""
ALTERNATE = frozenset({47, 1047, 1049})  # the modes of the alternate screen
# Modes that are off at a shell's prompt, and modes that are on.
_OFF = ALTERNATE | {1, 1000, 1001, 1002, 1003, 1004, 1005, 1006, 1015, 1016, 2004, 2026, 2031}
_ON = frozenset({7, 25})


class TerminalModes:
    """Tracks the modes set by a terminal's output; `reset` undoes those that are still set."""

    def __init__(self) -> None:
        self._pending = b""
        self._clear()

    def _clear(self) -> None:
        self._changed: set[int] = set()
        self._keyboard_depth = 0
        self._has_keys = self._has_style = self._has_keypad = self._has_region = False

    @property
    def is_alternate(self) -> bool:
        """Whether the alternate screen is active."""
        return not ALTERNATE.isdisjoint(self._changed)

    def feed(self, data: bytes) -> None:
        """Process a chunk of output; a sequence may be split between two calls."""
        text = self._pending + data
        end = 0
        for match in _SEQUENCE.finditer(text):
            end = match.end()
            self._apply(match)
        start = text.rfind(b"\x1b", max(end, len(text) - MAX_SEQUENCE))
        self._pending = text[start:] if start >= 0 else b""

    def _apply(self, match: "re.Match[bytes]") -> None:
        groups = match.groupdict()
        if groups["modes"] is not None:
            self._set(groups["modes"], on=groups["action"] == b"h")
        elif groups["push"] is not None:
            self._keyboard_depth += 1
        elif groups["pop"] is not None:
            self._keyboard_depth = max(0, self._keyboard_depth - int(groups["pop"] or 1))
        elif groups["style"] is not None:
            self._has_style = groups["style"] not in (b"", b"0")
        elif groups["region"] is not None:
            self._has_region = bool(groups["region"])
        elif groups["keypad"] is not None:
            self._has_keypad = groups["keypad"] == b"="
        elif groups["reset"] is not None:
            self._clear()
        else:
            self._has_keys = groups["keys"] not in (None, b"0")

    def _set(self, modes: bytes, *, on: bool) -> None:
        for parameter in modes.split(b";"):
            number = int(parameter or 0)
            if number in _OFF or number in _ON:
                is_default = on == (number in _ON)
                (self._changed.discard if is_default else self._changed.add)(number)

    def reset(self) -> bytes:
        """Return the bytes that reset the terminal; empty when no mode is set."""
        parts = [b"\x1b[<u"] * min(self._keyboard_depth, 16)
        parts += [b"\x1b[>4;0m"] if self._has_keys else []
        parts += [b"\x1b>"] if self._has_keypad else []
        # Setting the scroll region moves the cursor, so its position is saved.
        parts += [b"\x1b7\x1b[r\x1b8"] if self._has_region else []
        parts += [b"\x1b[0 q"] if self._has_style else []
        for number in sorted(self._changed - ALTERNATE):
            parts.append(b"\x1b[?%d%s" % (number, b"h" if number in _ON else b"l"))
        parts += [b"\x1b[?%dl" % number for number in sorted(self._changed & ALTERNATE)]
        self._clear()
        return b"".join([*parts, b"\x1b[0m"]) if parts else b""
