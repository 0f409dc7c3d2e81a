"""The HTTP client: `corral.open("http://…", token=…)` has the same interface as a local store.

Every call is one request to a daemon, and returns the same records and errors. How an operation
becomes a request is derived from its declaration, as the daemon's routes are. A write that is not
repeatable gets an idempotency key, so that it can be retried safely when the response was lost.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import MethodType
from typing import Any, NoReturn, ParamSpec, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from corral import config
from corral.adapters.http_client import DaemonClient
from corral.api import Corral, T
from corral.api.executor import Executor
from corral.api.operation import Operation, Resource
from corral.api.remote_table import MAX_WAIT_MS, RemoteCall, find_call, is_verb
from corral.db.database import RedactionCallback
from corral.db.tx import Tx
from corral.db.types import Listener
from corral.kernel.clock import SystemClock
from corral.kernel.errors import NotYet, Refused
from corral.kernel.unset import UNSET

P = ParamSpec("P")
R = TypeVar("R")


class RemoteCorral(Corral):
    """A store that a daemon serves over HTTP. It may be shared between threads."""

    def __init__(self, url: str, token: str) -> None:
        self._client = DaemonClient(url, token)
        try:
            server_info = msgspec.json.decode(self._client.request("GET", "/api").body)
        except BaseException:
            self._client.close()
            raise
        self._clock_offset_ms = server_info["now"] - SystemClock().now()
        self._executor: Any = HttpExecutor(self._client, server_info["engine"])

    @property
    def _database(self) -> Any:  # type: ignore[override]
        """Raise Refused: what needs the database needs the machine of the store."""
        return self._executor.database

    @property
    def internal(self) -> NoReturn:
        raise Refused(
            "Internal operations are not available over HTTP: they are for supervisors and the "
            "daemon.",
            reason="local_only",
        )

    def as_actor(self, actor: str, run_id: str | None = None) -> Corral:
        raise Refused("The token determines the actor. Open the store with another token.")

    def transaction(self) -> AbstractContextManager[Tx]:
        raise Refused(
            "Transactions are not available over HTTP. Call single operations.", reason="local_only"
        )

    def release_connections_early(self) -> None:
        """Do nothing: the daemon holds the connections to the server."""

    def listening(self) -> AbstractContextManager[Listener]:
        raise Refused(
            "Wake-ups are not available over HTTP. Use events.follow.", reason="local_only"
        )

    @contextmanager
    def report_redactions(self, callback: RedactionCallback) -> Iterator[None]:
        thread = self._client.thread
        previous, thread.on_redaction = thread.on_redaction, callback
        try:
            yield
        finally:
            thread.on_redaction = previous

    def redact_known_values_only(self) -> None:
        raise Refused(
            "Redaction cannot be turned off over HTTP. Use the store directly.", reason="local_only"
        )

    def write_timeout(self, seconds: float) -> AbstractContextManager[None]:
        return nullcontext()  # the daemon limits its waits

    def try_write_before_read(
        self, name: str, work: Callable[[], T], *, seconds: float = 1.0
    ) -> T | None:
        return work()  # the daemon limits the time

    def run_of_peer(self, client: tuple[str, int], port: int) -> NoReturn:
        raise Refused("Processes can be identified only on the machine of the store.")

    @property
    def address(self) -> str:
        return self._client.url

    def now(self) -> int:
        """Return the time of the store, by the clock offset measured when it was opened."""
        return SystemClock().now() + int(self._clock_offset_ms)

    def close(self) -> None:
        self._client.close()


class HttpExecutor(Executor):
    """Performs operations as HTTP requests."""

    path = None

    def __init__(self, client: DaemonClient, engine: str) -> None:
        self.caller = config.identify_caller(os.environ)
        self.client = client
        self._engine = engine

    @property
    def database(self) -> NoReturn:
        raise Refused(
            "The database is not available over HTTP. Call operations of the store.",
            reason="local_only",
        )

    @property
    def url(self) -> str:
        return self.client.url

    @property
    def engine(self) -> str:
        return self._engine

    def bind(self, resource: Resource, operation: Operation[P, R]) -> Callable[P, R]:
        name, policy = f"{resource._attribute}.{operation.name}", operation.policy
        if policy.remote is not None:
            return MethodType(policy.remote, resource)
        if policy.local is not None:
            raise Refused(
                f"{name} is not available over HTTP: {policy.local}.", reason="local_only"
            )
        call = find_call(resource._attribute, operation.name)
        if call is None:
            raise AttributeError(name)
        method: Callable[..., R] = _make_request(self.client, operation, call)
        if policy.waits is not None:
            default = next(field.default for field in call.fields if field.name == policy.waits)
            method = repeat_until_result(policy.waits, method, default=default)
        return operation.describe(method)


def get_client(resource: Resource) -> DaemonClient:
    """Return the HTTP client of a resource of a remote store."""
    executor = resource._executor
    assert isinstance(executor, HttpExecutor)
    return executor.client


def _make_request(
    client: DaemonClient, operation: Operation[..., R], call: RemoteCall
) -> Callable[..., R]:
    """Return a function that performs an operation by one request."""
    decode = msgspec.json.Decoder(call.result, dec_hook=_decode_custom).decode
    repeatable = operation.repeatable

    def request(*args: Any, **kwargs: Any) -> Any:
        sent = _encode_arguments(call, operation.bind_arguments(args, kwargs))
        path = f"/api{call.path}"
        if call.subject is not None:
            subject = str(sent.pop(call.subject))
            # A path has no such segment, or the server would read the subject as a verb.
            if subject in ("", ".", "..") or (
                call.verb == "get" and is_verb(call.resource_name, subject)
            ):
                path = f"/api/{call.resource_name}/{call.verb}"
                sent[call.subject] = subject
            else:
                path = path.replace(f"{{{call.subject}}}", quote(subject, safe=""))
        if call.method == "GET":
            return decode(client.request("GET", path + encode_query(sent)).body)
        retryable = repeatable or bool(sent.get("key"))
        return decode(
            client.request("POST", path, msgspec.json.encode(sent), retryable=retryable).body
        )

    return request


def repeat_until_result(
    name: str, method: Callable[..., Any], *, default: int | None
) -> Callable[..., Any]:
    """Repeat a bounded request until it has a result or the caller's own time is over.

    `name` is the argument with that time in milliseconds, or None for an unlimited wait.
    """

    def wait(*args: Any, **kwargs: Any) -> Any:
        wait_ms = kwargs.get(name, default)
        ends = None if wait_ms is None else time.monotonic() + wait_ms / 1_000
        while True:
            left = MAX_WAIT_MS if ends is None else round((ends - time.monotonic()) * 1_000)
            is_last_request = ends is not None and left <= MAX_WAIT_MS
            kwargs[name] = max(0, min(left, MAX_WAIT_MS))
            try:
                result = method(*args, **kwargs)
            except NotYet:
                if is_last_request:
                    raise
            else:
                if result or is_last_request:
                    return result

    return wait


def _encode_arguments(call: RemoteCall, given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments as JSON values: records by their ids, with their fence."""
    known = {field.name: field for field in call.fields}
    sent: dict[str, Any] = {}
    for name, value in given.items():
        if name in call.policy.local_arguments:
            _refuse_local_argument(call, name, value)
            continue
        if name not in known:
            raise TypeError(f"{call.name} has no argument {name!r}")
        if value is UNSET:
            continue
        if isinstance(value, msgspec.Struct) and hasattr(value, "id"):
            if "fence" in known and given.get("fence") is None and hasattr(value, "fence"):
                sent["fence"] = value.fence
            value = value.id
        is_path = name in call.policy.paths and value is not None
        sent[name] = os.path.abspath(value) if is_path else value
    missing = [field.name for field in call.fields if field.required and field.name not in sent]
    if missing:
        raise TypeError(f"{call.name} needs {', '.join(missing)}")
    return sent


def _refuse_local_argument(call: RemoteCall, name: str, value: object) -> None:
    """Raise Refused for an argument that HTTP cannot express, unless it has no effect."""
    if value:
        raise Refused(
            f"{name} of {call.name} is not available over HTTP: "
            f"{call.policy.local_arguments[name]}.",
            call=call.name,
            argument=name,
            reason="local_only",
        )


def encode_query(given: dict[str, Any]) -> str:
    """Return the query string of a request; arguments that are None are left out."""
    pairs = [
        (name, str(item).lower() if isinstance(item, bool) else str(item))
        for name, value in given.items()
        if value is not None
        for item in (value if isinstance(value, list | tuple | set | frozenset) else [value])
    ]
    return f"?{urlencode(pairs)}" if pairs else ""


def _decode_custom(kind: type[Any], value: Any) -> Any:
    return kind(value)
