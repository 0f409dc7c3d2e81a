"""What an agent printed in the Agent Client Protocol, for those who only read it."""

from typing import Any

from corral.adapters.providers.acp import NO_SUCH_METHOD, AcpTalk, Done
from corral.adapters.providers.facts import Fact, Used
from corral.adapters.providers.lines import table, text

FIRST = 1  # the number of a process's first request, `initialize`


class AcpParser:
    """Understands one side of a conversation in which others take part.

    Several processes may have printed it, one after the other.
    """

    def __init__(self, *, policy: frozenset[str] = frozenset()) -> None:
        self._heard = _Overheard(lambda data: None, cwd="", prompt="", policy=policy)

    def feed(self, line: bytes) -> list[Fact]:
        return [fact for fact in self._heard.hear(line) if not isinstance(fact, Done)]

    def pending(self) -> list[Used]:
        return self._heard.pending()

    def close(self) -> list[Fact]:
        return self._heard.left()


class _Overheard(AcpTalk):
    """A talk that says nothing itself, and does not know what was asked."""

    _is_open = False

    def hear(self, line: bytes) -> list[Fact | Done]:
        return self._line(line)

    def left(self) -> list[Fact]:
        """Words that were not followed by anything yet."""
        return self._flush()

    @property
    def _loading(self) -> bool:
        return not self._is_open

    def _called(self, message: dict[str, Any]) -> list[Fact | Done]:
        self.session = text(message, "params", "sessionId") or self.session
        facts = super()._called(message)
        self._asked.clear()  # others answer
        return facts

    def _replied(self, message: dict[str, Any]) -> list[Fact | Done]:
        result, error = table(message, "result"), table(message, "error")
        if "error" in message:
            if not self._is_open and error.get("code") == NO_SUCH_METHOD:
                return []  # it is asked in another way then
            return self._refused("session/prompt", error)
        if "stopReason" in result:
            return self._answered(result)
        self._is_open = message.get("id") != FIRST
        return []
