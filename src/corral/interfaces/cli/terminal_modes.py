"""The modes that a program has set in a terminal, and how to reset those that it left set.

A person who detaches from a run leaves its program in the middle of its work. The alternate screen,
the hidden cursor, mouse reports and the like must not stay in the person's terminal.
"""

import re

_SEQUENCE = re.compile(
    rb"\x1b(?:"
    rb"\[\?(?P<modes>[0-9;]{1,64})(?P<way>[hl])"
    rb"|\[>(?P<push>[0-9;]{0,8})u"
    rb"|\[<(?P<pop>[0-9]{0,4})u"
    rb"|\[>4(?:;(?P<keys>[0-9]))?m"
    rb"|\[(?P<style>[0-9]?) q"
    rb"|\[(?P<region>[0-9;]{0,16})r"
    rb"|(?P<keypad>[=>])"
    rb"|(?P<reset>c)"
    rb")"
)
LONGEST = 80  # bytes of a sequence that may be cut at the end of a piece
ALTERNATE = frozenset({47, 1047, 1049})
# Modes that are off in a terminal at a shell's prompt, and modes that are on.
_OFF = ALTERNATE | {1, 1000, 1001, 1002, 1003, 1004, 1005, 1006, 1015, 1016, 2004, 2026, 2031}
_ON = frozenset({7, 25})


class TerminalModes:
    """Follows what is written to a terminal; `reset` undoes what is still set."""

    def __init__(self) -> None:
        self._rest = b""
        self._clear()

    def _clear(self) -> None:
        self._changed: set[int] = set()
        self._pushed = 0
        self._has_keys = self._has_style = self._has_keypad = self._has_region = False

    @property
    def is_alternate(self) -> bool:
        """Whether the alternate screen is shown."""
        return not ALTERNATE.isdisjoint(self._changed)

    def feed(self, data: bytes) -> None:
        """Take in what is written; it may end anywhere."""
        text = self._rest + data
        end = 0
        for match in _SEQUENCE.finditer(text):
            end = match.end()
            self._take(match)
        cut = text.rfind(b"\x1b", max(end, len(text) - LONGEST))
        self._rest = text[cut:] if cut >= 0 else b""

    def _take(self, match: "re.Match[bytes]") -> None:
        found = match.groupdict()
        if found["modes"] is not None:
            self._set(found["modes"], on=found["way"] == b"h")
        elif found["push"] is not None:
            self._pushed += 1
        elif found["pop"] is not None:
            self._pushed = max(0, self._pushed - int(found["pop"] or 1))
        elif found["style"] is not None:
            self._has_style = found["style"] not in (b"", b"0")
        elif found["region"] is not None:
            self._has_region = bool(found["region"])
        elif found["keypad"] is not None:
            self._has_keypad = found["keypad"] == b"="
        elif found["reset"] is not None:
            self._clear()
        else:
            self._has_keys = found["keys"] not in (None, b"0")

    def _set(self, modes: bytes, *, on: bool) -> None:
        for word in modes.split(b";"):
            number = int(word or 0)
            if number in _OFF or number in _ON:
                is_default = on == (number in _ON)
                (self._changed.discard if is_default else self._changed.add)(number)

    def reset(self) -> bytes:
        """What sets the terminal back; empty when nothing is set."""
        parts = [b"\x1b[<u"] * min(self._pushed, 16)
        parts += [b"\x1b[>4;0m"] if self._has_keys else []
        parts += [b"\x1b>"] if self._has_keypad else []
        # Setting the scroll region moves the cursor, so its place is saved.
        parts += [b"\x1b7\x1b[r\x1b8"] if self._has_region else []
        parts += [b"\x1b[0 q"] if self._has_style else []
        for number in sorted(self._changed - ALTERNATE):
            parts.append(b"\x1b[?%d%s" % (number, b"h" if number in _ON else b"l"))
        parts += [b"\x1b[?%dl" % number for number in sorted(self._changed & ALTERNATE)]
        self._clear()
        return b"".join([*parts, b"\x1b[0m"]) if parts else b""
