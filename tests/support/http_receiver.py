"""A loopback web server that records requests and responds as configured."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from tests.support.chat_server_stub import LOOKS_AGAIN


class ReceivedRequest(NamedTuple):
    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    def __init__(self) -> None:
        self.posted: list[ReceivedRequest] = []
        self.answers: list[int] = []
        """Status codes of the next responses, then 200."""
        self.location = ""
        """The target of redirects."""
        self.hang = threading.Event()
        self.hang.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                body = self.rfile.read(length)
                receiver.posted.append(ReceivedRequest(self.path, dict(self.headers), body))
                receiver.hang.wait(30)
                self.send_response(receiver.answers.pop(0) if receiver.answers else 200)
                if receiver.location:
                    self.send_header("Location", receiver.location)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/hook"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(LOOKS_AGAIN,), daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self.hang.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def run_receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    try:
        yield receiver
    finally:
        receiver.close()
