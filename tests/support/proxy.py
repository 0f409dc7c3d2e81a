"""A proxy between a client and its server that cuts the connection at a chosen point."""

import select
import socket
import threading
from contextlib import suppress
from typing import Literal, NamedTuple, Self

When = Literal["before", "after"]


class Cut(NamedTuple):
    text: bytes
    when: When


class Proxy:
    """Forwards to a server on this machine.

    `cut(text, when)` breaks the next connection that sends a request with this text: "before" the
    server gets the request, or "after" the server has executed it and before the response arrives.
    The
    client cannot tell the difference.
    """

    def __init__(self, port: int) -> None:
        self._server = ("127.0.0.1", port)
        self._cut: Cut | None = None
        self._closed = False
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, text: str, when: When) -> None:
        self._cut = Cut(text.encode(), when)

    def close(self) -> None:
        """Cut all connections and accept no new ones."""
        self._closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(self._server) as server:
            while True:
                ready = select.select([client, server], [], [], 0.1)[0]
                if self._closed:
                    return
                if client in ready:
                    request = client.recv(1 << 20)
                    cut = self._cut
                    if cut is not None and cut.text in request:
                        self._cut = None
                        if cut.when == "after":
                            server.sendall(request)
                            server.recv(1 << 20)
                        self.cuts += 1
                        return
                    if not request:
                        return
                    server.sendall(request)
                if server in ready:
                    answer = server.recv(1 << 20)
                    if not answer:
                        return
                    client.sendall(answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
