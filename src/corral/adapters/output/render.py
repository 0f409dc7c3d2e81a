"""Render output as the text that a person would have seen, safe to print on a terminal.

`render_pipe` is for output to a pipe: it removes escapes and applies carriage returns and
backspaces. `TerminalEmulator` is for output to a terminal. The result of both has no control
characters except line ends and tabs, no direction overrides and no invisible tags.
"""

import re
from codecs import getincrementaldecoder

from corral.adapters.output.escapes import (
    ESCAPE,
    INCOMPLETE_ESCAPE,
    INCOMPLETE_INVISIBLE,
    UNSAFE_CHARACTERS,
)
from corral.adapters.output.lines import MAX_LINE_BYTES

_ESCAPE = re.compile(ESCAPE)
_OPEN = re.compile(INCOMPLETE_ESCAPE)
_STRING_END = re.compile(r"\x07|\x18|\x1a|\x1b\\|(?=\x1b)")
MAX_ESCAPE_CHARS = 64 * 1024

_HARMFUL = re.compile(UNSAFE_CHARACTERS)
MAX_OVERWRITTEN_CHARS = 8 * 1024
_SPLIT_CHARACTER = re.compile(
    rb"(?:\r|[\xc0-\xff]|[\xe0-\xff][\x80-\xbf]|[\xf0-\xff][\x80-\xbf]{2})\Z"
)
_MOVED_BACK = re.compile(b"[\r\b]")
_MOVES = re.compile("[\r\b\x1b\x7f]")
_STEP = re.compile("([\r\b\x1c\x1d\x1e])")
_ERASE = {"K": "\x1c", "0K": "\x1c", "1K": "\x1d", "2K": "\x1e"}


def render_pipe(data: bytes) -> str:
    """Render output to a pipe as text. Invalid UTF-8 becomes U+FFFD."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    if _MOVES.search(text):
        text = re.sub("[\x1c-\x1e]", "", text)
        text = _ESCAPE.sub(lambda match: _ERASE.get(match["control"] or "", ""), text)
        text = "\n".join(
            _apply_moves(line) if _STEP.search(line) else line for line in text.split("\n")
        )
    return strip_unsafe(text)


class PipeRenderer:
    """Renders output to a pipe that arrives in pieces: complete lines, and very long ones in parts.

    Of a long line in which the cursor moved back, only the end is kept, as in `_apply_moves`.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._is_open = False  # whether a part of the current line was returned

    def feed(self, data: bytes) -> str:
        """Return the text that can be shown now."""
        end = data.rfind(b"\n") + 1
        complete = bytes(self._buffer) + data[:end] if end else b""
        if end:
            self._buffer.clear()
            self._is_open = False
        self._buffer += data[end:]
        return render_pipe(complete) + (
            self._take_part() if len(self._buffer) > MAX_LINE_BYTES else ""
        )

    def finish(self) -> str:
        """Return the last line, which has no line end."""
        rest, is_open = bytes(self._buffer), self._is_open
        self._buffer.clear()
        self._is_open = False
        return render_pipe(rest + b"\n") if rest or is_open else ""

    def _take_part(self) -> str:
        if _MOVED_BACK.search(
            self._buffer, 0, len(self._buffer) - 1
        ):  # the last byte may be part of \r\n
            del self._buffer[: -4 * MAX_OVERWRITTEN_CHARS]
            return ""
        # Do not split an escape of usual length, a character, or \r\n.
        begin = len(self._buffer) - MAX_OVERWRITTEN_CHARS
        split = INCOMPLETE_INVISIBLE.search(self._buffer, begin) or _SPLIT_CHARACTER.search(
            self._buffer, begin
        )
        end = split.start() if split else len(self._buffer)
        part = bytes(self._buffer[:end])
        del self._buffer[:end]
        self._is_open = True
        return render_pipe(part)


def strip_unsafe(text: str) -> str:
    """Remove all characters that could act on a terminal."""
    return _HARMFUL.sub("", text)


def _apply_moves(line: str) -> str:
    """Return how a line looks after cursor movements and erasures.

    Of a very long line (a progress bar without line ends) only the last part is used.
    """
    if len(line) > MAX_OVERWRITTEN_CHARS:
        line = line[-MAX_OVERWRITTEN_CHARS:]
        line = line[line.find("\r") + 1 :]
    shown, at = "", 0
    for part in _STEP.split(line):
        if part == "\r":
            at = 0
        elif part == "\b":
            at = max(at - 1, 0)
        elif part == "\x1c":  # erase to the end of the line
            shown = shown[:at]
        elif part == "\x1d":  # erase from the beginning of the line
            shown = " " * at + shown[at:]
        elif part == "\x1e":  # erase the line
            shown = " " * at
        else:
            shown = shown[:at].ljust(at) + part + shown[at + len(part) :]
            at += len(part)
    return shown.rstrip(" ") if line.endswith(("\x1c", "\x1e")) else shown


# Control sequences that affect the text; colours, reports and most modes do not.
_KEPT = re.compile(
    r"[0-9]{0,9}[@ABCDEFGJKLMPXade`]|[0-9]{0,9}(?:;[0-9]{0,9})?[Hfr]|\?(?:6|7)[hl]|4[hl]"
)
_KEPT_WITH_COLOURS = re.compile(_KEPT.pattern + "|[0-9;]{0,64}m")
_ALTERNATE = re.compile(r"\?(?:47|1047|1049)(?P<way>[hl])")
_SINGLES = frozenset("DEM78c")


class TerminalEmulator:
    """A terminal emulator without a display, with up to `history` lines of scrollback.

    It accepts any input.
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

        from corral.adapters.output.screen import EmulatedScreen

        self._screen = EmulatedScreen(columns, rows, history, colours=colours)
        self._kept = _KEPT_WITH_COLOURS if colours else _KEPT
        self._stream = pyte.Stream(self._screen)
        self._decoder = getincrementaldecoder("utf-8")("replace")
        self._incomplete = ""
        self._in_string = False

    def feed(self, data: bytes) -> None:
        """Process output; it may end within a character or an escape sequence."""
        text = self._incomplete + self._decoder.decode(data)
        self._incomplete = ""
        if self._in_string:
            end = _STRING_END.search(text)
            if end is None:
                return
            self._in_string, text = False, text[end.end() :]
        if open_ := _OPEN.search(text, max(text.rfind("\x1b"), 0)):
            text, self._incomplete = text[: open_.start()], text[open_.start() :]
            if len(self._incomplete) > MAX_ESCAPE_CHARS:
                self._incomplete, self._in_string = "", True
        self._process(text)

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of the terminal."""
        self._screen.resize(rows, columns)

    def screen(self) -> list[str]:
        """Return the current screen, line by line."""
        return [strip_unsafe(line) for line in self._screen.rows()]

    def background(self, row: int, column: int) -> str:
        """Return the background colour of a cell; always the default without `colours`."""
        return self._screen.background(row, column)

    def text(self) -> str:
        """Return scrollback and screen, without empty lines at the end."""
        lines = [*self._screen.scrollback, *self._screen.rows()]
        while lines and not lines[-1]:
            lines.pop()
        return strip_unsafe("".join(f"{line}\n" for line in lines))

    def _process(self, text: str) -> None:
        at = 0
        for match in _ESCAPE.finditer(text):
            self._write(text[at : match.start()])
            at = match.end()
            if control := match["control"]:
                self._handle_control(control)
            elif (single := match["single"]) and single in _SINGLES:
                self._send("\x1b" + single)
        self._write(text[at:])

    def _handle_control(self, control: str) -> None:
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
        except Exception:  # the emulator has bugs; reset its parser and continue
            self._stream.detach(self._screen)
            self._stream.attach(self._screen)


# Control characters that are not passed to the emulator.
_NO_CONTROL = re.compile("[\x00-\x06\x0e-\x1f\x7f-\x9f]")


def render(data: bytes, *, terminal: bool, columns: int = 80, rows: int = 24) -> str:
    """Render complete output as text; `terminal`: it was written to a terminal."""
    if not terminal:
        return render_pipe(data)
    emulator = TerminalEmulator(columns, rows)
    emulator.feed(data)
    return emulator.text()
