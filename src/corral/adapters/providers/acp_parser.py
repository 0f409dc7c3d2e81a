"""What an agent printed in the Agent Client Protocol, for those who only read it."""

from typing import Any

from corral.adapters.providers.acp import NO_SUCH_METHOD, AcpTalk, Done
from corral.adapters.providers.facts import Fact
from corral.adapters.providers.lines import table, text

FIRST = 1  # the number of a process's first request, `initialize`


class AcpParser(AcpTalk):
    """Understands one side of a conversation in which others take part: it says nothing itself.

    Several processes may have printed it, one after the other.
    """

    def __init__(self, *, policy: frozenset[str] = frozenset()) -> None:
        super().__init__(lambda data: None, cwd="", prompt="", policy=policy)
        self._opened_once = False

    def feed(self, data: bytes) -> list[Fact | Done]:
        """What one line says."""
        return self._line(data)

    @property
    def _loading(self) -> bool:
        return not self._opened_once

    def _called(self, message: dict[str, Any]) -> list[Fact | Done]:
        self.session = text(message, "params", "sessionId") or self.session
        facts = super()._called(message)
        self._asked.clear()  # others answer
        return facts

    def _replied(self, message: dict[str, Any]) -> list[Fact | Done]:
        result, error = table(message, "result"), table(message, "error")
        begins = message.get("id") == FIRST
        if "error" in message:
            if not self._opened_once and error.get("code") == NO_SUCH_METHOD:
                return []  # it is asked in another way then
            return self._refused("session/prompt", error)
        if "stopReason" in result:
            return self._answered(result)
        self._opened_once = not begins
        return []
