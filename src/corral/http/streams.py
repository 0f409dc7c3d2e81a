"""Streaming endpoints: the event feed, and the output of a run."""

import asyncio
import time
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import msgspec

from corral.api import Corral
from corral.api.remote_table import MAX_WAIT_MS
from corral.asgi import Receive, Scope, Send
from corral.http.errors import ApiError
from corral.http.feed import EventFeed
from corral.http.middleware.rate_limits import retry_after
from corral.http.router import ApiRouter, DisconnectWatcher
from corral.kernel.errors import Invalid, Refused
from corral.services.tokens import TOKEN_CHECK_SECONDS, TokenIdentity

if TYPE_CHECKING:
    from corral.adapters.output.reader import OutputFiles
    from corral.adapters.output.sealed_file import SealedOutput

MAX_SUBSCRIBERS = 2_000
SEND_TIMEOUT_SECONDS = 30.0  # a client that reads nothing for this long is disconnected
OUTPUT_POLL_SECONDS = 0.1
MAX_OUTPUT_BYTES = 1024 * 1024
MAX_OUTPUT_LINES = 10_000


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


class EventStream:
    """`GET /api/events`: server-sent events after `Last-Event-ID` or `after`."""

    def __init__(self, api: ApiRouter, feed: EventFeed) -> None:
        self._api = api
        self._feed = feed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        who: TokenIdentity = scope["state"]["who"]
        store: Corral = scope["state"]["store"]
        if who.agent is not None:
            raise Refused("An agent's token cannot read the event feed.")
        event_filter = parse_query(scope, EventFilter)
        last_id = dict(scope["headers"]).get(b"last-event-id", b"").decode("latin-1").strip()
        after = last_id or event_filter.after
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
                after,
                kind=event_filter.kind,
                subject=event_filter.subject,
                project=event_filter.project,
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
                if not await self._api.run_in_thread(lambda: store.internal.tokens.is_valid(who)):
                    return


class OutputStream:
    """`GET /api/runs/ID/output`: bytes from an offset.

    X-Next-Offset is the offset of the next request; X-More says whether more may follow.
    """

    def __init__(self, api: ApiRouter) -> None:
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        who: TokenIdentity = scope["state"]["who"]
        store: Corral = scope["state"]["store"]
        if who.agent is not None:
            raise Refused("An agent's token cannot read the output of runs.")
        wanted = parse_query(scope, OutputRange)
        _check_range(wanted)
        deadline = time.monotonic() + min(max(wanted.wait_ms, 0), MAX_WAIT_MS) / 1_000
        run: str = scope["path_params"]["run"]
        client = DisconnectWatcher(receive)
        try:
            while True:
                output = await self._api.run_in_thread(lambda: _read_output(store, run, wanted))
                if output.data or not output.more or time.monotonic() >= deadline or client.is_gone:
                    break
                await asyncio.sleep(OUTPUT_POLL_SECONDS)
        finally:
            client.close()
        headers = [
            (b"x-next-offset", str(output.next_offset).encode()),
            (b"x-size", str(output.size).encode()),
            (b"x-more", b"true" if output.more else b"false"),
            (b"content-length", str(len(output.data)).encode()),
        ]
        await _send_start(send, b"application/octet-stream", headers)
        await _send_chunk(send, output.data, more=False)


class OutputSlice(msgspec.Struct, frozen=True):
    """A part of a run's output, and where the next part starts."""

    data: bytes
    next_offset: int
    """The offset in bytes of the next request; the number of the next line when lines were read."""
    size: int
    more: bool


def _check_range(wanted: OutputRange) -> None:
    if not 1 <= wanted.limit <= MAX_OUTPUT_BYTES:
        raise Invalid(f"Invalid limit: expected 1 to {MAX_OUTPUT_BYTES} bytes.", field="limit")
    if not 1 <= wanted.count <= MAX_OUTPUT_LINES:
        raise Invalid(f"Invalid count: expected 1 to {MAX_OUTPUT_LINES} lines.", field="count")
    if wanted.offset < 0:
        raise Invalid("Invalid offset: expected 0 or more.", field="offset")


def _read_output(store: Corral, id: str, wanted: OutputRange) -> OutputSlice:
    run = store.runs.get(id)
    text = store.outputs.open(run.id, stream=wanted.stream)
    if wanted.tail is not None:
        lines = text.tail(min(wanted.tail, MAX_OUTPUT_LINES))
        return OutputSlice(b"\n".join(lines), text.size, text.size, run.is_live)
    if wanted.line is not None:
        lines = text.lines(wanted.line, wanted.count)
        return OutputSlice(b"\n".join(lines), wanted.line + len(lines), text.size, run.is_live)
    return _read_bytes(text, wanted.offset, wanted.limit, is_live=run.is_live)


class _NoMoreData(Exception):
    """All output that exists now was read."""


def _read_bytes(
    text: "OutputFiles | SealedOutput", offset: int, limit: int, *, is_live: bool
) -> OutputSlice:
    """Read whole chunks from `offset` on until they have `limit` bytes; never waits.

    `follow` is stopped where it would wait. Ending it with `is_finished` would release the bytes
    that it holds back because they may be the beginning of a secret.
    """

    def stop_waiting(_: float) -> None:
        raise _NoMoreData

    chunks: list[bytes] = []
    size = 0
    is_complete = True
    try:
        for chunk in text.follow(offset, is_finished=lambda: not is_live, wait=stop_waiting):
            chunks.append(chunk.text)
            size += len(chunk.text)
            offset = chunk.next
            if size >= limit:
                is_complete = False
                break
    except _NoMoreData:
        is_complete = False
    return OutputSlice(b"".join(chunks), offset, text.size, not is_complete)


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
