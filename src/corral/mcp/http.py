"""The tools over HTTP: `POST /mcp` of the daemon, one request and one response.

The endpoint uses `mcp/protocol.py`, as the stdio transport does, and not the server of the MCP
SDK: importing the SDK would delay the start of the daemon by more than a second. The tests check
both transports with the SDK's client. The endpoint keeps no state between requests, so a client may
continue with another daemon of the same store. The middleware has already checked the token, Host
and Origin, and has put the caller's identity into the state of the request.
"""

import asyncio
import binascii
import threading
from urllib.parse import parse_qsl

from anyio import CapacityLimiter, to_thread
from starlette.routing import BaseRoute, Route

from corral.api import Corral
from corral.asgi import IncompleteBody, Receive, Scope, Send, read_body
from corral.mcp.identity import Caller, caller_from_token
from corral.mcp.protocol import (
    HANDSHAKE_VERSIONS,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    STATELESS_VERSIONS,
    UNSUPPORTED_VERSION,
    RpcError,
    RpcMessage,
    RpcResponse,
    error_response,
    handle_message,
    parse_message,
)

FAST_THREADS = 32
WAITING_THREADS = 64

# The status of an error in the stateless protocol. With the handshake, every response is a 200.
HTTP_STATUS = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    METHOD_NOT_FOUND: 404,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    UNSUPPORTED_VERSION: 400,
}


def routes() -> list[BaseRoute]:
    return [Route("/mcp", McpEndpoint())]


class McpEndpoint:
    """The ASGI app at `/mcp`."""

    def __init__(self) -> None:
        self._fast = CapacityLimiter(FAST_THREADS)
        self._waiting = CapacityLimiter(WAITING_THREADS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            # There is no notification stream to open (GET) and no session to end (DELETE).
            await _send(send, 405, b"", (b"allow", b"POST"))
            return
        headers = dict(reversed(scope["headers"]))
        message: RpcMessage | None = None
        try:
            body = await read_body(receive)
            scope["state"]["check_body"](body)
            message = parse_message(body)
            if message.id is None:
                await _send(send, 202, b"")
                return
            check_headers(message, headers)
            response = await self._handle(scope, receive, message)
        except IncompleteBody:
            response = error_response(RpcError(PARSE_ERROR, "The request body is incomplete."))
        except RpcError as error:
            response = error_response(error, message.id if message else None)
        is_stateless = message is None or message.version is not None
        status = HTTP_STATUS.get(response.code, 200) if is_stateless else 200
        await _send(send, status, response.body)

    async def _handle(self, scope: Scope, receive: Receive, message: RpcMessage) -> RpcResponse:
        state = scope["state"]
        store: Corral = state["store"]
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))

        def identify() -> tuple[Corral, Caller]:
            return store, caller_from_token(store, state["who"], query)

        if message.tool is None or not message.tool.waits:
            return await to_thread.run_sync(handle_message, message, identify, limiter=self._fast)
        cancelled = threading.Event()
        watcher = asyncio.ensure_future(_cancel_on_disconnect(receive, cancelled))
        try:
            return await to_thread.run_sync(
                handle_message, message, identify, cancelled, limiter=self._waiting
            )
        finally:
            watcher.cancel()


async def _cancel_on_disconnect(receive: Receive, cancelled: threading.Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    cancelled.set()


async def _send(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    all_headers = [(b"content-length", str(len(body)).encode()), *headers]
    if body:
        all_headers.append((b"content-type", b"application/json"))
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await send({"type": "http.response.body", "body": body})


def check_headers(message: RpcMessage, headers: dict[bytes, bytes]) -> None:
    """Raise RpcError unless the headers match the message: proxies may route by the headers."""
    version = headers.get(b"mcp-protocol-version", b"").decode("latin-1")
    if message.version is None:
        if version in STATELESS_VERSIONS:
            raise RpcError(INVALID_PARAMS, "params._meta must contain the protocol version too.")
        if version and version not in HANDSHAKE_VERSIONS:
            data = {
                "supported": [*HANDSHAKE_VERSIONS, *STATELESS_VERSIONS],
                "requested": version,
            }
            raise RpcError(UNSUPPORTED_VERSION, "Unsupported protocol version", data)
        return
    pairs = {
        "MCP-Protocol-Version": (version, message.version),
        "Mcp-Method": (headers.get(b"mcp-method", b"").decode("latin-1"), message.method),
    }
    if message.method == "tools/call" and message.params.name is not None:
        pairs["Mcp-Name"] = (_decode_header(headers.get(b"mcp-name", b"")), message.params.name)
    for name, (header, body) in pairs.items():
        if header != body:
            raise RpcError(HEADER_MISMATCH, f"Header {name} differs from the message.")


def _decode_header(value: bytes) -> str:
    """Decode a header's text; text that is not safe in a header is sent as base64."""
    if value.startswith(b"=?base64?") and value.endswith(b"?="):
        try:
            return binascii.a2b_base64(value[9:-2], strict_mode=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return value.decode("latin-1")
