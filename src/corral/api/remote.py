"""A store behind a URL: `corral.open("http://…", token=…)` has the library's own shape.

Every method is one request to a daemon that has the store open, made from the same table as the
daemon's routes; records and errors are the library's own. A write that must not be done twice goes
under a key of its own, so it is tried again safely when its answer was lost.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NoReturn
from urllib.parse import quote, urlencode

import msgspec

from corral.adapters.http_client import Told, Wire
from corral.adapters.output.frames import Data
from corral.adapters.output.sealed import Piece
from corral.api import Corral, T
from corral.api.operation import Operation
from corral.api.operations import attributes, room_of
from corral.api.remote_table import LOCAL, LONGEST_WAIT_MS, WAITS, Call, call_of
from corral.db.database import Listener, Tell
from corral.db.tx import Tx
from corral.domain.events.model import Event
from corral.domain.runs.model import Run, RunState
from corral.kernel.clock import SystemClock
from corral.kernel.errors import Refused
from corral.kernel.unset import KEEP

LOOK_SECONDS = 0.2
MOST_BYTES = 1024 * 1024


class Remote(Corral):
    """An open store that is elsewhere. It may be shared between threads."""

    def __init__(self, url: str, token: str) -> None:
        self._wire = Wire(url, token)
        try:
            self._about = msgspec.json.decode(self._wire.ask("GET", "/api").body)
        except BaseException:
            self._wire.close()
            raise
        self._ahead = self._about["now"] - SystemClock().now()
        for attribute in attributes():
            # Found before the property of that name, which would want a database.
            self.__dict__[attribute] = ROOMS.get(attribute, RemoteRoom)(
                attribute, self._wire, self._about
            )

    def acting_as(self, actor: str, origin: str | None = None) -> Corral:
        raise Refused("A token says who acts; open the store with another one.")

    def transaction(self) -> AbstractContextManager[Tx]:
        raise Refused(
            "A transaction is open only where the store is; call one operation.",
            reason="local_only",
        )

    def spare_connections(self) -> None:
        """The daemon holds the connections to the server."""

    def listening(self) -> AbstractContextManager[Listener]:
        raise Refused(
            "Wake-ups come only where the store is; use events.follow.", reason="local_only"
        )

    @contextmanager
    def telling(self, tell: Tell) -> Iterator[None]:
        before, self._wire.tell = self._wire.tell, tell
        try:
            yield
        finally:
            self._wire.tell = before

    def keep_shapes(self) -> None:
        raise Refused(
            "Words are kept as they are only where the store is; write them there.",
            reason="local_only",
        )

    def writing_within(self, seconds: float) -> AbstractContextManager[None]:
        return nullcontext()  # the server waits

    def try_upkeep(self, name: str, work: Callable[[], T], *, seconds: float = 1.0) -> T | None:
        return work()  # the server bounds it

    def run_of_peer(self, client: tuple[str, int], port: int) -> NoReturn:
        raise Refused("Processes can only be looked up on the machine of the store.")

    @property
    def address(self) -> str:
        return self._wire.url

    def now(self) -> int:
        """The store's time, as it was told when it was opened."""
        return SystemClock().now() + int(self._ahead)

    def close(self) -> None:
        self._wire.close()


class RemoteRoom:
    """The operations of a room, as requests."""

    def __init__(self, attribute: str, wire: Wire, about: dict[str, Any]) -> None:
        self._attribute = attribute
        self._wire = wire
        self._told = about

    def __getattr__(self, verb: str) -> Any:
        call = call_of(self._attribute, verb)
        if call is None:
            self._refuse(verb)
        method = _waiting(call, self._method(call)) if call.name in WAITS else self._method(call)
        self.__dict__[verb] = method  # found there at once the next time
        return method

    def _refuse(self, verb: str) -> NoReturn:
        name = f"{self._attribute}.{verb}"
        if name in LOCAL:
            raise Refused(
                f"{name} can only be called where the store is: {LOCAL[name]}.", reason="local_only"
            )
        raise AttributeError(name)

    def _method(self, call: Call) -> Callable[..., Any]:
        decode = msgspec.json.Decoder(call.result, dec_hook=_made).decode
        wire, twice = self._wire, _may_be_repeated(call)

        def method(*args: Any, **kwargs: Any) -> Any:
            sent = _sent(call, args, kwargs)
            path = f"/api{call.path}"
            if call.subject is not None:
                subject = str(sent.pop(call.subject))
                if subject in ("", ".", ".."):
                    path = f"/api/{call.attribute}/{call.verb}"
                    sent[call.subject] = subject
                else:
                    path = path.replace(f"{{{call.subject}}}", quote(subject, safe=""))
            if call.method == "GET":
                return decode(wire.ask("GET", path + _query(sent)).body)
            again = twice or bool(sent.get("key"))
            return decode(wire.ask("POST", path, msgspec.json.encode(sent), twice=again).body)

        method.__name__ = method.__qualname__ = call.verb
        method.__doc__ = call.help
        return method


class RemoteStore(RemoteRoom):
    """`store.db`: what is known of the store itself."""

    path = None

    @property
    def url(self) -> str:
        return self._wire.url

    @property
    def engine(self) -> str:
        return str(self._told["engine"])


class RemoteEvents(RemoteRoom):
    def follow(
        self,
        after: str | None = None,
        *,
        subject: str | None = None,
        project: str | None = None,
        timeout_ms: int | None = None,
        over: Callable[[], bool] | None = None,
    ) -> Iterator[Event]:
        """Every event behind a cursor, as it happens; from now on without one."""
        cursor = after or self.newest(limit=1).next or "0-0"
        wanted = {"subject": subject, "project": project}
        query = {name: value for name, value in wanted.items() if value is not None}
        decode = msgspec.json.Decoder(Event).decode
        for frame in self._wire.stream(
            "/api/events" + _query(query), last=cursor, timeout_ms=timeout_ms, over=over
        ):
            yield decode(frame)


class RemoteText:
    """A run's output, read a piece at a time."""

    def __init__(self, wire: Wire, run_id: str, stream: str) -> None:
        self._wire = wire
        self._path = f"/api/runs/{quote(run_id, safe='')}/output"
        self._stream = stream

    @property
    def size(self) -> int:
        return int(self._ask(limit=1).headers["x-size"])

    def lines(self, start: int, count: int) -> list[Data]:
        return _split(self._ask(line=start, count=count).body)

    def tail(self, count: int) -> list[Data]:
        return _split(self._ask(tail=count).body)

    def bytes(self, offset: int, length: int) -> Data:
        found = b""
        while len(found) < length:
            part = self._ask(offset=offset, limit=min(length - len(found), MOST_BYTES))
            if not part.body:
                break
            found += part.body
            offset = int(part.headers["x-next-offset"])
        return found[:length]

    def follow(
        self,
        offset: int = 0,
        *,
        over: Callable[[], bool],
        wait: Callable[[float], object] = time.sleep,
    ) -> Iterator[Piece]:
        """All text from an offset on, as it comes, until `over` says that nothing more will."""
        while True:
            ended = over()  # asked first: what was written before the end is read then
            part = self._ask(offset=offset, limit=MOST_BYTES)
            if part.body:
                offset = int(part.headers["x-next-offset"])
                yield Piece(offset, part.body)
            elif ended or part.headers["x-more"] == "false":
                return
            else:
                wait(LOOK_SECONDS)

    def _ask(self, **wanted: int) -> Told:
        return self._wire.ask("GET", self._path + _query({"stream": self._stream, **wanted}))


def _split(body: bytes) -> list[bytes]:
    return body.split(b"\n") if body else []


class RemoteOutputs(RemoteRoom):
    def open(self, run_id: str, *, stream: str = "output") -> RemoteText:
        """A reader of a run's output, while it grows or after it was sealed."""
        text = RemoteText(self._wire, run_id, stream)
        _ = text.size  # NotFound or Refused comes now
        return text

    def follow(
        self,
        run_id: str,
        *,
        stream: str = "output",
        offset: int = 0,
        over: Callable[[], bool] | None = None,
    ) -> Iterator[Piece]:
        """All text from an offset on, as it comes, until `over` says that nothing more will."""
        return self.open(run_id, stream=stream).follow(offset, over=over or (lambda: True))


class RemoteRuns(RemoteRoom):
    def wait_for_start(self, id: str, *, given_up: Callable[[], bool] | None = None) -> Run:
        """Wait until a queued run has been taken by a keeper, or `given_up` says not to."""
        while True:
            run: Run = self.get(id)
            if run.state is not RunState.QUEUED or (given_up is not None and given_up()):
                return run
            time.sleep(LOOK_SECONDS)


ROOMS: dict[str, type[RemoteRoom]] = {
    "db": RemoteStore,
    "events": RemoteEvents,
    "outputs": RemoteOutputs,
    "runs": RemoteRuns,
}


def _waiting(call: Call, method: Callable[..., Any]) -> Callable[..., Any]:
    name = WAITS[call.name]

    def wait(*args: Any, **kwargs: Any) -> Any:
        asked = kwargs.get(name, None if name == "timeout_ms" else 0)
        ends = None if asked is None else time.monotonic() + asked / 1_000
        while True:
            left = LONGEST_WAIT_MS if ends is None else round((ends - time.monotonic()) * 1_000)
            kwargs[name] = max(0, min(left, LONGEST_WAIT_MS))
            try:
                found = method(*args, **kwargs)
                if found or left <= LONGEST_WAIT_MS:
                    return found
            except Refused as error:
                # It is not over yet; whatever else is refused has no state.
                if "state" not in error.details or (ends is not None and left <= LONGEST_WAIT_MS):
                    raise

    return wait


def _sent(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments as JSON has them: records by their ids, with the fence that they show."""
    if len(args) > len(call.positional):
        raise TypeError(f"{call.name} takes {len(call.positional)} arguments by position")
    given = dict(zip(call.positional, args, strict=False)) | kwargs
    if given.pop("claimed", False):
        raise Refused(
            "A run is begun where the store is; type this there, or begin it from the dashboard.",
            reason="local_only",
        )
    known = {field.name: field for field in call.fields}
    sent: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            raise TypeError(f"{call.name} has no argument {name!r}")
        if value is KEEP:
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


def _may_be_repeated(call: Call) -> bool:
    """Whether doing it twice does no harm, so that it needs no key of its own."""
    operation = vars(room_of(call.attribute))[call.verb]
    return isinstance(operation, Operation) and operation.repeatable


def _query(given: dict[str, Any]) -> str:
    pairs = [
        (name, str(one).lower() if isinstance(one, bool) else str(one))
        for name, value in given.items()
        if value is not None
        for one in (value if isinstance(value, list | tuple | set | frozenset) else [value])
    ]
    return f"?{urlencode(pairs)}" if pairs else ""


def _made(kind: type[Any], value: Any) -> Any:
    return kind(value)
