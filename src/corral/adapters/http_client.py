"""Requests to a daemon: connections that are kept, errors that become the library's own."""

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from socket import SHUT_RDWR
from typing import Any, NamedTuple, NoReturn
from urllib.parse import urlsplit

import msgspec

from corral.kernel import errors
from corral.kernel.errors import CorralError, Invalid, Refused, StoreUnavailable

SECONDS = 60.0  # without a word from the server; it answers waiting calls earlier
QUIET = 40.0  # on a stream, where it says something every 15 seconds
PATIENCE = 30.0  # for a server that has too much to do
TRIES = 3
LOOK_SECONDS = 0.25
REDACTED = "corral-redacted"
"""The header that says what secrets were taken out of, before it was kept."""
MOST_AHEAD = 1_000  # events that are read before anybody takes them

_BY_CODE: dict[str, type[CorralError]] = {
    found.code: found
    for found in vars(errors).values()
    if isinstance(found, type) and issubclass(found, CorralError)
}


class Told(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Wire:
    """One daemon, as a client sees it. It may be shared between threads."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if not parts.hostname or port == -1 or parts.path.strip("/") or parts.query:
            raise Invalid(
                "That URL is wrong; write it like http://127.0.0.1:7717.", reason="bad_url"
            )
        if parts.username or parts.password:
            raise Invalid("Give the token by `token=` or CORRAL_TOKEN, not in the URL.")
        if not token:
            raise Invalid(
                "A daemon wants a token; put one into CORRAL_TOKEN (`corral token create NAME` "
                "makes one where the store is).",
                reason="token_missing",
            )
        if not token.isascii() or not token.isprintable() or not token.strip():
            raise Invalid("That is no token; `corral token create NAME` makes one.")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._make = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port = parts.hostname, port
        self._headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        self._idle: list[HTTPConnection] = []
        self._closed = False
        self.tell: Callable[[list[str]], None] | None = None
        """Is told what secrets were taken out of there."""

    def ask(self, method: str, path: str, body: bytes | None = None, *, twice: bool = True) -> Told:
        """One request, and what was told; the library's error when that is one.

        What may not be done `twice` gets a key, under which the server does it once. So a request
        whose answer was lost is made again.
        """
        if self._closed:
            raise RuntimeError("the store was closed; open it again")
        headers = dict(self._headers)
        if body is not None:
            headers["Content-Type"] = "application/json"
            if not twice:
                headers["Idempotency-Key"] = os.urandom(16).hex()
        ends = time.monotonic() + PATIENCE
        while True:
            told = self._persist(method, path, body, headers)
            if told.status != 429 or time.monotonic() > ends:
                if self.tell is not None and REDACTED in told.headers:
                    self.tell(told.headers[REDACTED].split())
                return told if told.status < 400 else self._raise(told)
            time.sleep(min(float(told.headers.get("retry-after", "1")), PATIENCE))

    def hand_on(self, path: str, body: bytes, headers: dict[str, str]) -> Told:
        """A message of another protocol, which may be sent twice, and what was told; an error in
        that protocol's own form is no error here."""
        own = {**self._headers, "Content-Type": "application/json", **headers}
        told = self._persist("POST", path, body, own)
        if told.status >= 400 and b'"jsonrpc"' not in told.body[:20]:
            self._raise(told)
        return told

    def _persist(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Told:
        for nth in range(TRIES):
            try:
                return self._once(method, path, body, headers)
            except (HTTPException, OSError) as error:
                if nth == TRIES - 1 or isinstance(error, ConnectionRefusedError):
                    raise self._unreachable(error) from None
                while self._idle:  # when one connection broke, its neighbours probably did too
                    self._idle.pop().close()
        raise AssertionError("unreachable")

    def _once(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> Told:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect(SECONDS)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            told = Told(answer.status, _headers(answer), answer.read())
        except BaseException:
            connection.close()
            raise
        if answer.will_close:
            connection.close()
        else:
            self._idle.append(connection)
        return told

    def _connect(self, seconds: float) -> HTTPConnection:
        return self._make(self._host, self._port, timeout=seconds)

    def stream(
        self,
        path: str,
        *,
        last: str,
        timeout_ms: int | None = None,
        over: Callable[[], bool] | None = None,
    ) -> Iterator[bytes]:
        """The data of server-sent events behind a cursor; a line that breaks is taken up again."""
        patience = None if timeout_ms is None else timeout_ms / 1_000
        heard = time.monotonic()
        while True:
            reader = _Reader(self._open_stream(path, last))
            try:
                while not reader.ended:
                    frame = reader.take(LOOK_SECONDS if patience is None else min(patience, 0.05))
                    if frame is not None:
                        last = frame[0]
                        heard = time.monotonic()
                        yield frame[1]
                    elif (over is not None and over()) or (
                        patience is not None and time.monotonic() - heard >= patience
                    ):
                        return
            finally:
                reader.close()
            time.sleep(LOOK_SECONDS)

    def _open_stream(self, path: str, last: str) -> tuple[HTTPConnection, HTTPResponse]:
        connection = self._connect(QUIET)
        try:
            connection.request("GET", path, headers={**self._headers, "Last-Event-ID": last})
            answer = connection.getresponse()
            if answer.status != 200:
                self._raise(Told(answer.status, _headers(answer), answer.read()))
        except (HTTPException, OSError) as error:
            connection.close()
            raise self._unreachable(error) from None
        except BaseException:
            connection.close()
            raise
        return connection, answer

    def _raise(self, told: Told) -> NoReturn:
        try:
            error: dict[str, Any] = msgspec.json.decode(told.body)["error"]
            code, message, details = error["code"], error["message"], dict(error["details"])
        except (msgspec.DecodeError, KeyError, TypeError):
            raise self._strange(f"it answered {told.status}") from None
        kind = _BY_CODE.get(code)
        if kind is StoreUnavailable:
            raise StoreUnavailable(message, reason=details.pop("reason", "unreachable"), **details)
        if kind is not None:
            raise kind(message, **details)
        if code == "too_many":
            raise StoreUnavailable(message, reason="locked", **details)
        if told.status >= 500:
            raise self._strange(message)
        raise Refused(message, **details)

    def _unreachable(self, error: Exception) -> StoreUnavailable:
        why = getattr(error, "strerror", None) or type(error).__name__
        return StoreUnavailable(
            f"No daemon answers at {self.url} ({why}); start it there with `corral up`.",
            reason="unreachable",
            url=self.url,
        )

    def _strange(self, what: str) -> StoreUnavailable:
        return StoreUnavailable(
            f"The daemon at {self.url} cannot be understood: {what}", reason="foreign", url=self.url
        )

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()


class _Reader:
    """Reads a stream on a thread of its own, so that whoever waits for it can also do otherwise."""

    def __init__(self, opened: tuple[HTTPConnection, HTTPResponse]) -> None:
        self._connection, self._answer = opened
        self._frames: queue.Queue[tuple[str, bytes] | None] = queue.Queue(MOST_AHEAD)
        self._closed = False
        self.ended = False
        threading.Thread(target=self._read, daemon=True, name="events").start()

    def take(self, seconds: float) -> tuple[str, bytes] | None:
        """The id and the data of the next event; None when there is none in that time."""
        try:
            frame = self._frames.get(timeout=seconds)
        except queue.Empty:
            return None
        if frame is None:
            self.ended = True
        return frame

    def _read(self) -> None:
        id, data = "", b""
        try:
            while line := self._answer.readline():
                name, _, value = line.rstrip(b"\r\n").partition(b": ")
                if name == b"id":
                    id = value.decode()
                elif name == b"data":
                    data = value
                elif not name and data:
                    self._put((id, data))
                    data = b""
        except (HTTPException, OSError, ValueError, AttributeError):
            pass  # closed, by either side
        self._put(None)

    def _put(self, frame: tuple[str, bytes] | None) -> None:
        while not self._closed:
            try:
                self._frames.put(frame, timeout=LOOK_SECONDS)
                return
            except queue.Full:
                continue

    def close(self) -> None:
        self._closed = True
        sock = self._connection.sock
        if sock is not None:
            with suppress(OSError):
                sock.shutdown(SHUT_RDWR)
        self._connection.close()


def _headers(answer: HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in answer.getheaders()}
