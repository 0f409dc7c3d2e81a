"""Tools of a remote daemon: every message is forwarded to its `/mcp`.

An agent that cannot reach the store itself, in a sandbox or on another machine, gets the same tools
with the same command; its token identifies it. Calls that write get an idempotency key, so that
they are performed once although they are sent again when a response was lost. A cancelled call is
not cancelled at the daemon: the daemon completes it, and its response is dropped.
"""

import os
import threading
from typing import Any

import msgspec

from corral.adapters.http_client import DaemonClient
from corral.kernel.errors import CorralError
from corral.kernel.validation import replace_invalid_utf8
from corral.mcp.protocol import INTERNAL_ERROR, RpcError, RpcMessage, RpcResponse, error_response


class ProxyHandler:
    """Forwards messages to a daemon; connects at the first one."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._token = token
        self._client: DaemonClient | None = None

    def handle(self, line: bytes, message: RpcMessage, cancelled: threading.Event) -> RpcResponse:
        try:
            self._client = self._client or DaemonClient(self._url, self._token)
            response = self._client.forward("/mcp", _with_key(line, message), _headers(message))
        except CorralError as error:
            return error_response(RpcError(INTERNAL_ERROR, error.message), message.id)
        return RpcResponse(response.body)


def _headers(message: RpcMessage) -> dict[str, str]:
    """Return the headers that the stateless protocol requires in addition to the body."""
    if message.version is None:
        return {}
    headers = {"MCP-Protocol-Version": str(message.version), "Mcp-Method": message.method}
    return headers | ({"Mcp-Name": message.tool.name} if message.tool is not None else {})


def _with_key(line: bytes, message: RpcMessage) -> bytes:
    """Add an idempotency key to a call that writes and has none."""
    if message.tool is None or not message.tool.writes:
        return line
    request: dict[str, Any] = msgspec.json.decode(replace_invalid_utf8(line))
    arguments = request["params"].get("arguments") or {}
    if not isinstance(arguments, dict) or arguments.get("idempotency_key"):
        return line
    request["params"]["arguments"] = arguments | {"idempotency_key": os.urandom(16).hex()}
    return msgspec.json.encode(request)
