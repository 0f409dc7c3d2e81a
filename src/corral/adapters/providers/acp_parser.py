"""Parser of recorded Agent Client Protocol output: the agent's side of the conversation."""

from typing import Any

from corral.adapters.providers.acp import METHOD_NOT_FOUND, AcpClient, PromptResult
from corral.adapters.providers.facts import ProviderFact, UsageFact
from corral.adapters.providers.json_lines import get_dict, get_text

INITIALIZE_REQUEST_ID = 1  # the first request of every process is `initialize`


class AcpParser:
    """Parses the output of an agent without the requests that it answers.

    The output may come from several processes in sequence.
    """

    def __init__(self, *, policy: frozenset[str] = frozenset()) -> None:
        self._client = _PassiveClient(lambda data: None, cwd="", prompt="", policy=policy)

    def feed(self, line: bytes) -> list[ProviderFact]:
        return [
            fact for fact in self._client.handle_line(line) if not isinstance(fact, PromptResult)
        ]

    def pending(self) -> list[UsageFact]:
        return self._client.pending()

    def close(self) -> list[ProviderFact]:
        return self._client.flush()


class _PassiveClient(AcpClient):
    """A client that sends nothing and does not know the requests of the real client."""

    _is_open = False

    def handle_line(self, line: bytes) -> list[ProviderFact | PromptResult]:
        return self._handle_line(line)

    def flush(self) -> list[ProviderFact]:
        """Return the text that no other message has completed yet."""
        return self._flush()

    @property
    def _is_loading(self) -> bool:
        return not self._is_open

    def _handle_request(self, message: dict[str, Any]) -> list[ProviderFact | PromptResult]:
        self.session = get_text(message, "params", "sessionId") or self.session
        facts = super()._handle_request(message)
        self._permissions.clear()  # the real client answers
        return facts

    def _handle_response(self, message: dict[str, Any]) -> list[ProviderFact | PromptResult]:
        result, error = get_dict(message, "result"), get_dict(message, "error")
        if "error" in message:
            if not self._is_open and error.get("code") == METHOD_NOT_FOUND:
                return []  # the real client then falls back to another method
            return self._handle_error("session/prompt", error)
        if "stopReason" in result:
            return self._handle_prompt_result(result)
        self._is_open = message.get("id") != INITIALIZE_REQUEST_ID
        return []
