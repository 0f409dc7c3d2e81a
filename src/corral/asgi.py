"""Types of the ASGI interface, and reading of request bodies."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
AsgiMessage = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[AsgiMessage]]
Send = Callable[[AsgiMessage], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

READ_METHODS = frozenset({"GET", "HEAD"})


class IncompleteBody(Exception):
    """The client disconnected before it had sent the whole body."""


async def read_body(receive: Receive) -> bytes:
    """Read the whole body of a request; raises IncompleteBody."""
    chunks = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise IncompleteBody
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(chunks)
