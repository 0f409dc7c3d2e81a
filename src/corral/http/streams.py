"""What is no single answer: the feed of events, and what a run writes, as it comes."""

import asyncio
import time
from contextlib import aclosing, suppress
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from corral.api import Corral
from corral.api.remote_table import LONGEST_WAIT_MS
from corral.api.tokens import Who
from corral.http.api import Api, Gone
from corral.http.errors import Problem
from corral.http.feed import Feed
from corral.http.middleware import Receive, Scope, Send
from corral.http.rate_limits import retry_after
from corral.kernel.errors import Invalid, Refused

MOST_SUBSCRIBERS = 2_000
SEND_SECONDS = 30.0  # a browser that takes nothing for so long is cut off
CHECK_SECONDS = 15.0  # how soon a subscriber with a revoked token is let go
LOOK_SECONDS = 0.1  # while a caller waits for a run to write
MOST_BYTES = 1024 * 1024


class Where(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which events are wanted."""

    after: str | None = None
    kind: str | None = None
    subject: str | None = None
    project: str | None = None


class Part(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which part of an output is wanted: bytes from an offset, lines, or the last lines."""

    stream: str = "output"
    offset: int = 0
    limit: int = 64 * 1024
    line: int | None = None
    tail: int | None = None
    count: int = 100
    wait_ms: int = 0


class Streams:
    def __init__(self, api: Api, feed: Feed) -> None:
        self._api = api
        self._feed = feed

    # -- events ---------------------------------------------------------------------------------

    async def events(self, scope: Scope, receive: Receive, send: Send, _: list[str]) -> None:
        """`GET /api/events`: server-sent events, behind `Last-Event-ID` or `after`."""
        who: Who = scope["state"]["who"]
        store: Corral = scope["state"]["store"]
        if who.agent is not None:
            raise Refused("An agent's token opens no feed of events.")
        where = parsed(scope, Where)
        last = dict(scope["headers"]).get(b"last-event-id", b"").decode("latin-1").strip()
        after = last or where.after
        if after:  # a bad one is told now, as long as there is an answer to tell it in
            await self._api.run(lambda: store.events.after(after, limit=1))
        if self._feed.subscribers >= MOST_SUBSCRIBERS:
            raise Problem(
                429,
                "too_many",
                f"{MOST_SUBSCRIBERS:,} subscribers are here already; try again later.",
                headers=retry_after(10),
            )
        scope["state"]["place"].leave()
        gone = Gone(receive)
        try:
            await _start(send, b"text/event-stream")
            pieces = self._feed.subscribe(
                after, kind=where.kind, subject=where.subject, project=where.project
            )
            async with aclosing(pieces):
                await self._pass_on(pieces, send, gone, store, who)
            if not gone.gone:
                await _body(send, b"", more=False)
        except TimeoutError:
            # It takes nothing any more: it is cut off, and comes again behind what it has.
            with suppress(TimeoutError):
                await asyncio.wait_for(_body(send, b"", more=False), 1)
        finally:
            gone.close()

    async def _pass_on(self, pieces: Any, send: Send, gone: Gone, store: Corral, who: Who) -> None:
        check = time.monotonic() + CHECK_SECONDS
        async for piece in pieces:
            if gone.gone:
                return
            await asyncio.wait_for(_body(send, piece), SEND_SECONDS)
            if time.monotonic() > check:
                check = time.monotonic() + CHECK_SECONDS
                if not await self._api.run(lambda: _still_good(store, who)):
                    return

    # -- output ---------------------------------------------------------------------------------

    async def output(self, scope: Scope, receive: Receive, send: Send, parts: list[str]) -> None:
        """`GET /api/runs/ID/output`: bytes from an offset on; X-Next-Offset says where to go on,
        X-More whether there may be more."""
        who: Who = scope["state"]["who"]
        store: Corral = scope["state"]["store"]
        if who.agent is not None:
            raise Refused("An agent's token does not read output.")
        part = parsed(scope, Part)
        if not 1 <= part.limit <= MOST_BYTES or not 1 <= part.count <= 10_000 or part.offset < 0:
            raise Invalid("A limit goes from 1 byte to 1 MB, a count from 1 to 10,000 lines.")
        ends = time.monotonic() + min(max(part.wait_ms, 0), LONGEST_WAIT_MS) / 1_000
        gone = Gone(receive)
        try:
            while True:
                found = await self._api.run(lambda: _read(store, parts[1], part))
                if found.data or not found.more or time.monotonic() >= ends or gone.gone:
                    break
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            gone.close()
        headers = [
            (b"x-next-offset", str(found.next).encode()),
            (b"x-size", str(found.size).encode()),
            (b"x-more", b"true" if found.more else b"false"),
            (b"content-length", str(len(found.data)).encode()),
        ]
        await _start(send, b"application/octet-stream", headers)
        await _body(send, found.data, more=False)


class Found(msgspec.Struct, frozen=True):
    data: bytes
    next: int
    size: int
    more: bool


class _Enough(Exception):
    """What is there for now was read."""


def _read(store: Corral, id: str, part: Part) -> Found:
    run = store.runs.get(id)
    text = store.outputs.open(run.id, stream=part.stream)
    live = run.is_live
    if part.tail is not None:
        lines = text.tail(min(part.tail, 10_000))
        return Found(b"\n".join(lines), text.size, text.size, live)
    if part.line is not None:
        lines = text.lines(part.line, part.count)
        return Found(b"\n".join(lines), part.line + len(lines), text.size, live)

    def enough(_: float) -> None:
        raise _Enough

    pieces, size, next = [], 0, part.offset
    over = True
    try:
        for piece in text.follow(part.offset, over=lambda: not live, wait=enough):
            pieces.append(piece.text)
            size += len(piece.text)
            next = piece.next
            if size >= part.limit:
                over = False
                break
    except _Enough:
        over = False
    return Found(b"".join(pieces), next, text.size, not over)


def _still_good(store: Corral, who: Who) -> bool:
    token = store.tokens.get(who.id)
    return token.ended_at is None and (who.expires_at is None or who.expires_at > store.now())


def parsed(scope: Scope, kind: Any) -> Any:
    """The query of a URL, as a record of its kind."""
    try:
        query = dict(parse_qsl(scope["query_string"].decode("ascii"), errors="strict"))
        return msgspec.convert(query, kind, strict=False)
    except (msgspec.ValidationError, UnicodeDecodeError, ValueError) as error:
        raise Invalid(f"That cannot be asked for: {error}; see /api/docs.") from None


async def _start(send: Send, kind: bytes, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    told = [(b"content-type", kind), (b"x-accel-buffering", b"no"), *(headers or [])]
    await send({"type": "http.response.start", "status": 200, "headers": told})


async def _body(send: Send, piece: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": piece, "more_body": more})
