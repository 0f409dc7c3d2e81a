"""The tools over HTTP: one POST, one answer, at `/mcp` of the daemon.

It is this package's own protocol and not the SDK's server: so both transports are one code that one
set of tests holds to the SDK's client, the daemon loads no SDK (over a second, and pydantic), and a
call costs what the library costs. Nothing is remembered between requests, so there are no
sessions to lose: a client may go on with another daemon of the same store. The guard before it has
looked at token, Host and Origin; who calls stands in the request's state.
"""

import asyncio
import binascii
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import parse_qsl

from anyio import CapacityLimiter, to_thread
from starlette.routing import BaseRoute, Route

from corral.api import Corral
from corral.mcp.identity import Caller, from_token
from corral.mcp.protocol import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MODERN,
    OLDER,
    PARSE_ERROR,
    UNSUPPORTED_VERSION,
    Answer,
    Failure,
    Message,
    answer,
    read,
    refusal,
)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

QUICK = 32  # threads for calls that are answered at once
PATIENT = 64  # for those that wait

# What the newer era wants as the status of an error; in the older one every answer is a 200.
STATUS = {
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    METHOD_NOT_FOUND: 404,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    UNSUPPORTED_VERSION: 400,
}


def routes() -> list[BaseRoute]:
    return [Route("/mcp", Endpoint())]


class Endpoint:
    def __init__(self) -> None:
        self._quick = CapacityLimiter(QUICK)
        self._patient = CapacityLimiter(PATIENT)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            # No stream of notices to open, and no session to end.
            await _send(send, 405, b"", (b"allow", b"POST"))
            return
        headers = dict(reversed(scope["headers"]))
        message: Message | None = None
        try:
            body = await _body(receive)
            scope["state"]["check_body"](body)
            message = read(body)
            if message.id is None:
                await _send(send, 202, b"")
                return
            check_headers(message, headers)
            told = await self._answer(scope, receive, message)
        except Failure as error:
            told = refusal(error, message.id if message else None)
        strict = message is None or message.version is not None
        await _send(send, STATUS.get(told.code, 200) if strict else 200, told.body)

    async def _answer(self, scope: Scope, receive: Receive, message: Message) -> Answer:
        state = scope["state"]
        store: Corral = state["store"]
        query = dict(parse_qsl(scope["query_string"].decode("latin-1")))

        def identify() -> tuple[Corral, Caller]:
            return store, from_token(store, state["who"], query)

        if message.tool is None or not message.tool.waits:
            return await to_thread.run_sync(answer, message, identify, limiter=self._quick)
        gone = threading.Event()
        watching = asyncio.ensure_future(_watch(receive, gone))
        try:
            return await to_thread.run_sync(answer, message, identify, gone, limiter=self._patient)
        finally:
            watching.cancel()


async def _watch(receive: Receive, gone: threading.Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    gone.set()


async def _body(receive: Receive) -> bytes:
    pieces = []
    while True:
        part = await receive()
        if part["type"] == "http.disconnect":
            raise Failure(PARSE_ERROR, "The body ended before it was whole.")
        pieces.append(part.get("body", b""))
        if not part.get("more_body", False):
            return b"".join(pieces)


async def _send(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    said = [(b"content-length", str(len(body)).encode()), *headers]
    if body:
        said.append((b"content-type", b"application/json"))
    await send({"type": "http.response.start", "status": status, "headers": said})
    await send({"type": "http.response.body", "body": body})


def check_headers(message: Message, headers: dict[bytes, bytes]) -> None:
    """The headers and the message must say the same: others on the way may go by the headers."""
    version = headers.get(b"mcp-protocol-version", b"").decode("latin-1")
    if message.version is None:
        if version in MODERN:
            raise Failure(INVALID_PARAMS, "params._meta must say the protocol version too.")
        if version and version not in OLDER:
            data = {"supported": [*OLDER, *MODERN], "requested": version}
            raise Failure(UNSUPPORTED_VERSION, "Unsupported protocol version", data)
        return
    said = {
        "MCP-Protocol-Version": (version, message.version),
        "Mcp-Method": (headers.get(b"mcp-method", b"").decode("latin-1"), message.method),
    }
    if message.method == "tools/call" and message.params.name is not None:
        said["Mcp-Name"] = (_decoded(headers.get(b"mcp-name", b"")), message.params.name)
    for name, (header, body) in said.items():
        if header != body:
            raise Failure(HEADER_MISMATCH, f"The header {name} differs from the message.")


def _decoded(value: bytes) -> str:
    """A header's text, which is wrapped when it would not survive as it is."""
    if value.startswith(b"=?base64?") and value.endswith(b"?="):
        try:
            return binascii.a2b_base64(value[9:-2], strict_mode=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return value.decode("latin-1")
