"""HTTP client of a daemon.

It keeps connections alive, retries, and raises the errors of the library.
"""

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

from corral.kernel.errors import (
    CorralError,
    Invalid,
    Refused,
    StoreUnavailable,
    error_from_code,
)

READ_TIMEOUT = 60.0  # the server answers long-polling calls earlier
STREAM_TIMEOUT = 40.0  # of a stream; the server sends a heartbeat every 15 s
RETRY_SECONDS = 30.0  # how long to retry while the server is rate limiting
MAX_ATTEMPTS = 3
POLL_SECONDS = 0.25
REDACTED_HEADER = "corral-redacted"
"""The response header that lists what was redacted before it was stored."""
MAX_BUFFERED_EVENTS = 1_000  # events that are read ahead of the consumer


class HttpResponse(NamedTuple):
    """A response, read completely."""

    status: int
    headers: dict[str, str]
    body: bytes


class ThreadState(threading.local):
    """What a client remembers for each thread."""

    on_redaction: Callable[[list[str]], None] | None = None
    """Callback that gets the names of redacted fields."""


class DaemonClient:
    """A client of one daemon. Thread-safe."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if not parts.hostname or port == -1 or parts.path.strip("/") or parts.query:
            raise Invalid("Invalid URL: expected the form http://127.0.0.1:7717.", reason="bad_url")
        if parts.username or parts.password:
            raise Invalid("Pass the token with `token=` or CORRAL_TOKEN, not in the URL.")
        if not token:
            raise Invalid(
                "A daemon requires a token. Set CORRAL_TOKEN; `corral token create NAME` on the "
                "machine of the store creates one.",
                reason="token_missing",
            )
        if not token.isascii() or not token.isprintable() or not token.strip():
            raise Invalid("Invalid token. `corral token create NAME` creates one.")
        self.url = f"{parts.scheme}://{parts.netloc}"
        self._connection_class = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port = parts.hostname, port
        self._read_headers = {"Authorization": f"Bearer {token}", "Accept": "application/json"}
        self._idle: list[HTTPConnection] = []
        self._closed = False
        self.thread = ThreadState()

    def request(
        self, method: str, path: str, body: bytes | None = None, *, retryable: bool = True
    ) -> HttpResponse:
        """Send a request and return the response.

        Raises the library's error for an error response. A request that is not
        `retryable` gets an idempotency key, so that it can be resent after its response was lost.
        Waits and retries while the server is rate limiting (429).
        """
        if self._closed:
            raise RuntimeError("the store is closed")
        headers = dict(self._read_headers)
        if body is not None:
            headers["Content-Type"] = "application/json"
            if not retryable:
                headers["Idempotency-Key"] = os.urandom(16).hex()
        deadline = time.monotonic() + RETRY_SECONDS
        while True:
            response = self._send_with_retries(method, path, body, headers)
            if response.status != 429 or time.monotonic() > deadline:
                on_redaction = self.thread.on_redaction
                if on_redaction is not None and REDACTED_HEADER in response.headers:
                    on_redaction(response.headers[REDACTED_HEADER].split())
                return response if response.status < 400 else self._raise_error(response)
            time.sleep(min(float(response.headers.get("retry-after", "1")), RETRY_SECONDS))

    def forward(self, path: str, body: bytes, headers: dict[str, str]) -> HttpResponse:
        """Send a message of another protocol; it may be sent twice.

        An error response in that protocol's own format is returned, not raised.
        """
        own = {**self._read_headers, "Content-Type": "application/json", **headers}
        response = self._send_with_retries("POST", path, body, own)
        if response.status >= 400 and b'"jsonrpc"' not in response.body[:20]:
            self._raise_error(response)
        return response

    def _send_with_retries(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> HttpResponse:
        for attempt in range(MAX_ATTEMPTS):
            try:
                return self._send_once(method, path, body, headers)
            except (HTTPException, OSError) as error:
                if attempt == MAX_ATTEMPTS - 1 or isinstance(error, ConnectionRefusedError):
                    raise self._unreachable_error(error) from None
                while self._idle:  # the other idle connections are probably broken too
                    self._idle.pop().close()
        raise AssertionError("unreachable")

    def _send_once(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> HttpResponse:
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect(READ_TIMEOUT)
        try:
            connection.request(method, path, body, headers)
            raw = connection.getresponse()
            response = HttpResponse(raw.status, _read_headers(raw), raw.read())
        except BaseException:
            connection.close()
            raise
        if raw.will_close:
            connection.close()
        else:
            self._idle.append(connection)
        return response

    def _connect(self, seconds: float) -> HTTPConnection:
        return self._connection_class(self._host, self._port, timeout=seconds)

    def stream(
        self,
        path: str,
        *,
        last: str,
        timeout_ms: int | None = None,
        is_finished: Callable[[], bool] | None = None,
    ) -> Iterator[bytes]:
        """Yield the data of server-sent events after a cursor.

        Reconnects when the connection breaks.
        """
        timeout = None if timeout_ms is None else timeout_ms / 1_000
        last_event_at = time.monotonic()
        while True:
            reader = _EventStreamReader(self._open_stream(path, last))
            try:
                while not reader.ended:
                    frame = reader.take(POLL_SECONDS if timeout is None else min(timeout, 0.05))
                    if frame is not None:
                        last = frame[0]
                        last_event_at = time.monotonic()
                        yield frame[1]
                    elif (is_finished is not None and is_finished()) or (
                        timeout is not None and time.monotonic() - last_event_at >= timeout
                    ):
                        return
            finally:
                reader.close()
            time.sleep(POLL_SECONDS)

    def _open_stream(self, path: str, last: str) -> tuple[HTTPConnection, HTTPResponse]:
        connection = self._connect(STREAM_TIMEOUT)
        try:
            connection.request("GET", path, headers={**self._read_headers, "Last-Event-ID": last})
            raw = connection.getresponse()
            if raw.status != 200:
                self._raise_error(HttpResponse(raw.status, _read_headers(raw), raw.read()))
        except (HTTPException, OSError) as error:
            connection.close()
            raise self._unreachable_error(error) from None
        except BaseException:
            connection.close()
            raise
        return connection, raw

    def _raise_error(self, response: HttpResponse) -> NoReturn:
        try:
            error: dict[str, Any] = msgspec.json.decode(response.body)["error"]
            code, message, details = error["code"], error["message"], dict(error["details"])
        except (msgspec.DecodeError, KeyError, TypeError):
            raise self._unexpected_response_error(f"it answered {response.status}") from None
        if code == StoreUnavailable.code:
            details.setdefault("reason", "unreachable")
        known_error = error_from_code(code, message, details)
        if type(known_error) is not CorralError:
            raise known_error
        if code == "too_many":
            raise StoreUnavailable(message, reason="locked", **details)
        if response.status >= 500:
            raise self._unexpected_response_error(message)
        raise Refused(message, **details)

    def _unreachable_error(self, error: Exception) -> StoreUnavailable:
        reason = getattr(error, "strerror", None) or type(error).__name__
        return StoreUnavailable(
            f"No daemon answers at {self.url} ({reason}). Start it there with `corral up`.",
            reason="unreachable",
            url=self.url,
        )

    def _unexpected_response_error(self, problem: str) -> StoreUnavailable:
        return StoreUnavailable(
            f"Unexpected response from {self.url}: {problem}. Check that a Corral daemon runs at "
            "this URL.",
            reason="foreign",
            url=self.url,
        )

    def close(self) -> None:
        self._closed = True
        while self._idle:
            self._idle.pop().close()


class _EventStreamReader:
    """Reads a stream on its own thread, so that the consumer can wait with a timeout."""

    def __init__(self, opened: tuple[HTTPConnection, HTTPResponse]) -> None:
        self._connection, self._answer = opened
        self._frames: queue.Queue[tuple[str, bytes] | None] = queue.Queue(MAX_BUFFERED_EVENTS)
        self._closed = False
        self.ended = False
        threading.Thread(target=self._read, daemon=True, name="events").start()

    def take(self, seconds: float) -> tuple[str, bytes] | None:
        """Return the id and data of the next event; None when none arrives in time."""
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
            pass  # the connection was closed
        self._put(None)

    def _put(self, frame: tuple[str, bytes] | None) -> None:
        while not self._closed:
            try:
                self._frames.put(frame, timeout=POLL_SECONDS)
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


def _read_headers(response: HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}
