"""Agents with a terminal interface that is drawn for a person.

The output is rendered by a terminal emulator, and the state is read from the parts of the screen
that the interface itself draws. Dialogs are answered only as far as the run's approvals allow, each
one once, and every key press is logged. Text from a person goes through `send`: while a dialog is
open it must name one of the options, because Enter selects the marked one.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from corral.adapters.output.render import TerminalEmulator
from corral.adapters.providers.choices import find_option
from corral.adapters.providers.facts import LimitFact
from corral.adapters.providers.screens import ScreenLayout, ScreenReader, ScreenReading
from corral.domain.runs.model import Attention, Dialog, build_dialog
from corral.supervisor.agent_io import AgentIO, Log, Reply
from corral.supervisor.input_entries import (
    REPEAT_SECONDS,
    ChoiceEntry,
    InputEntry,
    ScreenView,
    TextEntry,
)

POLL_SECONDS = 0.2  # while something is to be typed
MAX_FEED_BYTES = 1 << 16
MAX_ENTRIES = 16
STUCK_SECONDS = 300.0  # the screen shows work but does not change


class ScreenIO(AgentIO):
    """Reads an agent's screen, and answers its dialogs as far as approvals allow."""

    def __init__(
        self,
        screen: ScreenLayout,
        *,
        size: tuple[int, int],
        approvals: frozenset[str],
        type_in: Callable[[bytes], bool],
        first_prompt: str | None,
        log: Log,
    ) -> None:
        super().__init__()
        rows, columns = size
        self._screen = screen
        self._terminal = TerminalEmulator(columns, rows, history=0, colours=screen.bar)
        self._reader = ScreenReader(screen, approvals)
        self._type_in = type_in
        self._log = log
        self._reading = ScreenReading("unknown")
        self.status.is_starting = True
        self._changed = False
        self._answered: dict[str, Any] | None = None
        self._lines: list[str] = []
        self._changed_at = time.monotonic()
        self._entries: deque[InputEntry] = deque()
        if first_prompt is not None:
            self._add_text(first_prompt, enter=True, reply=self._log_prompt, is_first_prompt=True)

    def resize(self, rows: int, columns: int) -> None:
        self._terminal.resize(columns, rows)

    def feed(self, data: bytes) -> None:
        self._terminal.feed(data[-MAX_FEED_BYTES:])  # only the end is still visible
        self._changed = True
        self.pause = POLL_SECONDS

    def poll(self) -> bool:
        now = time.monotonic()
        has_changed = self._changed and self._refresh(now)
        self._step_entry(now)
        if not has_changed:
            self._answer_again(now)
            self._check_stuck(now)
        self.pause = STUCK_SECONDS if self.status.is_working else None
        if self._entries or self._answered is not None:
            self.pause = POLL_SECONDS
        return has_changed

    def _refresh(self, now: float) -> bool:
        """Read the screen; return whether its text has changed."""
        self._changed = False
        lines = self._terminal.screen()
        if lines == self._lines and not self._screen.bar:
            return False
        has_changed = lines != self._lines
        self._lines = lines
        if has_changed:
            self._changed_at = now
        self._read(lines, is_new=has_changed)
        return has_changed

    def _read(self, lines: list[str], *, is_new: bool) -> None:
        reading = self._reader.look(lines, self._terminal.background)
        self._reading = reading
        if not is_new:  # only the selection mark of a dialog may have moved
            return
        self._answered = None
        self.status.is_starting = self.status.is_starting and reading.state == "unknown"
        self.status.is_working = reading.state == "working"
        is_asked = reading.state == "needs_input"
        self.status.attention = Attention.NEEDS_INPUT if is_asked else None
        self.status.dialog = _build_dialog(reading) if is_asked else None
        if reading.answer is not None:
            self._answer(reading.answer, reading.question, reading.kind)
        elif reading.state == "limit":
            self.status.quota_limit = LimitFact(
                reading.detail or "The provider's quota is exhausted."
            )

    # -- text from a person --------------------------------------------------------------------

    def send(self, text: str, *, enter: bool, dialog: str | None, reply: Reply) -> bool:
        now = time.monotonic()
        if self._changed:
            self._refresh(now)
        reading, self.pause = self._reading, POLL_SECONDS
        shown = _build_dialog(reading) if reading.state == "needs_input" else None
        if len(self._entries) >= MAX_ENTRIES:
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
        option_index = find_option(self._screen, reading, text)
        if option_index is None:
            error = "not_an_option" if shown.options else "dialog_unreadable"
            details = {"question": shown.question, "asks": shown.options}
            reply({"ok": False, "error": error, **details})
            return

        def done(outcome: dict[str, Any]) -> None:
            option = reading.options[option_index]
            details = {"question": reading.question, "option": option}
            if outcome["ok"]:
                self._log("info", "A person answered the dialog.", details)
            reply(outcome | {"how": "answered", "option": option})

        entry = ChoiceEntry(
            self._screen, reading, option_index, type_in=self._type_in, reply=done, now=now
        )
        self._entries.append(entry)

    def quit(self, command: str, failed: Callable[[], None]) -> bool:
        if self._reading.state == "needs_input":
            return False  # Enter would approve the open request

        def done(outcome: dict[str, Any]) -> None:
            if not outcome["ok"]:
                failed()

        self._add_text(command, enter=True, reply=done)
        self.pause = POLL_SECONDS
        return True

    def _add_text(
        self, text: str, *, enter: bool, reply: Reply, is_first_prompt: bool = False
    ) -> None:
        self._entries.append(
            TextEntry(
                text,
                enter=enter,
                type_in=self._type_in,
                reply=reply,
                now=time.monotonic(),
                is_first_prompt=is_first_prompt,
            )
        )

    def _step_entry(self, now: float) -> None:
        """Advance the first entry by one step; the next one starts when it is over."""
        if self._entries and self._answered is None:
            self._entries[0].step(ScreenView(now, self._changed_at, self._reading))
            if self._entries[0].is_over:
                self._entries.popleft()

    def _log_prompt(self, outcome: dict[str, Any]) -> None:
        typed = bool(outcome["ok"])
        self._log("info", "Typed the prompt." if typed else "Cannot type the prompt.", None)

    # -- answers by policy ---------------------------------------------------------------------

    def _answer(self, keys: str, question: str | None, kind: str | None) -> None:
        typed = self._type_in(keys.encode())
        details: dict[str, Any] = {"question": question, "class": kind, "keys": keys}
        message = (
            "Approved, as the run's approvals allow." if typed else "Cannot answer the dialog."
        )
        self._log("info", message, details)
        if typed:
            self.status.attention = self.status.dialog = None
            self._answered = details

    def _answer_again(self, now: float) -> None:
        """Repeat an answer that had no effect; after a few tries, call for a person."""
        if self._answered is None or now - self._changed_at < REPEAT_SECONDS:
            return
        keys, self._changed_at = self._reader.retry_keys(), now
        if keys is not None and self._type_in(keys.encode()):
            self._log("info", "Answered again, because the screen did not change.", self._answered)
        else:
            self.status.attention, self._answered, self.pause = Attention.NEEDS_INPUT, None, None
            self.status.dialog = _build_dialog(self._reading)

    def close(self) -> None:
        while self._entries:
            self._entries.popleft().close()

    def _check_stuck(self, now: float) -> None:
        if self.status.is_working and now - self._changed_at >= STUCK_SECONDS:
            self.status.attention = Attention.STUCK


def _build_dialog(reading: ScreenReading) -> Dialog:
    return build_dialog(
        reading.question or "", reading.options, kind=reading.kind, about=reading.subject
    )
