"""The API: a request becomes one call of the library on a thread, and its result becomes JSON."""

import asyncio
import hashlib
import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec
from anyio import CapacityLimiter, to_thread

from corral.adapters.http_client import REDACTED_HEADER
from corral.api import Corral
from corral.api.catalog import find_declaration, resource_names
from corral.api.idempotency import IdempotencyKey, call_with_key
from corral.api.policy import OperationPolicy
from corral.api.remote_table import MAX_WAIT_MS, RemoteCall, find_call
from corral.asgi import READ_METHODS, IncompleteBody, Receive, Scope, Send, read_body
from corral.http import agent_permissions
from corral.http.errors import JSON, ApiError
from corral.http.middleware.rate_limits import retry_after
from corral.kernel.errors import Invalid, NotFound, NotYet, Refused
from corral.services.tokens import TokenIdentity

T = TypeVar("T")

FAST_THREADS = 32
SLOW_THREADS = 64  # for operations that wait or may take seconds
POLL_MS = 1_000  # a waiting call checks this often whether its client is still connected

EMPTY_LIST = b"[]"  # the response of a wait that ended without a result
_encode = msgspec.json.Encoder(enc_hook=str).encode


class ApiRouter:
    """The ASGI app of the operations, below /api.

    It finds an operation by one lookup. Starlette's router would compare a path with 300 regular
    expressions, and would need the modules of all operations at start.
    """

    def __init__(self) -> None:
        self._fast = CapacityLimiter(FAST_THREADS)
        self._slow = CapacityLimiter(SLOW_THREADS)
        self.is_stopping = False
        """Set when the server stops: waiting calls return within POLL_MS."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["raw_path"].decode("latin-1").partition("?")[0]
        request = await _decode_request(scope, receive, _split_path(path))
        _require_full_scope(request)
        redacted: list[str] = []
        perform = partial(_perform, request, redacted)
        policy = request.call.policy
        if policy.waits is not None:
            body = await self._wait(request, policy.waits, perform, receive)
        else:
            body = await self.run_in_thread(perform, slow=policy.slow)
        await send_response(send, body, redacted=redacted)

    async def run_in_thread(self, work: Callable[[], T], *, slow: bool = False) -> T:
        """Run `work` on a thread.

        Slow work has threads of its own; raises ApiError 429 when all of them are busy.
        """
        limiter = self._slow if slow else self._fast
        if slow and limiter.borrowed_tokens >= SLOW_THREADS:
            raise ApiError(
                429,
                "too_many",
                f"{SLOW_THREADS} slow or waiting calls are in progress. Try again in a moment.",
                headers=retry_after(1),
            )
        return await to_thread.run_sync(work, limiter=limiter)

    async def _wait(
        self,
        request: "DecodedCall",
        name: str,
        perform: Callable[[], bytes],
        receive: Receive,
    ) -> bytes:
        """Perform a waiting operation in slices of POLL_MS. `name` is the argument with the time.

        Between slices it checks for a shutdown and for a disconnected client: nothing may be
        claimed for a client that cannot receive it. `wait_until` in `services/wait.py` is the wait
        within a slice.
        """
        arguments = request.arguments
        default = next(field.default for field in request.call.fields if field.name == name)
        requested = arguments.get(name, default)
        wait_ms = min(MAX_WAIT_MS if requested is None else int(requested), MAX_WAIT_MS)
        deadline = time.monotonic() + wait_ms / 1_000
        client = DisconnectWatcher(receive)
        try:
            while True:
                remaining_ms = round((deadline - time.monotonic()) * 1_000)
                arguments[name] = max(0, min(remaining_ms, POLL_MS))
                is_last = remaining_ms <= POLL_MS or self.is_stopping
                try:
                    body = await self.run_in_thread(perform, slow=requested != 0)
                    if body != EMPTY_LIST or is_last:
                        return body
                except NotYet:
                    if is_last:
                        raise
                if client.is_gone:
                    raise ApiError(400, "invalid", "The client disconnected.")
        finally:
            client.close()


class DisconnectWatcher:
    """Detects that the client disconnects while its request is in progress."""

    def __init__(self, receive: Receive) -> None:
        self.is_gone = False
        self._task = asyncio.ensure_future(self._watch(receive))

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.is_gone = True

    def close(self) -> None:
        self._task.cancel()


async def send_response(
    send: Send,
    body: bytes,
    *,
    redacted: Iterable[str] = (),
) -> None:
    """Send a JSON response; `redacted` names the fields from which secrets were removed."""
    headers = [JSON, (b"content-length", str(len(body)).encode())]
    if redacted:
        headers.append((REDACTED_HEADER.encode(), " ".join(dict.fromkeys(redacted)).encode()))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


# -- one call ----------------------------------------------------------------------------------


class DecodedCall(NamedTuple):
    """A request after decoding: the operation, its arguments and the caller."""

    call: RemoteCall
    arguments: dict[str, Any]
    """The arguments as they were sent: records are ids, and nothing is authorized."""
    store: Corral
    who: TokenIdentity
    key: IdempotencyKey | None


async def _decode_request(scope: Scope, receive: Receive, parts: list[str]) -> DecodedCall:
    """Read a request; raises ApiError, NotFound or Invalid when it names no valid call."""
    call, subject = _resolve(parts, scope["method"] in READ_METHODS)
    _check_method(scope, call.method)
    scope["state"]["route_name"] = call.name
    who: TokenIdentity = scope["state"]["who"]
    if who.agent is not None:
        # Before any record is looked up: a 404 would tell an agent which ids exist.
        agent_permissions.require_rule(call)
    headers = dict(reversed(scope["headers"]))
    payload: dict[str, Any] | bytes
    if call.method == "GET":
        payload = _parse_query(call, scope["query_string"])
    else:
        payload = await _read_json_body(receive, headers)
        scope["state"]["check_body"](payload)
    arguments = _decode_arguments(call, payload, subject)
    if (limit := call.policy.time_limit) is not None:
        arguments[limit] = min(arguments.get(limit, MAX_WAIT_MS), MAX_WAIT_MS)
    key = None
    if call.method == "POST" and not call.policy.returns_secret:
        key = _read_idempotency_key(headers, who, scope["path"], payload)
    return DecodedCall(call, arguments, scope["state"]["store"], who, key)


def _require_full_scope(request: DecodedCall) -> None:
    """Raise Refused if the operation needs a token with full scope and this one is read-only."""
    call, who = request.call, request.who
    if call.policy.needs_full_scope and not who.may_write:
        raise Refused(
            f"Token {who.name} is read-only. {call.name} requires a token with full scope.",
            call=call.name,
        )


def _authorize(request: DecodedCall) -> dict[str, Any]:
    """Return the arguments that the caller may use; raises Refused if the call is not allowed."""
    resolved = _resolve_records(request.call, request.store, request.arguments)
    if request.who.agent is not None:
        agent_permissions.check_agent_call(request.store, request.who, request.call, resolved)
    return resolved


def _perform(request: DecodedCall, redacted: list[str]) -> bytes:
    """Authorize and call the operation; returns its JSON result.

    Adds the names of fields from which secrets were removed to `redacted`.
    """
    call, key = request.call, request.key
    arguments = _authorize(request)
    resource = getattr(request.store, call.resource_name)
    with request.store.report_redactions(redacted.extend):
        if key is None:
            return _encode(getattr(resource, call.verb)(**arguments))
        unless = EMPTY_LIST if call.policy.waits is not None else None
        return call_with_key(resource, call.verb, arguments, key=key, encode=_encode, unless=unless)


# -- routing -----------------------------------------------------------------------------------


def _split_path(path: str) -> list[str]:
    """Return the decoded segments of a path below /api. An id may contain an encoded slash."""
    try:
        below = path.removeprefix("/api").strip("/")
        return [unquote(part, errors="strict") for part in below.split("/")] if below else []
    except UnicodeDecodeError:
        raise Invalid("The path is not valid UTF-8. Percent-encode it.") from None


def _resolve(parts: list[str], is_read: bool) -> tuple[RemoteCall, str | None]:
    """Return the operation that a path names, and the subject in the path."""
    call: RemoteCall | None = None
    subject: str | None = None
    match parts:
        case [resource]:
            call = find_call(resource, "list")
        case [resource, verb]:
            call = find_call(resource, verb)
            if call is None and is_read and _find_policy(resource, verb).local is None:
                call, subject = find_call(resource, "get"), verb
        case [resource, subject, verb]:
            call = find_call(resource, verb)
            if call is not None and call.subject is None:
                call = None
    if call is None:
        raise _not_found_error(parts)
    return call, subject


def _find_policy(resource_name: str, verb: str) -> OperationPolicy:
    """Return the policy of an operation; that of an unknown operation has no property."""
    declaration = find_declaration(resource_name, verb)
    return OperationPolicy() if declaration is None else declaration.policy


def _not_found_error(parts: list[str]) -> NotFound:
    if len(parts) > 1:
        policy, name = _find_policy(parts[0], parts[-1]), f"{parts[0]}.{parts[-1]}"
        if policy.local is not None:
            return NotFound(
                f"{name} is not available over HTTP: {policy.local}.",
                call=name,
                reason="local_only",
            )
        if policy.streamed is not None:
            return NotFound(f"{name} has no request of its own. Use {policy.streamed}.", call=name)
    hint = "GET /api/docs lists all operations."
    if parts and parts[0] not in resource_names():
        from difflib import get_close_matches

        matches = get_close_matches(parts[0], resource_names(), 1)
        hint = f"Did you mean {matches[0]}?" if matches else hint
    return NotFound(f"No operation at /api/{'/'.join(parts)}. {hint}", parts=parts)


def _check_method(scope: Scope, method: str) -> None:
    actual = scope["method"]
    if actual != method and not (method == "GET" and actual == "HEAD"):
        raise ApiError(
            405,
            "invalid",
            f"{scope['path']} requires {method}, not {actual}.",
            headers={"allow": method},
        )


# -- arguments ---------------------------------------------------------------------------------


def _parse_query(call: RemoteCall, query: bytes) -> dict[str, Any]:
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict")
    except (UnicodeDecodeError, ValueError):
        raise Invalid("The query string is not valid UTF-8. Percent-encode it.") from None
    list_names = {field.name for field in call.fields if field.is_list}
    values: dict[str, Any] = {  # a query string cannot express an empty list: absent means empty
        field.name: [] for field in call.fields if field.is_list and field.required
    }
    for name, value in pairs:
        if name in list_names:
            values.setdefault(name, []).append(value)
            continue
        if name in values:
            raise Invalid(f"{name} is given twice. Give it once.", field=name)
        values[name] = value
    return values


async def _read_json_body(receive: Receive, headers: dict[bytes, bytes]) -> bytes:
    """Read the body; raises ApiError 415 unless its content type is JSON."""
    content_type = headers.get(b"content-type", b"application/json")
    if content_type.partition(b";")[0].strip().lower() != b"application/json":
        raise ApiError(
            415, "invalid", "The body must be JSON. Send `Content-Type: application/json`."
        )
    try:
        return await read_body(receive)
    except IncompleteBody:
        raise ApiError(400, "invalid", "The request body is incomplete.") from None


def _decode_arguments(
    call: RemoteCall, payload: dict[str, Any] | bytes, subject: str | None
) -> dict[str, Any]:
    """Return the arguments of the operation; raises Invalid when they do not fit its types."""
    try:
        values: Any = payload
        if isinstance(payload, bytes):
            values = msgspec.json.decode(payload) if payload.strip() else {}
            if not isinstance(values, dict):
                raise Invalid(f"{call.name} requires a JSON object as its body.")
        if subject is not None:
            assert call.subject is not None
            if values.get(call.subject, subject) != subject:
                raise Invalid(f"{call.subject} differs between the path and the arguments.")
            values[call.subject] = subject
        decoded = msgspec.convert(values, call.arguments, strict=isinstance(payload, bytes))
    except msgspec.MsgspecError as error:
        raise Invalid(
            f"Invalid arguments for {call.name}: {error}. See /api/docs.", call=call.name
        ) from None
    except (RecursionError, UnicodeDecodeError):
        raise Invalid("The request body is not valid JSON or is nested too deeply.") from None
    arguments = {}
    for field in call.fields:
        value = getattr(decoded, field.name)
        if value is not msgspec.UNSET:
            arguments[field.name] = value
            if isinstance(value, str) and "\0" in value:
                raise Invalid(f"{field.name} contains a NUL byte. Remove it.", field=field.name)
    return arguments


def _resolve_records(call: RemoteCall, store: Corral, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with ids replaced by the records that the operation takes."""
    resolved = dict(arguments)
    for field in call.fields:
        if field.record is not None and field.name in resolved:
            resolved[field.name] = getattr(store, call.resource_name).get(resolved[field.name])
    if (location := call.policy.location) is not None:
        project = resolved.get(location.argument)
        if project is not None and not os.path.isabs(project):
            resolved[location.argument] = store.projects.get(project).id
    return {**resolved, **call.policy.server_arguments}


def _read_idempotency_key(
    headers: dict[bytes, bytes], who: TokenIdentity, path: str, payload: dict[str, Any] | bytes
) -> IdempotencyKey | None:
    key = headers.get(b"idempotency-key")
    if key is None:
        return None
    assert isinstance(payload, bytes)
    fingerprint = hashlib.sha256(path.encode() + b"\0" + payload).hexdigest()
    return IdempotencyKey(who.key_namespace, key.decode("latin-1"), fingerprint)
