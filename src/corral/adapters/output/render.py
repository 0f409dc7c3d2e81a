"""Output as the text that a person would have seen, and nothing that could act on a terminal.

`text_of` is for what was written to a pipe: escapes are taken out, carriage returns and backspaces
done. `Terminal` is for what was written to a terminal: it plays it on a screen without a display.
What either gives holds letters, line ends and tabs; no other control character, no direction
override, no invisible tag.
"""

import re
from codecs import getincrementaldecoder

from corral.adapters.output.escapes import ESCAPE, HARMFUL, OPEN, UNSEEN_SO_FAR
from corral.adapters.output.lines import LONGEST_LINE

_ESCAPE = re.compile(ESCAPE)
_OPEN = re.compile(OPEN)
_STRING_END = re.compile(r"\x07|\x18|\x1a|\x1b\\|(?=\x1b)")
LONGEST_ESCAPE = 64 * 1024

_HARMFUL = re.compile(HARMFUL)
LONGEST_OVERWRITTEN = 8 * 1024
_TORN = re.compile(rb"(?:\r|[\xc0-\xff]|[\xe0-\xff][\x80-\xbf]|[\xf0-\xff][\x80-\xbf]{2})\Z")
_WENT_BACK = re.compile(b"[\r\b]")
_MOVES = re.compile("[\r\b\x1b\x7f]")
_STEP = re.compile("([\r\b\x1c\x1d\x1e])")
_ERASE = {"K": "\x1c", "0K": "\x1c", "1K": "\x1d", "2K": "\x1e"}


def text_of(data: bytes) -> str:
    """What was written to a pipe, as text. What is no UTF-8 becomes U+FFFD."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    if _MOVES.search(text):
        text = re.sub("[\x1c-\x1e]", "", text)
        text = _ESCAPE.sub(lambda match: _ERASE.get(match["control"] or "", ""), text)
        text = "\n".join(
            _overwritten(line) if _STEP.search(line) else line for line in text.split("\n")
        )
    return safe(text)


class PipeText:
    """The same for what comes in pieces: lines when they are whole, and a very long one in parts.

    Of a long line in which the cursor went back, only the end is kept, as in `_overwritten`.
    """

    def __init__(self) -> None:
        self._left = bytearray()
        self._is_open = False

    def feed(self, data: bytes) -> str:
        """What can be shown now."""
        end = data.rfind(b"\n") + 1
        whole = bytes(self._left) + data[:end] if end else b""
        if end:
            self._left.clear()
            self._is_open = False
        self._left += data[end:]
        return text_of(whole) + (self._part() if len(self._left) > LONGEST_LINE else "")

    def finish(self) -> str:
        """The last line, which has no end of its own."""
        left, is_open = bytes(self._left), self._is_open
        self._left.clear()
        self._is_open = False
        return text_of(left + b"\n") if left or is_open else ""

    def _part(self) -> str:
        if _WENT_BACK.search(self._left, 0, len(self._left) - 1):  # the last may be a line's end
            del self._left[: -4 * LONGEST_OVERWRITTEN]
            return ""
        # Not within an escape, as far as it is of a usual length, a letter, or a line's end.
        begin = len(self._left) - LONGEST_OVERWRITTEN
        torn = UNSEEN_SO_FAR.search(self._left, begin) or _TORN.search(self._left, begin)
        end = torn.start() if torn else len(self._left)
        part = bytes(self._left[:end])
        del self._left[:end]
        self._is_open = True
        return text_of(part)


def safe(text: str) -> str:
    """The text without anything that could act on a terminal."""
    return _HARMFUL.sub("", text)


def _overwritten(line: str) -> str:
    """A line in which the cursor went back, as it looks at the end.

    Of a very long one (a progress bar without any line end) the last part counts.
    """
    if len(line) > LONGEST_OVERWRITTEN:
        line = line[-LONGEST_OVERWRITTEN:]
        line = line[line.find("\r") + 1 :]
    shown, at = "", 0
    for part in _STEP.split(line):
        if part == "\r":
            at = 0
        elif part == "\b":
            at = max(at - 1, 0)
        elif part == "\x1c":  # from here to the end
            shown = shown[:at]
        elif part == "\x1d":  # from the beginning up to here
            shown = " " * at + shown[at:]
        elif part == "\x1e":
            shown = " " * at
        else:
            shown = shown[:at].ljust(at) + part + shown[at + len(part) :]
            at += len(part)
    return shown.rstrip(" ") if line.endswith(("\x1c", "\x1e")) else shown


# The controls that change what text stands where; colours, reports, modes and the like do not.
_KEPT = re.compile(
    r"[0-9]{0,9}[@ABCDEFGJKLMPXade`]|[0-9]{0,9}(?:;[0-9]{0,9})?[Hfr]|\?(?:6|7)[hl]|4[hl]"
)
_KEPT_WITH_COLOURS = re.compile(_KEPT.pattern + "|[0-9;]{0,64}m")
_ALTERNATE = re.compile(r"\?(?:47|1047|1049)(?P<way>[hl])")
_SINGLES = frozenset("DEM78c")


class Terminal:
    """A screen that nobody looks at, and the lines that have left it at its top.

    It remembers `history` lines at most. Whatever is fed to it, it goes on.
    """

    def __init__(
        self,
        columns: int = 80,
        rows: int = 24,
        *,
        history: int = 10_000,
        colours: bool = False,
    ) -> None:
        """`colours`: keep colours, which `background` needs; slower."""
        import pyte

        from corral.adapters.output.screen import Screen

        self._screen = Screen(columns, rows, history, colours=colours)
        self._kept = _KEPT_WITH_COLOURS if colours else _KEPT
        self._stream = pyte.Stream(self._screen)
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._in_string = False

    def feed(self, data: bytes) -> None:
        """Play some output; it may end anywhere, within a character or an escape."""
        text = self._rest + self._decoder.decode(data)
        self._rest = ""
        if self._in_string:
            end = _STRING_END.search(text)
            if end is None:
                return
            self._in_string, text = False, text[end.end() :]
        if open_ := _OPEN.search(text, max(text.rfind("\x1b"), 0)):
            text, self._rest = text[: open_.start()], text[open_.start() :]
            if len(self._rest) > LONGEST_ESCAPE:
                self._rest, self._in_string = "", True
        self._play(text)

    def resize(self, columns: int, rows: int) -> None:
        """The size that the terminal has from now on."""
        self._screen.resize(rows, columns)

    def screen(self) -> list[str]:
        """What stands on the screen now, line by line."""
        return [safe(line) for line in self._screen.shown()]

    def background(self, row: int, column: int) -> str:
        """Return the background colour of a cell; always the default without `colours`."""
        return self._screen.background(row, column)

    def text(self) -> str:
        """All that was seen and is remembered, without the empty lines at the end."""
        lines = [*self._screen.past, *self._screen.shown()]
        while lines and not lines[-1]:
            lines.pop()
        return safe("".join(f"{line}\n" for line in lines))

    def _play(self, text: str) -> None:
        at = 0
        for match in _ESCAPE.finditer(text):
            self._write(text[at : match.start()])
            at = match.end()
            if control := match["control"]:
                self._control(control)
            elif (single := match["single"]) and single in _SINGLES:
                self._send("\x1b" + single)
        self._write(text[at:])

    def _control(self, control: str) -> None:
        if alternate := _ALTERNATE.fullmatch(control):
            self._screen.alternate(alternate["way"] == "h")
        elif self._kept.fullmatch(control):
            self._send("\x1b[" + control)

    def _write(self, text: str) -> None:
        if text:
            self._send(_NO_CONTROL.sub("", text))

    def _send(self, text: str) -> None:
        try:
            self._stream.feed(text)
        except Exception:  # whatever an agent writes: the emulator's trouble is not ours
            self._stream.detach(self._screen)
            self._stream.attach(self._screen)


# For the emulator: all controls that it may see between escapes are these.
_NO_CONTROL = re.compile("[\x00-\x06\x0e-\x1f\x7f-\x9f]")


def render(data: bytes, *, terminal: bool, columns: int = 80, rows: int = 24) -> str:
    """Output as text, whether a pipe or a terminal was written to."""
    if not terminal:
        return text_of(data)
    played = Terminal(columns, rows)
    played.feed(data)
    return played.text()
