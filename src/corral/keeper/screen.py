"""An agent of which only a screen can be seen, drawn for a person.

What the agent writes is drawn on a screen of our own, and the screen is read where the agent's
interface draws its own chrome. Keys are typed only as the run's approvals allow, each dialog is
answered once, and every key press is in the run's log.
"""

import time
from collections.abc import Callable
from typing import Any

from corral.adapters.output.render import Terminal
from corral.adapters.providers.facts import LimitReached
from corral.adapters.providers.screens import Reader, Screen
from corral.keeper.voice import Log, Voice
from corral.rooms.runs.model import Attention

BETWEEN_LOOKS = 0.2
STANDS_STILL = 0.5  # seconds
UNHEARD_AFTER = 1.0  # seconds in which nothing moved after an answer
MOST_AT_ONCE = 1 << 16
STUCK_AFTER = 300.0  # seconds in which it shows that it works, and nothing moves


class ScreenVoice(Voice):
    """Reads an agent's screen, and answers its dialogs as far as that was allowed."""

    def __init__(
        self,
        screen: Screen,
        *,
        size: tuple[int, int],
        approvals: frozenset[str],
        type_in: Callable[[bytes], bool],
        first_words: str | None,
        log: Log,
    ) -> None:
        super().__init__()
        rows, columns = size
        self._terminal = Terminal(columns, rows, history=0)
        self._reader = Reader(screen, approvals)
        self._type_in = type_in
        self._to_type = [] if first_words is None else [_paste(first_words), b"\r"]
        self._log = log
        self._state = "unknown"
        self._changed = False
        self._answered: dict[str, Any] | None = None
        self._seen: list[str] = []
        self._moved = time.monotonic()

    def resize(self, rows: int, columns: int) -> None:
        self._terminal.resize(columns, rows)

    def feed(self, data: bytes) -> None:
        self._terminal.feed(data[-MOST_AT_ONCE:])  # of a flood only the end can still be seen
        self._changed = True
        self.pause = BETWEEN_LOOKS

    def look(self) -> bool:
        now = time.monotonic()
        if not self._changed:
            self._type_on(now)
            self._answer_again(now)
            self._notice_silence(now)
            return False
        self._changed = False
        lines = self._terminal.screen()
        moved = lines != self._seen
        if moved:
            self._seen, self._moved = lines, now
            self._read(lines)
        self.pause = STUCK_AFTER if self.is_working else None
        if self._to_type or self._answered is not None:
            self.pause = BETWEEN_LOOKS
        return moved

    def _read(self, lines: list[str]) -> None:
        reading = self._reader.look(lines)
        self._state = reading.state
        self._answered = None
        self.is_working = reading.state == "working"
        self.attention = Attention.NEEDS_INPUT if reading.state == "needs_input" else None
        if reading.answer is not None:
            self._answer(reading.answer, reading.question, reading.kind)
        elif reading.state == "limit":
            self.limit = LimitReached(reading.detail or "The quota is used up.")

    def _answer(self, keys: str, question: str | None, kind: str | None) -> None:
        typed = self._type_in(keys.encode())
        found: dict[str, Any] = {"question": question, "class": kind, "keys": keys}
        self._log("info", "Answered yes, as allowed." if typed else "Could not answer.", found)
        if typed:
            self.attention = None
            self._answered = found

    def _answer_again(self, now: float) -> None:
        """An answer after which nothing moves was not heard; after a few of them a person is
        called."""
        if self._answered is None or now - self._moved < UNHEARD_AFTER:
            return
        keys, self._moved = self._reader.again(), now
        if keys is not None and self._type_in(keys.encode()):
            self._log("info", "Answered again, for nothing moved.", self._answered)
        else:
            self.attention, self._answered, self.pause = Attention.NEEDS_INPUT, None, None

    def _type_on(self, now: float) -> None:
        """The prompt, then Enter: each only when it is ready and stands still, for a question may
        come up at the last moment, and an Enter that comes with a paste is a part of it."""
        if self._to_type and self._state == "ready" and now - self._moved >= STANDS_STILL:
            keys, self._moved = self._to_type.pop(0), now
            typed = self._type_in(keys)
            if not typed:
                self._to_type.clear()
            if not self._to_type:
                done = "Typed the prompt." if typed else "Could not type the prompt."
                self._log("info", done, None)

    def _notice_silence(self, now: float) -> None:
        if self.is_working and now - self._moved >= STUCK_AFTER:
            self.attention = Attention.STUCK


def _paste(words: str) -> bytes:
    """As a terminal pastes: a newline in it does not send it off."""
    return b"\x1b[200~%s\x1b[201~" % words.replace("\x1b", "").encode()
