"""Keyboard input to an agent's terminal interface, checked against its screen.

An interface treats a carriage return that arrives together with text as part of the text, drops
keys while it draws, and can open a dialog at any moment, in which Enter approves something. So text
and Enter are two steps, the screen is read before each of them, and the result is confirmed.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from corral.adapters.providers.choices import keys_for
from corral.adapters.providers.screens import ENTER, MAX_KEY_PRESSES, ScreenLayout, ScreenReading
from corral.supervisor.agent_io import Reply

# A screen has settled when it has not changed for this long.
SETTLE_SECONDS = 0.5
# An animated screen never settles. It counts as settled after this time.
MAX_SETTLE_SECONDS = 2.0
# A key is repeated when the screen has not changed for this long after it.
REPEAT_SECONDS = 1.0
# The maximum wait for an input line, in seconds.
INPUT_TIMEOUT = 10.0
# The time that an interface takes to move the selection mark.
MARK_SECONDS = 0.3


class ScreenView(NamedTuple):
    """The screen at one moment."""

    now: float
    changed_at: float
    """When the screen last changed."""
    reading: ScreenReading


class InputEntry:
    """One input. `step` presses at most one key; `reply` is called once, with the outcome."""

    def __init__(self, type_in: Callable[[bytes], bool], reply: Reply, now: float) -> None:
        self._type_in = type_in
        self._reply = reply
        self._at = now
        self._presses = 0
        self.is_over = False

    def step(self, view: ScreenView) -> None:
        """Press the next key if the screen allows it."""
        raise NotImplementedError

    def close(self) -> None:
        """Reply that the agent has ended; the last key may have ended it."""
        if not self.is_over:
            self._finish({"ok": True} if self._presses else {"ok": False, "error": "ended"})

    def _press(self, keys: str, now: float) -> bool:
        self._at = now
        if not self._type_in(keys.encode()):
            self._fail("no_input")
            return False
        return True

    def _fail(self, error: str, **details: Any) -> None:
        self._finish({"ok": False, "error": error, **details})

    def _finish(self, outcome: dict[str, Any]) -> None:
        self.is_over = True
        self._reply(outcome)


class TextEntry(InputEntry):
    """A text, then Enter.

    The run's first prompt waits without a time limit, also while dialogs are open, and is typed
    only while the screen does not change.
    """

    def __init__(
        self,
        text: str,
        *,
        enter: bool,
        type_in: Callable[[bytes], bool],
        reply: Reply,
        now: float,
        is_first_prompt: bool = False,
    ) -> None:
        super().__init__(type_in, reply, now)
        self._text = text
        self._enter = enter
        self._is_first_prompt = is_first_prompt
        self._until = now + INPUT_TIMEOUT
        self._is_typed = False
        self._draft: str | None = None

    def step(self, view: ScreenView) -> None:
        if self._presses:
            self._confirm(view)
        elif view.reading.state == "needs_input" and not self._is_first_prompt:
            self._fail("typed_into_dialog" if self._is_typed else "dialog_opened")
        elif not self._can_type(view):
            if view.now >= self._until and not self._is_first_prompt:
                self._fail("not_submitted" if self._is_typed else "no_input_line")
        elif not self._is_settled(view):
            return
        elif not self._is_typed:
            self._type(view.now)
        else:
            self._submit(view)

    def _can_type(self, view: ScreenView) -> bool:
        reading = view.reading
        if reading.draft is None:
            return False
        if reading.state == "ready" or (reading.state == "working" and not self._is_first_prompt):
            return True
        # A list of commands below the input line hides the status; the draft is our text.
        return self._is_typed and reading.state == "unknown" and self._is_shown(reading.draft)

    def _is_shown(self, draft: str) -> bool:
        return bool(self._text.strip()) and draft.startswith(self._text.strip())

    def _is_settled(self, view: ScreenView) -> bool:
        is_still = view.now - max(view.changed_at, self._at) >= SETTLE_SECONDS
        return is_still or (not self._is_first_prompt and view.now - self._at >= MAX_SETTLE_SECONDS)

    def _type(self, now: float) -> None:
        self._until = now + INPUT_TIMEOUT
        text = _paste(self._text) if self._is_first_prompt or "\n" in self._text else self._text
        if self._press(text, now):
            self._is_typed = True
            if not self._enter:
                self._finish({"ok": True})

    def _submit(self, view: ScreenView) -> None:
        self._draft = view.reading.draft
        if self._press(ENTER, view.now):
            self._presses += 1

    def _confirm(self, view: ScreenView) -> None:
        reading = view.reading
        if reading.draft != self._draft:
            self._finish({"ok": True})
        elif view.now - self._at >= REPEAT_SECONDS:
            if self._presses >= MAX_KEY_PRESSES:
                self._fail("not_submitted")
            else:
                self._submit(view)


class ChoiceEntry(InputEntry):
    """Selects an option of the open dialog."""

    def __init__(
        self,
        screen: ScreenLayout,
        dialog: ScreenReading,
        option_index: int,
        *,
        type_in: Callable[[bytes], bool],
        reply: Reply,
        now: float,
    ) -> None:
        super().__init__(type_in, reply, now)
        self._screen = screen
        self._dialog = dialog
        self._option_index = option_index
        self._rounds = 0
        self._mark_moves_until = now

    def step(self, view: ScreenView) -> None:
        is_open = is_same_dialog(self._dialog, view.reading)
        if self._presses and not is_open:
            self._finish(
                {"ok": True, "how": "answered", "option": self._dialog.options[self._option_index]}
            )
        elif not is_open:
            self._fail("dialog_changed")
        elif self._presses and view.now - self._at < REPEAT_SECONDS:
            return
        elif view.now >= self._mark_moves_until:
            self._press_next(view)

    def _press_next(self, view: ScreenView) -> None:
        keys = keys_for(self._screen, view.reading, self._option_index)
        if keys is None or self._presses >= MAX_KEY_PRESSES or self._rounds >= MAX_KEY_PRESSES:
            self._fail("answer_not_accepted")
            return
        pressed, selects = keys
        if not self._press(pressed, view.now):
            return
        if selects:
            self._presses += 1
        else:
            self._rounds += 1
            self._mark_moves_until = view.now + MARK_SECONDS


def is_same_dialog(first: ScreenReading, second: ScreenReading) -> bool:
    """Whether two readings show the same question about the same thing."""
    return second.state == "needs_input" and (first.question, first.options, first.subject) == (
        second.question,
        second.options,
        second.subject,
    )


def _paste(text: str) -> str:
    """Wrap text as a bracketed paste, in which a newline does not submit."""
    return "\x1b[200~{}\x1b[201~".format(text.replace("\x1b", ""))
