"""An answer without effect on the interface of the agent is retried, then needs a person."""

from typing import Any

import pytest

from corral.adapters.providers.screens import SCREENS
from corral.domain.runs.model import Attention
from corral.supervisor import screen_io
from corral.supervisor.screen_io import REPEAT_SECONDS, ScreenIO
from tests.support.screen_files import SCREEN_FILES


class Agent:
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

    def shows(self, name: str) -> None:
        text = (SCREEN_FILES / f"{name}.txt").read_text().rstrip("\n").replace("\n", "\r\n")
        self.screen_io.feed(b"\x1b[2J\x1b[H" + text.encode())

    def passes(self, seconds: float) -> None:
        self.now += seconds
        self.screen_io.poll()


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Agent:
    return Agent(monkeypatch)


def test_answer_without_effect_is_retried_and_then_needs_input(
    agent: Agent,
) -> None:
    agent.shows("claude-run")
    agent.passes(0.1)
    assert agent.screen_io.pause is not None, "it looks again though nothing is written"
    for _ in range(6):
        agent.passes(REPEAT_SECONDS)
    assert agent.typed == [b"\r"] * 3
    assert agent.logged[1:] == ["Answered again, because the screen did not change."] * 2
    assert agent.screen_io.attention is Attention.NEEDS_INPUT


def test_accepted_answer_is_typed_once(agent: Agent) -> None:
    agent.shows("claude-run")
    agent.passes(0.1)
    agent.shows("claude-working")
    for _ in range(4):
        agent.passes(REPEAT_SECONDS)
    assert agent.typed == [b"\r"]
    assert agent.screen_io.attention is None
