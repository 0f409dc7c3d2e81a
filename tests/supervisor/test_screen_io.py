"""Answers typed into an agent's terminal: an ineffective answer is retried, then needs input."""

from typing import Any

import pytest

from corral.adapters.providers.screens import SCREENS
from corral.domain.runs.model import Attention
from corral.supervisor import screen_io
from corral.supervisor.screen_io import REPEAT_SECONDS, ScreenIO
from tests.support.screen_files import SCREEN_FILES


class FakeInterface:
    """The interface of an agent that shows a dialog, and the ScreenIO that reads it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.typed: list[bytes] = []
        self.logged: list[str] = []
        self.now = 100.0
        monkeypatch.setattr(screen_io.time, "monotonic", lambda: self.now)
        self.screen_io = ScreenIO(
            SCREENS["claude"],
            size=(50, 120),
            approvals=frozenset({"all"}),
            type_in=lambda keys: self.typed.append(keys) is None,
            first_prompt=None,
            log=self._log,
        )

    def _log(self, level: str, message: str, data: dict[str, Any] | None) -> None:
        self.logged.append(message)

    def show(self, name: str) -> None:
        text = (SCREEN_FILES / f"{name}.txt").read_text().rstrip("\n").replace("\n", "\r\n")
        self.screen_io.feed(b"\x1b[2J\x1b[H" + text.encode())

    def advance(self, seconds: float) -> None:
        self.now += seconds
        self.screen_io.poll()


@pytest.fixture
def interface(monkeypatch: pytest.MonkeyPatch) -> FakeInterface:
    return FakeInterface(monkeypatch)


def test_answer_without_effect_is_retried_and_then_needs_input(
    interface: FakeInterface,
) -> None:
    interface.show("claude-run")
    interface.advance(0.1)
    assert interface.screen_io.pause is not None, "the screen is polled again without new output"
    for _ in range(6):
        interface.advance(REPEAT_SECONDS)
    assert interface.typed == [b"\r"] * 3
    assert interface.logged[1:] == ["Answered again, because the screen did not change."] * 2
    assert interface.screen_io.status.attention is Attention.NEEDS_INPUT


def test_accepted_answer_is_typed_once(interface: FakeInterface) -> None:
    interface.show("claude-run")
    interface.advance(0.1)
    interface.show("claude-working")
    for _ in range(4):
        interface.advance(REPEAT_SECONDS)
    assert interface.typed == [b"\r"]
    assert interface.screen_io.status.attention is None
