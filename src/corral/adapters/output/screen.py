"""The screen of the terminal emulator: scrollback, alternate screen, fast path for ASCII."""

import unicodedata
from collections import deque
from typing import Any

import pyte
from pyte import modes
from pyte.screens import Char

_PLAIN = {chr(code): Char(chr(code)) for code in range(32, 127)}


MAX_ACCENTS = 4  # combining characters per letter


class EmulatedScreen(pyte.Screen):
    """A pyte screen with scrollback. Without `colours`, cells have no attributes."""

    def __init__(self, columns: int, rows: int, history: int, *, colours: bool = False) -> None:
        self._has_colours = colours
        self._accents = 0
        self.scrollback: deque[str] = deque(maxlen=history)
        self._main: tuple[Any, Any] | None = None
        super().__init__(columns, rows)

    def rows(self) -> list[str]:
        """Return the text of the screen, line by line."""
        return [self._text(self.buffer[row]) for row in range(self.lines)]

    def background(self, row: int, column: int) -> str:
        colour: str = self.buffer[row][column].bg
        return colour

    def alternate(self, enter: bool) -> None:
        """Enter or leave the alternate screen, which has no scrollback."""
        if enter and self._main is None:
            self._main = ({row: line.copy() for row, line in self.buffer.items()}, self.cursor)
            self.cursor = pyte.screens.Cursor(0, 0)
            self.buffer.clear()
        elif not enter and self._main is not None:
            lines, self.cursor = self._main
            self._main = None
            self.buffer.clear()
            self.buffer.update(lines)

    def index(self) -> None:
        top, bottom = self.margins or (0, self.lines - 1)
        if self._main is None and top == 0 and self.cursor.y == bottom:
            self.scrollback.append(self._text(self.buffer[0]))
        super().index()

    def draw(self, data: str) -> None:
        if (
            self._has_colours
            or not data.isascii()
            or modes.IRM in self.mode
            or modes.DECAWM not in self.mode
        ):
            super().draw(self._limit_accents(data))
            return
        self._accents = 0
        cursor = self.cursor
        while data:
            if cursor.x >= self.columns:
                self.carriage_return()
                self.linefeed()
            room = self.columns - cursor.x
            part, data = data[:room], data[room:]
            cells = map(_PLAIN.__getitem__, part)
            self.buffer[cursor.y].update(
                zip(range(cursor.x, cursor.x + len(part)), cells, strict=True)
            )
            cursor.x += len(part)

    def _limit_accents(self, data: str) -> str:
        """Drop excess combining characters: the emulator is quadratic in their number."""
        kept = []
        for letter in data:
            self._accents = self._accents + 1 if unicodedata.combining(letter) else 0
            if self._accents <= MAX_ACCENTS:
                kept.append(letter)
        return "".join(kept)

    def _text(self, line: Any) -> str:
        width = max(line, default=-1) + 1
        return "".join([line[at].data for at in range(width)]).rstrip()
