"""A local HTTP server in place of a chat platform: it records requests and responds."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

LOOKS_AGAIN = 0.02  # seconds; how often the server checks for shutdown, which its test waits for


class ApiRequest(NamedTuple):
    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any
    raw: bytes = b""


Answer = tuple[int, Any] | tuple[int, Any, dict[str, str]]


class ChatServerStub:
    """A chat server whose responses a function computes from the request."""

    def __init__(self, answer: Callable[[ApiRequest], Answer]) -> None:
        self.asked: list[ApiRequest] = []
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do(self) -> None:
                parts = urlsplit(self.path)
                length = int(self.headers.get("Content-Length", 0))
                raw = self.rfile.read(length)
                query = {name: item[0] for name, item in parse_qs(parts.query).items()}
                request = ApiRequest(
                    self.command,
                    unquote(parts.path),
                    query,
                    {name.lower(): value for name, value in self.headers.items()},
                    _body(raw),
                    raw,
                )
                api.asked.append(request)
                status, result, *more = answer(request)
                if status == 0:  # the connection breaks during the response
                    self.connection.close()
                    return
                body = result if isinstance(result, bytes) else json.dumps(result).encode()
                self.send_response(status)
                for name, value in (more[0] if more else {}).items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PUT = do_HEAD = do

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(LOOKS_AGAIN,), daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _body(raw: bytes) -> Any:
    try:
        return json.loads(raw) if raw else None
    except ValueError:
        return {name: item[0] for name, item in parse_qs(raw.decode(errors="replace")).items()}


@contextmanager
def platform(answer: Callable[[ApiRequest], Answer]) -> Iterator[ChatServerStub]:
    api = ChatServerStub(answer)
    try:
        yield api
    finally:
        api.close()
