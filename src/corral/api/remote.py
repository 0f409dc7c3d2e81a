"""The HTTP client: `corral.open("http://…", token=…)` has the same interface as a local store.

Every call is one request to a daemon. Methods are generated from the same table as the daemon's
routes, and return the same records and errors. A write that is not repeatable gets an idempotency
key, so that it can be retried safely when the response was lost.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NoReturn
from urllib.parse import quote, urlencode

import msgspec

from corral.adapters.http_client import DaemonClient, HttpResponse
from corral.adapters.output.sealed_file import OutputChunk
from corral.adapters.output.sealed_format import Data
from corral.api import Corral, T
from corral.api.catalog import find_declaration, resource_names
from corral.api.operation import Operation, find_policy
from corral.api.remote_table import MAX_WAIT_MS, RemoteCall, find_call
from corral.db.database import RedactionCallback
from corral.db.tx import Tx
from corral.db.types import Listener
from corral.domain.events.model import Event
from corral.domain.runs.model import Run, RunState
from corral.kernel.clock import SystemClock
from corral.kernel.errors import NotYet, Refused
from corral.kernel.unset import UNSET

POLL_SECONDS = 0.2
MAX_READ_BYTES = 1024 * 1024


class RemoteCorral(Corral):
    """A store that a daemon serves over HTTP. It may be shared between threads."""

    def __init__(self, url: str, token: str) -> None:
        self._client = DaemonClient(url, token)
        try:
            self._server_info = msgspec.json.decode(self._client.request("GET", "/api").body)
        except BaseException:
            self._client.close()
            raise
        self._clock_offset_ms = self._server_info["now"] - SystemClock().now()
        for attribute in resource_names():
            # Found before the descriptor of that name, which would need a database.
            self.__dict__[attribute] = RESOURCE_CLASSES.get(attribute, RemoteResource)(
                attribute, self._client, self._server_info
            )

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
        previous, self._client.on_redaction = self._client.on_redaction, callback
        try:
            yield
        finally:
            self._client.on_redaction = previous

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


class RemoteResource:
    """The operations of one noun, as HTTP requests."""

    def __init__(self, attribute: str, client: DaemonClient, server_info: dict[str, Any]) -> None:
        self._attribute = attribute
        self._client = client
        self._server_info = server_info

    def __getattr__(self, verb: str) -> Any:
        call = find_call(self._attribute, verb)
        if call is None:
            self._refuse(verb)
        method = self._method(call)
        if call.policy.waits is not None:
            method = repeat_until_result(call.policy.waits, method)
        self.__dict__[verb] = method  # cached: the next access skips __getattr__
        return method

    def _refuse(self, verb: str) -> NoReturn:
        name = f"{self._attribute}.{verb}"
        policy = find_policy(find_declaration(self._attribute, verb))
        if policy is not None and policy.local is not None:
            raise Refused(
                f"{name} is not available over HTTP: {policy.local}.", reason="local_only"
            )
        raise AttributeError(name)

    def _method(self, call: RemoteCall) -> Callable[..., Any]:
        decode = msgspec.json.Decoder(call.result, dec_hook=_decode_custom).decode
        client, repeatable = self._client, _is_repeatable(call)

        def method(*args: Any, **kwargs: Any) -> Any:
            sent = _encode_arguments(call, args, kwargs)
            path = f"/api{call.path}"
            if call.subject is not None:
                subject = str(sent.pop(call.subject))
                if subject in ("", ".", ".."):
                    path = f"/api/{call.resource_name}/{call.verb}"
                    sent[call.subject] = subject
                else:
                    path = path.replace(f"{{{call.subject}}}", quote(subject, safe=""))
            if call.method == "GET":
                return decode(client.request("GET", path + _query(sent)).body)
            retryable = repeatable or bool(sent.get("key"))
            return decode(
                client.request("POST", path, msgspec.json.encode(sent), retryable=retryable).body
            )

        method.__name__ = method.__qualname__ = call.verb
        method.__doc__ = call.help
        return method


class RemoteDb(RemoteResource):
    """`store.db` over HTTP."""

    path = None

    @property
    def url(self) -> str:
        return self._client.url

    @property
    def engine(self) -> str:
        return str(self._server_info["engine"])


class RemoteEvents(RemoteResource):
    """`store.events` over HTTP."""

    def follow(
        self,
        after: str | None = None,
        *,
        subject: str | None = None,
        project: str | None = None,
        timeout_ms: int | None = None,
        is_finished: Callable[[], bool] | None = None,
    ) -> Iterator[Event]:
        """Yield every event after a cursor, as it happens; without a cursor, from now on."""
        cursor = after or self.newest(limit=1).next or "0-0"
        wanted = {"subject": subject, "project": project}
        query = {name: value for name, value in wanted.items() if value is not None}
        decode = msgspec.json.Decoder(Event).decode
        for frame in self._client.stream(
            "/api/events" + _query(query),
            last=cursor,
            timeout_ms=timeout_ms,
            is_finished=is_finished,
        ):
            yield decode(frame)


class RemoteOutput:
    """A reader of a run's output, which is fetched in pieces."""

    def __init__(self, client: DaemonClient, run_id: str, stream: str) -> None:
        self._client = client
        self._path = f"/api/runs/{quote(run_id, safe='')}/output"
        self._stream = stream

    @property
    def size(self) -> int:
        return int(self._request(limit=1).headers["x-size"])

    def lines(self, start: int, count: int) -> list[Data]:
        return _split(self._request(line=start, count=count).body)

    def tail(self, count: int) -> list[Data]:
        return _split(self._request(tail=count).body)

    def bytes(self, offset: int, length: int) -> Data:
        data = b""
        while len(data) < length:
            part = self._request(offset=offset, limit=min(length - len(data), MAX_READ_BYTES))
            if not part.body:
                break
            data += part.body
            offset = int(part.headers["x-next-offset"])
        return data[:length]

    def follow(
        self,
        offset: int = 0,
        *,
        is_finished: Callable[[], bool],
        wait: Callable[[float], object] = time.sleep,
    ) -> Iterator[OutputChunk]:
        """Yield text from `offset` on, as it is written, until `is_finished()` is true."""
        while True:
            ended = is_finished()  # before the read, so that text written before the end is read
            part = self._request(offset=offset, limit=MAX_READ_BYTES)
            if part.body:
                offset = int(part.headers["x-next-offset"])
                yield OutputChunk(offset, part.body)
            elif ended or part.headers["x-more"] == "false":
                return
            else:
                wait(POLL_SECONDS)

    def _request(self, **range_arguments: int) -> HttpResponse:
        return self._client.request(
            "GET", self._path + _query({"stream": self._stream, **range_arguments})
        )


def _split(body: bytes) -> list[bytes]:
    return body.split(b"\n") if body else []


class RemoteOutputs(RemoteResource):
    """`store.outputs` over HTTP."""

    def open(self, run_id: str, *, stream: str = "output") -> RemoteOutput:
        """Return a reader of a run's output, while the run writes it or after it was sealed."""
        text = RemoteOutput(self._client, run_id, stream)
        _ = text.size  # raises NotFound or Refused now
        return text

    def follow(
        self,
        run_id: str,
        *,
        stream: str = "output",
        offset: int = 0,
        is_finished: Callable[[], bool] | None = None,
    ) -> Iterator[OutputChunk]:
        """Yield text from `offset` on, as it is written, until `is_finished()` is true."""
        return self.open(run_id, stream=stream).follow(
            offset, is_finished=is_finished or (lambda: True)
        )


class RemoteRuns(RemoteResource):
    """`store.runs` over HTTP."""

    def wait_for_start(self, id: str, *, given_up: Callable[[], bool] | None = None) -> Run:
        """Wait until a supervisor has taken a queued run, or `given_up()` is true."""
        while True:
            run: Run = self.get(id)
            if run.state is not RunState.QUEUED or (given_up is not None and given_up()):
                return run
            time.sleep(POLL_SECONDS)


RESOURCE_CLASSES: dict[str, type[RemoteResource]] = {
    "db": RemoteDb,
    "events": RemoteEvents,
    "outputs": RemoteOutputs,
    "runs": RemoteRuns,
}


def repeat_until_result(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    """Repeat a bounded request until it has a result or the caller's own time is over.

    `name` is the argument with that time.
    """

    def wait(*args: Any, **kwargs: Any) -> Any:
        asked = kwargs.get(name, None if name == "timeout_ms" else 0)
        ends = None if asked is None else time.monotonic() + asked / 1_000
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


def _encode_arguments(
    call: RemoteCall, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments as JSON values: records by their ids, with their fence."""
    if len(args) > len(call.positional):
        raise TypeError(f"{call.name} takes {len(call.positional)} arguments by position")
    given = dict(zip(call.positional, args, strict=False)) | kwargs
    if given.pop("claimed", False):
        raise Refused(
            "A run in the foreground cannot be started over HTTP. Run the command on the machine "
            "of the store, or start it from the dashboard.",
            reason="local_only",
        )
    known = {field.name: field for field in call.fields}
    sent: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise TypeError(f"{call.name} has no argument {name!r}")
        if value is UNSET:
            continue
        if isinstance(value, msgspec.Struct) and hasattr(value, "id"):
            if "fence" in known and given.get("fence") is None and hasattr(value, "fence"):
                sent["fence"] = value.fence
            value = value.id
        sent[name] = os.path.abspath(value) if name == "dir" and value is not None else value
    missing = [field.name for field in call.fields if field.required and field.name not in sent]
    if missing:
        raise TypeError(f"{call.name} needs {', '.join(missing)}")
    return sent


def _is_repeatable(call: RemoteCall) -> bool:
    """Return whether a call may be retried without an idempotency key."""
    operation = find_declaration(call.resource_name, call.verb)
    return isinstance(operation, Operation) and operation.repeatable


def _query(given: dict[str, Any]) -> str:
    pairs = [
        (name, str(item).lower() if isinstance(item, bool) else str(item))
        for name, value in given.items()
        if value is not None
        for item in (value if isinstance(value, list | tuple | set | frozenset) else [value])
    ]
    return f"?{urlencode(pairs)}" if pairs else ""


def _decode_custom(kind: type[Any], value: Any) -> Any:
    return kind(value)
