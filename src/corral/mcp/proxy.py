"""The tools of a daemon that is elsewhere: each message is handed on to its `/mcp`.

So an agent that cannot reach the store itself, in a sandbox or on another machine, has the same
tools by the same command; its token says who it is. A call that changes something gets a key, so
that it is done once although it is sent again when its answer was lost.
"""

import os
import threading
from typing import Any

import msgspec

from corral.adapters.http_client import Wire
from corral.kernel.errors import CorralError
from corral.kernel.text import in_whole_characters
from corral.mcp.protocol import INTERNAL_ERROR, Answer, Failure, Message, refusal


class Afar:
    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._token = token
        self._wire: Wire | None = None

    def answer(self, line: bytes, message: Message, gone: threading.Event) -> Answer:
        try:
            self._wire = self._wire or Wire(self._url, self._token)
            told = self._wire.hand_on("/mcp", _with_key(line, message), _headers(message))
        except CorralError as error:
            return refusal(Failure(INTERNAL_ERROR, error.message), message.id)
        return Answer(told.body)


def _headers(message: Message) -> dict[str, str]:
    """What the newer era wants said once more in the headers."""
    if message.version is None:
        return {}
    headers = {"MCP-Protocol-Version": str(message.version), "Mcp-Method": message.method}
    return headers | ({"Mcp-Name": message.tool.name} if message.tool is not None else {})


def _with_key(line: bytes, message: Message) -> bytes:
    if message.tool is None or not message.tool.writes:
        return line
    whole: dict[str, Any] = msgspec.json.decode(in_whole_characters(line))
    arguments = whole["params"].get("arguments") or {}
    if not isinstance(arguments, dict) or arguments.get("idempotency_key"):
        return line
    whole["params"]["arguments"] = arguments | {"idempotency_key": os.urandom(16).hex()}
    return msgspec.json.encode(whole)
