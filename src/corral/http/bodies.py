"""Request bodies: limits on the size of one, the time it takes, and the memory of all together.

Limits apply before reading: a body whose Content-Length is too large is refused unread, and a body
without one is read only up to the caller's limit.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, NamedTuple

from corral.http.errors import Problem
from corral.http.rate_limits import retry_after

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

MEGABYTE = 1 << 20


class BodyLimit(NamedTuple):
    """The limits of one kind of caller."""

    bytes: int
    """Maximum size of one body."""
    of_caller: int
    """Maximum size of all bodies of one caller at once."""
    of_all: int
    """Maximum size of all bodies of this kind of caller at once."""
    values: int
    """Maximum JSON values: an empty object of two bytes needs sixty when it is decoded."""
    pause_seconds: float
    """Maximum time between two pieces."""
    seconds: float
    """Maximum time for the whole body."""


KNOWN = BodyLimit(10 * MEGABYTE, 40 * MEGABYTE, 160 * MEGABYTE, 1_000_000, 30.0, 120.0)
AGENT = BodyLimit(4 * MEGABYTE, 8 * MEGABYTE, 64 * MEGABYTE, 200_000, 30.0, 60.0)
STRANGER = BodyLimit(1 * MEGABYTE, 4 * MEGABYTE, 16 * MEGABYTE, 50_000, 10.0, 20.0)


class Bodies:
    """The bodies in memory, counted by caller and by kind of caller."""

    def __init__(self) -> None:
        self._of_caller: Counter[str] = Counter()
        self._of_all: Counter[BodyLimit] = Counter()

    def begin(self, receive: Receive, length: bytes, caller: str, limit: BodyLimit) -> "Body":
        """Start reading a body; `length` is its Content-Length. Raises Problem 413 when it is too
        large."""
        if length.isdigit() and int(length) > limit.bytes:
            raise _too_large(limit)
        return Body(self, receive, caller, limit)

    def take(self, caller: str, limit: BodyLimit, size: int) -> None:
        if (
            self._of_caller[caller] + size > limit.of_caller
            or self._of_all[limit] + size > limit.of_all
        ):
            raise Problem(
                429,
                "too_many",
                "Too many request bodies are in progress. Try again in a moment.",
                headers={"connection": "close", **retry_after(1)},
            )
        self._of_caller[caller] += size
        self._of_all[limit] += size

    def give_back(self, caller: str, limit: BodyLimit, size: int) -> None:
        self._of_caller[caller] -= size
        if not self._of_caller[caller]:
            del self._of_caller[caller]
        self._of_all[limit] -= size


class Body:
    """One body as an ASGI `receive`; call `end` when the request is answered."""

    def __init__(self, bodies: Bodies, receive: Receive, caller: str, limit: BodyLimit) -> None:
        self._bodies = bodies
        self._receive = receive
        self._caller = caller
        self._limit = limit
        self._size = 0
        self._is_whole = False
        self._until: float | None = None

    async def receive(self) -> MutableMapping[str, Any]:
        if self._is_whole:
            return await self._receive()  # reports a disconnect
        now = time.monotonic()
        if self._until is None:
            self._until = now + self._limit.seconds
        left = min(self._limit.pause_seconds, self._until - now)
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, left))
        except TimeoutError:
            words = "The request body did not arrive in time. Send it again."
            raise Problem(408, "invalid", words, headers={"connection": "close"}) from None
        self._is_whole = not message.get("more_body", False)
        size = len(message.get("body", b""))
        if self._size + size > self._limit.bytes:
            raise _too_large(self._limit)
        self._bodies.take(self._caller, self._limit, size)
        self._size += size
        return message

    def end(self) -> None:
        self._bodies.give_back(self._caller, self._limit, self._size)
        self._size = 0


def check_json(body: bytes, limit: BodyLimit) -> None:
    """Raise Problem 413 when JSON has more values than its caller may send.

    Each value except the first follows one of these characters. Characters inside strings count
    too, so the count may be too high, but never too low.
    """
    if body.count(b"{") + body.count(b"[") + body.count(b",") > limit.values:
        raise Problem(
            413,
            "invalid",
            f"The request body has more than {limit.values:,} values. Send it in parts.",
            limit=limit.values,
        )


def _too_large(limit: BodyLimit) -> Problem:
    return Problem(
        413,
        "invalid",
        f"The request body is larger than {limit.bytes // MEGABYTE} MB. Put it into a file and "
        "send its path.",
        headers={"connection": "close"},
        limit=limit.bytes,
    )
