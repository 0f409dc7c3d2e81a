"""Streaming endpoints: the event feed, and the output of a run."""

import asyncio
import time
from contextlib import aclosing, suppress
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from corral.api import Corral
from corral.api.remote_table import MAX_WAIT_MS
from corral.asgi import Receive, Scope, Send
from corral.http.api import ApiRouter, DisconnectWatcher
from corral.http.errors import ApiError
from corral.http.feed import EventFeed
from corral.http.middleware.rate_limits import retry_after
from corral.kernel.errors import Invalid, Refused
from corral.services.tokens import TokenIdentity

MAX_SUBSCRIBERS = 2_000
SEND_TIMEOUT_SECONDS = 30.0  # a client that reads nothing for this long is disconnected
TOKEN_CHECK_SECONDS = 15.0  # how often a stream checks that its token is still valid
OUTPUT_POLL_SECONDS = 0.1
MAX_OUTPUT_BYTES = 1024 * 1024


class EventFilter(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The query of `GET /api/events`."""

    after: str | None = None
    kind: str | None = None
    subject: str | None = None
    project: str | None = None


class OutputRange(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The query of `GET /api/runs/ID/output`: bytes from an offset, lines, or the last lines."""

    stream: str = "output"
    offset: int = 0
    limit: int = 64 * 1024
    line: int | None = None
    tail: int | None = None
    count: int = 100
    wait_ms: int = 0


class StreamEndpoints:
    """Handlers of the paths that stream."""

    def __init__(self, api: ApiRouter, feed: EventFeed) -> None:
        self._api = api
        self._feed = feed

    # -- events ---------------------------------------------------------------------------------

    async def events(self, scope: Scope, receive: Receive, send: Send, _: list[str]) -> None:
        """`GET /api/events`: server-sent events after `Last-Event-ID` or `after`."""
        who: TokenIdentity = scope["state"]["who"]
        store: Corral = scope["state"]["store"]
        if who.agent is not None:
            raise Refused("An agent's token cannot read the event feed.")
        filter = parse_query(scope, EventFilter)
        last_id = dict(scope["headers"]).get(b"last-event-id", b"").decode("latin-1").strip()
        after = last_id or filter.after
        if after:  # validate the cursor while an error status can still be sent
            await self._api.run_in_thread(lambda: store.events.after(after, limit=1))
        if self._feed.subscriber_count >= MAX_SUBSCRIBERS:
            raise ApiError(
                429,
                "too_many",
                f"Too many subscribers (limit {MAX_SUBSCRIBERS:,}). Try again later.",
                headers=retry_after(10),
            )
        scope["state"]["slot"].release()
        client = DisconnectWatcher(receive)
        try:
            await _send_start(send, b"text/event-stream")
            chunks = self._feed.subscribe(
                after, kind=filter.kind, subject=filter.subject, project=filter.project
            )
            async with aclosing(chunks):
                await self._forward(chunks, send, client, store, who)
            if not client.is_gone:
                await _send_chunk(send, b"", more=False)
        except TimeoutError:
            # The client stopped reading. It reconnects with the last id that it received.
            with suppress(TimeoutError):
                await asyncio.wait_for(_send_chunk(send, b"", more=False), 1)
        finally:
            client.close()

    async def _forward(
        self, chunks: Any, send: Send, client: DisconnectWatcher, store: Corral, who: TokenIdentity
    ) -> None:
        """Send chunks until the client disconnects or its token becomes invalid."""
        next_check = time.monotonic() + TOKEN_CHECK_SECONDS
        async for chunk in chunks:
            if client.is_gone:
                return
            await asyncio.wait_for(_send_chunk(send, chunk), SEND_TIMEOUT_SECONDS)
            if time.monotonic() > next_check:
                next_check = time.monotonic() + TOKEN_CHECK_SECONDS
                if not await self._api.run_in_thread(lambda: _is_token_valid(store, who)):
                    return

    # -- output ---------------------------------------------------------------------------------

    async def output(self, scope: Scope, receive: Receive, send: Send, parts: list[str]) -> None:
        """`GET /api/runs/ID/output`: bytes from an offset.

        X-Next-Offset is the offset of the next request; X-More says whether more may follow.
        """
        who: TokenIdentity = scope["state"]["who"]
        store: Corral = scope["state"]["store"]
        if who.agent is not None:
            raise Refused("An agent's token cannot read the output of runs.")
        range = parse_query(scope, OutputRange)
        if (
            not 1 <= range.limit <= MAX_OUTPUT_BYTES
            or not 1 <= range.count <= 10_000
            or range.offset < 0
        ):
            raise Invalid(
                "Invalid range: limit must be 1 to 1048576 bytes, count 1 to 10000 lines, and "
                "offset not negative."
            )
        deadline = time.monotonic() + min(max(range.wait_ms, 0), MAX_WAIT_MS) / 1_000
        client = DisconnectWatcher(receive)
        try:
            while True:
                output = await self._api.run_in_thread(lambda: _read_output(store, parts[1], range))
                if output.data or not output.more or time.monotonic() >= deadline or client.is_gone:
                    break
                await asyncio.sleep(OUTPUT_POLL_SECONDS)
        finally:
            client.close()
        headers = [
            (b"x-next-offset", str(output.next).encode()),
            (b"x-size", str(output.size).encode()),
            (b"x-more", b"true" if output.more else b"false"),
            (b"content-length", str(len(output.data)).encode()),
        ]
        await _send_start(send, b"application/octet-stream", headers)
        await _send_chunk(send, output.data, more=False)


class OutputSlice(msgspec.Struct, frozen=True):
    """A part of a run's output, and where the next part starts."""

    data: bytes
    next: int
    size: int
    more: bool


class _NoMoreData(Exception):
    """All output that exists now was read."""


def _read_output(store: Corral, id: str, range: OutputRange) -> OutputSlice:
    run = store.runs.get(id)
    text = store.outputs.open(run.id, stream=range.stream)
    is_live = run.is_live
    if range.tail is not None:
        lines = text.tail(min(range.tail, 10_000))
        return OutputSlice(b"\n".join(lines), text.size, text.size, is_live)
    if range.line is not None:
        lines = text.lines(range.line, range.count)
        return OutputSlice(b"\n".join(lines), range.line + len(lines), text.size, is_live)

    def stop_waiting(_: float) -> None:
        raise _NoMoreData

    chunks, size, next = [], 0, range.offset
    is_complete = True
    try:
        for piece in text.follow(range.offset, over=lambda: not is_live, wait=stop_waiting):
            chunks.append(piece.text)
            size += len(piece.text)
            next = piece.next
            if size >= range.limit:
                is_complete = False
                break
    except _NoMoreData:
        is_complete = False
    return OutputSlice(b"".join(chunks), next, text.size, not is_complete)


def _is_token_valid(store: Corral, who: TokenIdentity) -> bool:
    token = store.tokens.get(who.id)
    return token.ended_at is None and (who.expires_at is None or who.expires_at > store.now())


def parse_query(scope: Scope, struct: Any) -> Any:
    """Convert the query string to a struct; raises Invalid."""
    try:
        query = dict(parse_qsl(scope["query_string"].decode("ascii"), errors="strict"))
        return msgspec.convert(query, struct, strict=False)
    except (msgspec.ValidationError, UnicodeDecodeError, ValueError) as error:
        raise Invalid(f"Invalid query: {error}. See /api/docs.") from None


async def _send_start(
    send: Send, content_type: bytes, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    all_headers = [
        (b"content-type", content_type),
        (b"x-accel-buffering", b"no"),
        *(headers or []),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": all_headers})


async def _send_chunk(send: Send, chunk: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": chunk, "more_body": more})
