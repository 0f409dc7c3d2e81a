"""The API: a request becomes one call of the library, on a thread; its result becomes JSON."""

import hashlib
import os
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec
from anyio import CapacityLimiter, to_thread

from corral import __version__
from corral.adapters.http_client import REDACTED
from corral.api import Corral
from corral.api.idempotency import Key, once
from corral.api.operations import attributes
from corral.api.remote_table import (
    LOCAL,
    LONGEST_WAIT_MS,
    PLACES,
    STREAMS,
    WAITS,
    WISHES,
    Call,
    call_of,
)
from corral.api.tokens import Who
from corral.http import agent_permissions
from corral.http.errors import JSON, Problem
from corral.http.middleware import READS, Receive, Scope, Send
from corral.http.rate_limits import retry_after
from corral.kernel.errors import Invalid, NotFound, Refused

T = TypeVar("T")
Handler = Callable[[Scope, Receive, Send, list[str]], Awaitable[None]]

QUICK = 32  # threads for calls that are answered at once
PATIENT = 64  # for those that wait, or take their time
SLICE_MS = 1_000  # a call that waits looks this often whether its caller is still there

# Calls that may take seconds: they must not stand in the way of the quick ones.
SLOW = {
    "charges.price_unknown",
    "db.check",
    "db.prune",
    "db.sql",
    "db.verify",
    "projects.delete",
    *(
        f"races.{verb}"
        for verb in (
            *("abandon", "advance", "cancel", "changes", "clean", "diff", "graft", "judge"),
            *("merge", "next", "reclaim", "retry", "select", "so_far", "start"),
        )
    ),
    "runs.delete_all",
    "runs.recover",
    "runs.send",
    "runs.start_queued",
    "runs.stop",
    "search.catch_up",
    "search.find",
}

# What their answers hold is for the caller's eyes once, and is not kept for a repeated call.
NEVER_KEPT = {"tokens.create"}

NOTHING = b"[]"  # came while somebody waited
_encode = msgspec.json.Encoder(enc_hook=str).encode


class Api:
    """Everything below /api."""

    def __init__(self) -> None:
        self.others: dict[str, Handler] = {}
        """The paths that are no operation, by their shape: `events`, `runs/*/output`."""
        self._quick = CapacityLimiter(QUICK)
        self._patient = CapacityLimiter(PATIENT)
        self.stopping = False
        """Set when the server ends: whoever waits is answered soon."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["raw_path"].decode("latin-1").partition("?")[0]
        parts = _split(path)
        other = self.others.get(_shape(parts))
        if other is not None:
            _check_method(scope, "GET")
            scope["state"]["call"] = f"/api/{_shape(parts)}"
            await other(scope, receive, send, parts)
        else:
            await self._operation(scope, receive, send, parts)

    async def _operation(
        self, scope: Scope, receive: Receive, send: Send, parts: list[str]
    ) -> None:
        call, subject = _find(parts, scope["method"] in READS)
        _check_method(scope, call.method)
        scope["state"]["call"] = call.name
        headers = dict(reversed(scope["headers"]))
        asks = call.method == "GET"
        sent = _query(call, scope["query_string"]) if asks else await _read(receive, headers)
        if isinstance(sent, bytes):
            scope["state"]["check_body"](sent)
        arguments = _arguments(call, sent, subject)
        who: Who = scope["state"]["who"]
        if call.name == "db.sql":
            _check_sql(who, arguments)
        store: Corral = scope["state"]["store"]
        key = None
        if call.method == "POST" and call.name not in NEVER_KEPT:
            key = _key(headers, who, scope["path"], sent)

        def allowed() -> dict[str, Any]:
            given = _with_records(call, store, arguments)
            if who.agent is not None:
                agent_permissions.check(store, who, call, given)
            return given

        taken: list[str] = []

        def work() -> bytes:
            given = allowed()
            room = getattr(store, call.attribute)
            with store.telling(taken.extend):
                if key is not None:
                    unless = NOTHING if call.name in WAITS else None
                    return once(room, call.verb, given, key=key, encode=_encode, unless=unless)
                return _encode(getattr(room, call.verb)(**given))

        if call.name in WAITS:
            await self.run(allowed)  # else its refusal would be taken for one of "not over yet"
            body = await self._wait(call, arguments, work, receive)
        else:
            body = await self.run(work, slow=call.name in SLOW)
        await answer(send, body, taken=taken)

    async def run(self, work: Callable[[], T], *, slow: bool = False) -> T:
        """Run it on a thread; those that take their time have threads of their own."""
        limiter = self._patient if slow else self._quick
        if slow and limiter.borrowed_tokens >= PATIENT:
            raise Problem(
                429,
                "too_many",
                f"{PATIENT} calls are waiting already; try again in a moment.",
                headers=retry_after(1),
            )
        return await to_thread.run_sync(work, limiter=limiter)

    async def _wait(
        self,
        call: Call,
        arguments: dict[str, Any],
        work: Callable[[], bytes],
        receive: Receive,
    ) -> bytes:
        """Wait in short pieces, so that a server that ends, or a caller who has gone, is noticed:
        nothing is claimed for somebody who cannot be told."""
        name = WAITS[call.name]
        asked = arguments.get(name, LONGEST_WAIT_MS if name == "timeout_ms" else 0)
        left = min(LONGEST_WAIT_MS if asked is None else int(asked), LONGEST_WAIT_MS)
        ends = time.monotonic() + left / 1_000
        gone = Gone(receive)
        try:
            while True:
                left = round((ends - time.monotonic()) * 1_000)
                arguments[name] = max(0, min(left, SLICE_MS))
                last = left <= SLICE_MS or self.stopping
                try:
                    body = await self.run(work, slow=asked != 0)
                    if body != NOTHING or last:
                        return body
                except Refused:  # it is not over yet
                    if last:
                        raise
                if gone.gone:
                    raise Problem(400, "invalid", "The caller has gone.")
        finally:
            gone.close()


def _check_sql(who: Who, arguments: dict[str, Any]) -> None:
    """Functions of the server (end a connection, read a file) are no reading, whatever statement
    they stand in. And a thread is not to be kept for longer by anybody's question."""
    if not who.may_write:
        raise Refused(f"The token {who.name} may only read; SQL needs one of full scope.")
    asked = arguments.get("timeout_ms", LONGEST_WAIT_MS)
    arguments["timeout_ms"] = min(asked, LONGEST_WAIT_MS)


class Gone:
    """Notices that a caller hangs up while it is being worked for."""

    def __init__(self, receive: Receive) -> None:
        import asyncio

        self.gone = False
        self._task = asyncio.ensure_future(self._watch(receive))

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.gone = True

    def close(self) -> None:
        self._task.cancel()


async def answer(
    send: Send,
    body: bytes,
    *,
    kind: tuple[bytes, bytes] = JSON,
    status: int = 200,
    taken: Iterable[str] = (),
) -> None:
    """`taken` is what secrets were taken out of, for the caller to know."""
    headers = [kind, (b"content-length", str(len(body)).encode())]
    if taken:
        headers.append((REDACTED.encode(), " ".join(dict.fromkeys(taken)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def about(store: Corral, who: Who) -> dict[str, Any]:
    """What a client wants to know first."""
    return {
        "version": __version__,
        "schema_version": store.db.schema_version(),
        "engine": store.db.engine,
        "now": store.now(),
        "token": {"id": who.id, "name": who.name, "scope": who.scope},
    }


def _split(path: str) -> list[str]:
    """The parts of a path below /api; an id may hold anything, spelled by percent."""
    try:
        below = path.removeprefix("/api").strip("/")
        return [unquote(part, errors="strict") for part in below.split("/")] if below else []
    except UnicodeDecodeError:
        raise Invalid("The path is not valid UTF-8; encode it by percent.") from None


def _shape(parts: list[str]) -> str:
    """The name under which a path that is no operation is known: `events`, `runs/*/output`."""
    if len(parts) == 3:
        return f"{parts[0]}/*/{parts[2]}"
    return "/".join(parts)


def _find(parts: list[str], asks: bool) -> tuple[Call, str | None]:
    """The call that a path names, and the subject in it."""
    call: Call | None = None
    subject: str | None = None
    match parts:
        case [attribute]:
            call = call_of(attribute, "list")
        case [attribute, verb]:
            call = call_of(attribute, verb)
            if call is None and asks and f"{attribute}.{verb}" not in LOCAL:
                call, subject = call_of(attribute, "get"), verb
        case [attribute, subject, verb]:
            call = call_of(attribute, verb)
            if call is not None and call.subject is None:
                call = None
    if call is None:
        raise _nothing_there(parts)
    return call, subject


def _nothing_there(parts: list[str]) -> NotFound:
    name = f"{parts[0]}.{parts[-1]}" if len(parts) > 1 else ""
    if name in LOCAL:
        return NotFound(
            f"{name} can only be called where the store is: {LOCAL[name]}.",
            call=name,
            reason="local_only",
        )
    if name in STREAMS:
        return NotFound(f"{name} is {STREAMS[name]} here.", call=name)
    hint = "GET /api/docs lists what there is"
    if parts and parts[0] not in attributes():
        from difflib import get_close_matches

        near = get_close_matches(parts[0], attributes(), 1)
        hint = f"did you mean {near[0]}?" if near else hint
    return NotFound(f"There is no operation at /api/{'/'.join(parts)}; {hint}.", parts=parts)


def _check_method(scope: Scope, method: str) -> None:
    given = scope["method"]
    if given != method and not (method == "GET" and given == "HEAD"):
        raise Problem(
            405,
            "invalid",
            f"{scope['path']} is called by {method}, not by {given}.",
            headers={"allow": method},
        )


def _query(call: Call, query: bytes) -> dict[str, Any]:
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict")
    except (UnicodeDecodeError, ValueError):
        raise Invalid("The query of the URL is not valid UTF-8; encode it by percent.") from None
    many = {field.name for field in call.fields if field.is_list}
    given: dict[str, Any] = {  # a list that is not there at all is empty
        field.name: [] for field in call.fields if field.is_list and field.required
    }
    for name, value in pairs:
        if name in many:
            given.setdefault(name, []).append(value)
            continue
        if name in given:
            raise Invalid(f"{name} is given twice; give it once.", field=name)
        given[name] = value
    return given


async def _read(receive: Receive, headers: dict[bytes, bytes]) -> bytes:
    """The body, which must be JSON if it is anything."""
    kind = headers.get(b"content-type", b"application/json").partition(b";")[0].strip().lower()
    if kind != b"application/json":
        raise Problem(415, "invalid", "A body is JSON here; send `Content-Type: application/json`.")
    pieces = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Problem(400, "invalid", "The body ended before it was whole.")
        pieces.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(pieces)


def _arguments(call: Call, sent: dict[str, Any] | bytes, subject: str | None) -> dict[str, Any]:
    """What the operation is called with; Invalid says what is wrong with what was sent."""
    try:
        given: Any = sent
        if isinstance(sent, bytes):
            given = msgspec.json.decode(sent) if sent.strip() else {}
            if not isinstance(given, dict):
                raise Invalid(f"What {call.name} takes is a JSON object; send {{…}}.")
        if subject is not None:
            assert call.subject is not None
            if given.get(call.subject, subject) != subject:
                raise Invalid(f"{call.subject} stands in the path and differs in the body.")
            given[call.subject] = subject
        decoded = msgspec.convert(given, call.arguments, strict=isinstance(sent, bytes))
    except msgspec.MsgspecError as error:
        raise Invalid(
            f"{call.name} cannot be called like that: {error}; see /api/docs.", call=call.name
        ) from None
    except (RecursionError, UnicodeDecodeError):
        raise Invalid("The body is no JSON that can be understood; flatten it.") from None
    found = {}
    for field in call.fields:
        value = getattr(decoded, field.name)
        if value is not msgspec.UNSET:
            found[field.name] = value
            if isinstance(value, str) and "\0" in value:
                raise Invalid(f"{field.name} holds a NUL byte; remove it.", field=field.name)
    return found


def _with_records(call: Call, store: Corral, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments with the records, as the store knows them, in the place of their ids."""
    given = dict(arguments)
    for field in call.fields:
        if field.record is not None and field.name in given:
            given[field.name] = getattr(store, call.attribute).get(given[field.name])
    place = PLACES.get(call.name, "")
    if given.get(place) is not None and not os.path.isabs(given[place]):
        given[place] = store.projects.get(given[place]).id
    if call.name in WISHES:
        given["afar"] = True
    return given


def _key(
    headers: dict[bytes, bytes], who: Who, path: str, sent: dict[str, Any] | bytes
) -> Key | None:
    given = headers.get(b"idempotency-key")
    if given is None:
        return None
    assert isinstance(sent, bytes)
    asked = hashlib.sha256(path.encode() + b"\0" + sent).hexdigest()
    return Key(who.id, given.decode("latin-1"), asked)
