"""API requests: Corral against a bare application with the same SQL."""

import asyncio
import multiprocessing
import socket
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench.harness import Bar, Bench, Rates, Rival, Row, Spread, percentile
from bench.opponents import BODY, MAILBOX, open_store

TITLE = "HTTP requests, one process, 16 clients"
ABOUT = """
    Sixteen clients on persistent connections read ten letters, or put one. Each server is one
    process with one SQLite file. By hand (1x): starlette with the same SQL, without tokens,
    validation, limits or event feed. Overload: ten times as many clients, each as fast as
    possible; every request must be answered with 200 or 429, and every accepted letter must be
    stored.
"""
CLIENTS = 16
BAR = Bar(">=", 0.5)
FEED = Bar("<", 250)
WAITING = 100  # letters to be listed


class Server(NamedTuple):
    port: int
    token: str
    path: Path


class ServerProcess:
    """A server in its own process."""

    def __init__(self, serve: Callable[[Connection, Path], None], path: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, child_end = context.Pipe()
        self._process = context.Process(target=serve, args=(child_end, path), daemon=True)
        self._process.start()
        port, token = self._pipe.recv()
        self.server = Server(port, token, path)

    def close(self) -> None:
        self._process.terminate()
        self._process.join(20)


def measure(bench: Bench) -> list[Row]:
    seconds = bench.pick(2.0, 1.0)
    corral, bare = (
        ServerProcess(serve_corral, bench.new_file()),
        ServerProcess(serve_bare, bench.new_file()),
    )
    try:
        value = bench.compare(
            Rival("by hand", partial(_sample, bare.server, seconds)),
            [Rival("Corral", partial(_sample, corral.server, seconds))],
            rounds=bench.pick(7, 3),
        )
        bench.progress("the feed")
        feed_delay = Spread.of([_measure_feed(corral.server, 100) for _ in range(bench.pick(7, 3))])
        bench.progress("overload")
        before = _accepted(corral.server)
        result = asyncio.run(_load(corral.server, _put, 10 * CLIENTS, bench.pick(30.0, 5.0)))
        lost = result[200] - (_accepted(corral.server) - before)
    finally:
        corral.close()
        bare.close()
    other = sum(count for status, count in result.items() if status not in (200, 429))
    return [
        Row("list ten letters", value.speed_of("Corral", "read"), BAR),
        Row("put a letter", value.speed_of("Corral", "write"), BAR),
        Row("commit of another process to its event on the feed, p99", feed_delay, FEED, unit="ms"),
        Row("overload: responses other than 200 and 429", _single(other), Bar("=", 0), unit=""),
        Row("overload: accepted letters that were lost", _single(lost), Bar("=", 0), unit=""),
        Row(
            "overload: share of accepted requests",
            _single(result[200] / sum(result.values())),
            unit="",
        ),
    ]


def _single(value: float) -> Spread:
    return Spread.of([value])


def _sample(server: Server, seconds: float) -> Rates:
    return {
        "read": asyncio.run(_load(server, _read, CLIENTS, seconds)).get(200, 0) / seconds,
        "write": asyncio.run(_load(server, _put, CLIENTS, seconds)).get(200, 0) / seconds,
    }


def _read(server: Server) -> bytes:
    return _request(server, f"GET /api/mail?mailbox={MAILBOX}&limit=10", b"")


def _put(server: Server) -> bytes:
    return _request(
        server, "POST /api/mail/put", msgspec.json.encode({"mailbox": "queue:put", "body": BODY})
    )


def _request(server: Server, request_line: str, body: bytes) -> bytes:
    lines = [
        f"{request_line} HTTP/1.1",
        f"Host: 127.0.0.1:{server.port}",
        f"Authorization: Bearer {server.token}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + body


async def _load(
    server: Server, make: Callable[[Server], bytes], clients: int, seconds: float
) -> dict[int, int]:
    """Return the number of responses by status for so many clients that send continuously."""
    values: dict[int, int] = {200: 0}
    request = make(server)
    end = time.monotonic() + seconds

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        while time.monotonic() < end:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            status = int(head[9:12])
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            await reader.readexactly(length)
            values[status] = values.get(status, 0) + 1
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    return values


def _measure_feed(server: Server, count: int) -> float:
    """Return the milliseconds from a commit until a subscriber has its event."""
    delays = []
    with (
        open_store(f"sqlite:///{server.path}") as store,
        socket.create_connection(("127.0.0.1", server.port)) as line,
        line.makefile("rb") as result,
    ):
        line.sendall(_request(server, "GET /api/events", b""))
        while not result.readline().startswith(b"retry"):
            pass
        for _ in range(count):
            id = store.mail.put("queue:feed", BODY).id.encode()
            start = time.perf_counter()
            while id not in result.readline():
                pass
            delays.append((time.perf_counter() - start) * 1_000)
    return percentile(delays, 99)


def _accepted(server: Server) -> int:
    """Return how many letters of the load are stored."""
    with open_store(f"sqlite:///{server.path}") as store:
        result = store.db.sql("SELECT count(*) FROM letters WHERE mailbox = 'queue:put'")
        return int(result.rows[0][0])


def serve_corral(pipe: Connection, path: Path) -> None:
    from corral.http.app import create_app

    store = open_store(f"sqlite:///{path}")
    for _ in range(WAITING):
        store.mail.put(MAILBOX, BODY)
    _serve(pipe, create_app(store), store.tokens.create("bench").value)


def serve_bare(pipe: Connection, path: Path) -> None:
    from bench.opponents.bare_starlette import bare_app

    with open_store(f"sqlite:///{path}") as store:
        for _ in range(WAITING):
            store.mail.put(MAILBOX, BODY)
    _serve(pipe, bare_app(path), "none")


def _serve(pipe: Connection, app: Any, token: str) -> None:
    import uvicorn

    with socket.socket(proto=socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(1_024)
        pipe.send((listening.getsockname()[1], token))
        config = uvicorn.Config(app, log_level="warning", access_log=False)
        uvicorn.Server(config).run([listening])
