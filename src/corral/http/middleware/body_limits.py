"""Limits on request bodies: size, duration, JSON values, and the memory of all bodies together.

Limits apply before reading: a body whose Content-Length is too large is refused unread, and a body
without one is read only up to the caller's limit.
"""

import asyncio
import time
from collections import Counter
from typing import NamedTuple

from starlette.datastructures import Headers

from corral.asgi import AsgiApp, AsgiMessage, Receive, Scope, Send
from corral.http.errors import ApiError
from corral.http.middleware.http_middleware import HttpMiddleware, find_client_address
from corral.http.middleware.rate_limits import retry_after
from corral.services.tokens import TokenIdentity

MEGABYTE = 1 << 20


class BodyLimit(NamedTuple):
    """The limits of one kind of caller."""

    max_bytes: int
    """Maximum size of one body."""
    max_bytes_per_caller: int
    """Maximum size of all bodies of one caller at once."""
    max_bytes_total: int
    """Maximum size of all bodies of this kind of caller at once."""
    max_values: int
    """Maximum number of JSON values: an empty object of two bytes needs sixty once decoded."""
    idle_seconds: float
    """Maximum time between two chunks."""
    total_seconds: float
    """Maximum time for the whole body."""


TOKEN_LIMIT = BodyLimit(10 * MEGABYTE, 40 * MEGABYTE, 160 * MEGABYTE, 1_000_000, 30.0, 120.0)
AGENT_LIMIT = BodyLimit(4 * MEGABYTE, 8 * MEGABYTE, 64 * MEGABYTE, 200_000, 30.0, 60.0)
ANONYMOUS_LIMIT = BodyLimit(1 * MEGABYTE, 4 * MEGABYTE, 16 * MEGABYTE, 50_000, 10.0, 20.0)


class BodyLimitMiddleware(HttpMiddleware):
    """Limits the body of each request while its handler reads it.

    A handler that decodes JSON calls `state.check_body` with the body first.
    """

    def __init__(self, app: AsgiApp) -> None:
        super().__init__(app)
        self._budget = BodyBudget()

    async def _handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope["state"]
        who: TokenIdentity | None = state.get("who")
        limit = _find_limit(who)
        caller = who.id if who is not None else find_client_address(scope)
        length = Headers(scope=scope).get("content-length", "0")
        body = self._budget.begin(receive, length, caller, limit)
        state["check_body"] = lambda data: _check_json(data, limit)
        try:
            await self._app(scope, body.receive, send)
        finally:
            body.end()


def _find_limit(who: TokenIdentity | None) -> BodyLimit:
    if who is None:
        return ANONYMOUS_LIMIT
    return AGENT_LIMIT if who.agent else TOKEN_LIMIT


class BodyBudget:
    """The bytes of bodies in memory, by caller and by kind of caller."""

    def __init__(self) -> None:
        self._by_caller: Counter[str] = Counter()
        self._by_kind: Counter[BodyLimit] = Counter()

    def begin(self, receive: Receive, length: str, caller: str, limit: BodyLimit) -> "LimitedBody":
        """Start reading a body; `length` is its Content-Length.

        Raises ApiError 413 when it is too large.
        """
        if length.isascii() and length.isdigit() and int(length) > limit.max_bytes:
            raise _too_large_error(limit)
        return LimitedBody(self, receive, caller, limit)

    def reserve(self, caller: str, limit: BodyLimit, size: int) -> None:
        """Count `size` bytes; raises ApiError 429 when the caller or its kind has too many."""
        if (
            self._by_caller[caller] + size > limit.max_bytes_per_caller
            or self._by_kind[limit] + size > limit.max_bytes_total
        ):
            raise ApiError(
                429,
                "too_many",
                "Too many request bodies are in progress. Try again in a moment.",
                headers={"connection": "close", **retry_after(1)},
            )
        self._by_caller[caller] += size
        self._by_kind[limit] += size

    def release(self, caller: str, limit: BodyLimit, size: int) -> None:
        self._by_caller[caller] -= size
        if not self._by_caller[caller]:
            del self._by_caller[caller]
        self._by_kind[limit] -= size


class LimitedBody:
    """One body as an ASGI `receive`. Call `end` after the response."""

    def __init__(self, budget: BodyBudget, receive: Receive, caller: str, limit: BodyLimit) -> None:
        self._budget = budget
        self._receive = receive
        self._caller = caller
        self._limit = limit
        self._size = 0
        self._is_complete = False
        self._deadline: float | None = None

    async def receive(self) -> AsgiMessage:
        if self._is_complete:
            return await self._receive()  # reports a disconnect
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._limit.total_seconds
        timeout = min(self._limit.idle_seconds, self._deadline - now)
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, timeout))
        except TimeoutError:
            raise ApiError(
                408,
                "invalid",
                "The request body did not arrive in time. Send it again.",
                headers={"connection": "close"},
            ) from None
        self._is_complete = not message.get("more_body", False)
        size = len(message.get("body", b""))
        if self._size + size > self._limit.max_bytes:
            raise _too_large_error(self._limit)
        self._budget.reserve(self._caller, self._limit, size)
        self._size += size
        return message

    def end(self) -> None:
        self._budget.release(self._caller, self._limit, self._size)
        self._size = 0


def _check_json(body: bytes, limit: BodyLimit) -> None:
    """Raise ApiError 413 when JSON has more values than its caller may send.

    Each value except the first follows one of these characters. Characters inside strings count
    too, so the count may be too high, but never too low.
    """
    if body.count(b"{") + body.count(b"[") + body.count(b",") > limit.max_values:
        raise ApiError(
            413,
            "invalid",
            f"The request body has more than {limit.max_values:,} values. Send it in parts.",
            limit=limit.max_values,
        )


def _too_large_error(limit: BodyLimit) -> ApiError:
    return ApiError(
        413,
        "invalid",
        f"The request body is larger than {limit.max_bytes // MEGABYTE} MB. Put it into a file and "
        "send its path.",
        headers={"connection": "close"},
        limit=limit.max_bytes,
    )
