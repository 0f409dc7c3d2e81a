"""Run the HTTP application on a loopback port."""

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx
import uvicorn

from corral.api import Corral
from corral.http.app import create_app
from corral.http.connections import ConnectionPool, build_server_options
from tests.support.threads import SECONDS

# The tests use no https, and loading the trusted certificates is slower than most requests.
NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class HttpServer(NamedTuple):
    store: Corral
    url: str
    token: str
    """A token of full scope."""

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def client(self, token: str | None = None, **options: Any) -> httpx.Client:
        return self.anonymous_client(
            headers={"Authorization": f"Bearer {token or self.token}"}, **options
        )

    def anonymous_client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=SECONDS, verify=NO_CERTIFICATES, **options)


@contextmanager
def closed_port() -> Iterator[int]:
    """Reserve a loopback port on which nothing listens."""
    with socket.socket() as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@contextmanager
def run_http_server(
    store: Corral,
    *,
    port: int = 0,
    pool: ConnectionPool | None = None,
    connection: dict[str, Any] | None = None,
    **options: Any,
) -> Iterator[HttpServer]:
    """Serve the application on its own port in a thread while the block runs."""
    app = create_app(store, **options)
    limits = build_server_options(pool, **(connection or {}))
    config = uvicorn.Config(
        app, log_level="error", lifespan="on", timeout_graceful_shutdown=1, **limits
    )
    server = uvicorn.Server(config)
    # IPPROTO_TCP makes the server set TCP_NODELAY; without it, every response is delayed by 40 ms.
    with socket.socket(proto=socket.IPPROTO_TCP) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(("127.0.0.1", port))
        listening.listen(1_024)
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        try:
            deadline = time.monotonic() + SECONDS
            while not server.started:
                assert thread.is_alive(), "the server did not start"
                assert time.monotonic() < deadline, "the server did not start in time"
                time.sleep(0.005)
            token = store.tokens.create("tests").value
            yield HttpServer(store, f"http://127.0.0.1:{listening.getsockname()[1]}", token)
        finally:
            app.state.end()
            server.should_exit = True
            thread.join(SECONDS)
            assert not thread.is_alive(), "the server did not end"
