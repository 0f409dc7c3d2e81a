"""An agent of which only a screen can be seen, drawn for a person.

What the agent writes is drawn on a screen of our own, and the screen is read where the agent's
interface draws its own chrome. Keys are typed only as the run's approvals allow, each dialog is
answered once, and every key press is in the run's log. Text from a person goes through `send`:
while a dialog is open it must name one of the options, because Enter selects the marked one.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from corral.adapters.output.render import Terminal
from corral.adapters.providers.choices import find_option
from corral.adapters.providers.facts import LimitReached
from corral.adapters.providers.screens import Reader, Reading, Screen
from corral.domain.runs.model import Attention, Dialog, dialog_of
from corral.supervisor.agent_io import Log, Reply, Voice
from corral.supervisor.entries import UNHEARD_AFTER, ChoiceEntry, InputEntry, TextEntry, View

BETWEEN_LOOKS = 0.2
MOST_AT_ONCE = 1 << 16
MOST_ENTRIES = 16
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
        self._screen = screen
        self._terminal = Terminal(columns, rows, history=0, colours=screen.bar)
        self._reader = Reader(screen, approvals)
        self._type_in = type_in
        self._log = log
        self._reading = Reading("unknown")
        self.is_starting = True
        self._changed = False
        self._answered: dict[str, Any] | None = None
        self._seen: list[str] = []
        self._moved = time.monotonic()
        self._entries: deque[InputEntry] = deque()
        if first_words is not None:
            self._add_text(first_words, enter=True, reply=self._log_prompt, waits=True)

    def resize(self, rows: int, columns: int) -> None:
        self._terminal.resize(columns, rows)

    def feed(self, data: bytes) -> None:
        self._terminal.feed(data[-MOST_AT_ONCE:])  # of a flood only the end can still be seen
        self._changed = True
        self.pause = BETWEEN_LOOKS

    def look(self) -> bool:
        now = time.monotonic()
        moved = self._changed and self._refresh(now)
        self._go_on(now)
        if not moved:
            self._answer_again(now)
            self._notice_silence(now)
        self.pause = STUCK_AFTER if self.is_working else None
        if self._entries or self._answered is not None:
            self.pause = BETWEEN_LOOKS
        return moved

    def _refresh(self, now: float) -> bool:
        """Read the screen; returns whether it has changed."""
        self._changed = False
        lines = self._terminal.screen()
        if lines == self._seen and not self._screen.bar:
            return False
        moved = lines != self._seen
        self._seen = lines
        if moved:
            self._moved = now
        self._read(lines, is_new=moved)
        return moved

    def _read(self, lines: list[str], *, is_new: bool) -> None:
        reading = self._reader.look(lines, self._terminal.background)
        self._reading = reading
        if not is_new:  # only the mark of a dialog may have moved
            return
        self._answered = None
        self.is_starting = self.is_starting and reading.state == "unknown"
        self.is_working = reading.state == "working"
        is_asked = reading.state == "needs_input"
        self.attention = Attention.NEEDS_INPUT if is_asked else None
        self.dialog = _dialog(reading) if is_asked else None
        if reading.answer is not None:
            self._answer(reading.answer, reading.question, reading.kind)
        elif reading.state == "limit":
            self.limit = LimitReached(reading.detail or "The quota is used up.")

    # -- text from a person --------------------------------------------------------------------

    def send(self, text: str, *, enter: bool, dialog: str | None, reply: Reply) -> bool:
        now = time.monotonic()
        if self._changed:
            self._refresh(now)
        reading, self.pause = self._reading, BETWEEN_LOOKS
        shown = _dialog(reading) if reading.state == "needs_input" else None
        if len(self._entries) >= MOST_ENTRIES:
            reply({"ok": False, "error": "busy"})
        elif dialog is not None and (shown is None or shown.id != dialog):
            reply({"ok": False, "error": "dialog_changed"})
        elif shown is not None:
            self._choose(text, shown, reply, now)
        else:
            self._add_text(text, enter=enter, reply=reply)
        return True

    def _choose(self, text: str, shown: Dialog, reply: Reply, now: float) -> None:
        reading = self._reading
        wanted = find_option(self._screen, reading, text)
        if wanted is None:
            error = "not_an_option" if shown.options else "dialog_unreadable"
            told = {"question": shown.question, "asks": shown.options}
            reply({"ok": False, "error": error, **told})
            return

        def done(outcome: dict[str, Any]) -> None:
            option = reading.options[wanted]
            found = {"question": reading.question, "option": option}
            if outcome["ok"]:
                self._log("info", "A person answered.", found)
            reply(outcome | {"how": "answered", "option": option})

        entry = ChoiceEntry(
            self._screen, reading, wanted, type_in=self._type_in, reply=done, now=now
        )
        self._entries.append(entry)

    def quit(self, command: str, failed: Callable[[], None]) -> bool:
        if self._reading.state == "needs_input":
            return False  # the Enter after the command would approve the request

        def done(outcome: dict[str, Any]) -> None:
            if not outcome["ok"]:
                failed()

        self._add_text(command, enter=True, reply=done)
        self.pause = BETWEEN_LOOKS
        return True

    def _add_text(self, text: str, *, enter: bool, reply: Reply, waits: bool = False) -> None:
        self._entries.append(
            TextEntry(
                text,
                enter=enter,
                type_in=self._type_in,
                reply=reply,
                now=time.monotonic(),
                waits=waits,
            )
        )

    def _go_on(self, now: float) -> None:
        """Advance the first entry by one step; the next one starts when it is over."""
        if self._entries and self._answered is None:
            self._entries[0].step(View(now, self._moved, self._reading))
            if self._entries[0].is_over:
                self._entries.popleft()

    def _log_prompt(self, outcome: dict[str, Any]) -> None:
        typed = bool(outcome["ok"])
        self._log("info", "Typed the prompt." if typed else "Could not type the prompt.", None)

    # -- answers by policy ---------------------------------------------------------------------

    def _answer(self, keys: str, question: str | None, kind: str | None) -> None:
        typed = self._type_in(keys.encode())
        found: dict[str, Any] = {"question": question, "class": kind, "keys": keys}
        self._log("info", "Answered yes, as allowed." if typed else "Could not answer.", found)
        if typed:
            self.attention = self.dialog = None
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
            self.dialog = _dialog(self._reading)

    def close(self) -> None:
        while self._entries:
            self._entries.popleft().close()

    def _notice_silence(self, now: float) -> None:
        if self.is_working and now - self._moved >= STUCK_AFTER:
            self.attention = Attention.STUCK


def _dialog(reading: Reading) -> Dialog:
    return dialog_of(
        reading.question or "", reading.options, kind=reading.kind, about=reading.subject
    )
