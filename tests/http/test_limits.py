"""Limits on connections, headers, bodies and memory of clients with and without a token."""

import json
import os
import resource
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import httpx
import pytest

import corral
from corral.api import Corral
from corral.db.write_lock import MAX_WAIT
from corral.http import connections
from corral.http.connections import ConnectionPool
from corral.http.middleware import body_limits
from corral.kernel.clock import ManualClock
from corral.mcp.http import routes as tool_routes
from tests.support.home import wait_until
from tests.support.http_server import HttpServer, run_http_server

pytestmark = pytest.mark.slow

MEGABYTE = 1 << 20


def connect(http_server: HttpServer, data: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", http_server.port), timeout=60)
    connection.sendall(data)
    return connection


def read_answer(connection: socket.socket) -> bytes:
    """Read one whole response with a JSON object as its body."""
    answer = b""
    while not answer.endswith(b"}"):
        answer += connection.recv(4_096)
    return answer


def add_channel(store: Corral) -> None:
    store.secrets.set("HOOK", "env:HOME")
    store.channels.add("hook", "webhook", secrets={"secret": "HOOK"})


def is_closed(connection: socket.socket) -> bool:
    """Return whether the server has closed a connection without a response."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


@contextmanager
def raise_file_limit(count: int) -> Iterator[None]:
    """Raise the descriptor limit: the test holds both ends of many connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.skip(f"this test needs {count} descriptors, and may have {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_half_open_requests_block_no_other_client(store: Corral) -> None:
    """1,100 clients never finish their headers: a client with a token is answered."""
    with (
        raise_file_limit(4_096),
        ExitStack() as lines,
        run_http_server(store, pool=ConnectionPool(512)) as http_server,
    ):
        for _ in range(1_100):
            lines.enter_context(connect(http_server, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "))
        with http_server.client() as client:
            assert client.get("/api/projects").status_code == 200
            assert client.post("/api/mail/put", json={"mailbox": "queue:q", "body": 1}).is_success


def test_unauthenticated_connections_give_way_to_new_ones(
    store: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "BURST_SECONDS", 0.0)
    pool = ConnectionPool(64)
    with ExitStack() as lines, run_http_server(store, pool=pool) as http_server:
        token_client = lines.enter_context(http_server.client())
        assert token_client.get("/api").status_code == 200
        results = [lines.enter_context(connect(http_server)) for _ in range(100)]
        wait_until(lambda: is_closed(results[0]), "the oldest connection is closed")
        wait_until(lambda: len(pool) <= 64 // 4 + 1, "one peer has a quarter of the connections")
        assert not is_closed(results[-1])
        assert token_client.get("/api").status_code == 200, "a connection with a token stays open"


def test_many_simultaneous_callers_are_all_answered(store: Corral) -> None:
    with ExitStack() as lines, run_http_server(store, pool=ConnectionPool(300)) as http_server:
        request = (
            f"GET /api/projects HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            f"Authorization: Bearer {http_server.token}\r\n\r\n"
        )
        results = [lines.enter_context(connect(http_server, request.encode())) for _ in range(250)]
        assert all(line.recv(15) == b"HTTP/1.1 200 OK" for line in results)


def test_headers_have_a_deadline_and_keep_alive_is_allowed(
    store: Corral,
) -> None:
    with run_http_server(store, connection={"header_seconds": 2.0}) as http_server:
        request = f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{http_server.port}\r\n\r\n".encode()
        with (
            connect(http_server) as silent,
            connect(http_server, b"GET / HT") as slow,
            connect(http_server, request) as keep_alive,
        ):
            assert read_answer(keep_alive).startswith(b"HTTP/1.1 200")
            wait_until(lambda: is_closed(silent), "the silent connection is closed")
            wait_until(lambda: is_closed(slow), "the connection with incomplete headers is closed")
            keep_alive.sendall(request)
            assert read_answer(keep_alive).startswith(b"HTTP/1.1 200"), (
                "a keep-alive connection may idle between requests"
            )
            keep_alive.sendall(request[:20])
            wait_until(
                lambda: is_closed(keep_alive),
                "incomplete headers of the next request close the connection",
            )


def test_upload_to_an_unknown_channel_is_not_read(store: Corral) -> None:
    head = b"POST /channels/x HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 900000\r\n\r\n"
    with run_http_server(store) as http_server, connect(http_server, head) as line:
        assert line.recv(4_096).startswith(b"HTTP/1.1 404")


def test_withheld_uploads_need_little_memory(store: Corral) -> None:
    """100 bodies of 10 MB with a length, and 100 without."""
    add_channel(store)
    piece = b"x" * 65_536
    before = read_memory()
    with ExitStack() as lines, run_http_server(store) as http_server:
        results: list[bytes] = []
        for number in range(200):
            has_length = number % 2
            length = b"Content-Length: 10485760" if has_length else b"Transfer-Encoding: chunked"
            line = lines.enter_context(
                connect(
                    http_server,
                    b"POST /channels/hook HTTP/1.1\r\nHost: 127.0.0.1\r\n" + length + b"\r\n\r\n",
                )
            )
            if has_length:  # rejected for its length alone; a body might reset the connection
                results.append(line.recv(4_096)[:12])
            line.settimeout(0.2)
            with suppress(OSError):
                for _ in range(160):
                    line.sendall(piece if has_length else b"10000\r\n" + piece + b"\r\n")
        assert results == [b"HTTP/1.1 413"] * 100, "oversized bodies are not read"
        assert read_memory() - before < 120 * MEGABYTE
        with http_server.client() as client:
            assert client.get("/api").status_code == 200


def test_total_size_of_unauthenticated_bodies_is_limited(
    store: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = body_limits.ANONYMOUS_LIMIT._replace(
        max_bytes=2_000, max_bytes_per_caller=5_000, idle_seconds=300.0
    )
    monkeypatch.setattr(body_limits, "ANONYMOUS_LIMIT", limit)
    add_channel(store)
    head = b"POST /channels/hook HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 2000\r\n\r\n"
    with ExitStack() as lines, run_http_server(store) as http_server:
        results = [lines.enter_context(connect(http_server, head + b"x" * 1_999)) for _ in range(3)]
        (rejected,) = select.select(results, [], [], 60)[0]
        assert rejected.recv(4_096).startswith(b"HTTP/1.1 429")
        assert not any(receive_within(line, 0.1) for line in results if line is not rejected)
        for line in results:
            line.close()
        wait_until(
            lambda: (
                httpx.post(f"{http_server.url}/channels/hook", content=b"x" * 1_999).status_code
                != 429
            ),
            "released bytes can be used again",
        )


def receive_within(connection: socket.socket, seconds: float) -> bytes:
    connection.settimeout(seconds)
    try:
        return connection.recv(4_096)
    except TimeoutError:
        return b""


def test_slow_body_ends_at_its_deadline(store: Corral, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = body_limits.TOKEN_LIMIT._replace(idle_seconds=300.0, total_seconds=0.5)
    monkeypatch.setattr(body_limits, "TOKEN_LIMIT", limit)
    with run_http_server(store) as http_server:
        head = (
            f"POST /api/mail/put HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000\r\n"
            f"Authorization: Bearer {http_server.token}\r\n\r\n"
        )
        with connect(http_server, head.encode()) as line:
            answer = b""
            for _ in range(900):
                with suppress(OSError):
                    line.sendall(b" ")
                if answer := receive_within(line, 0.05):
                    break
            assert answer.startswith(b"HTTP/1.1 408")


def test_bodies_full_of_empty_objects_are_rejected_before_decoding(store: Corral) -> None:
    store.agents.create("eve")
    token = store.tokens.create("e", scope="agent:eve").value
    small = b'{"mailbox":"agent:eve","body":[' + b",".join([b"{}"] * 1_200_000) + b"]}"
    numbers = json.dumps({"mailbox": "agent:eve", "body": [0] * 250_000}).encode()
    large = b'{"mailbox":"agent:eve","body":[' + b",".join([b"{}"] * 3_000_000) + b"]}"
    before = read_memory()
    with (
        run_http_server(store, pages=tool_routes()) as http_server,
        http_server.client(token) as eve,
    ):
        answers = []

        def send(body: bytes) -> None:
            answers.append(eve.post("/api/mail/put", content=body).status_code)

        threads = [
            threading.Thread(target=send, args=(body,))
            for body in [small] * 12 + [numbers] * 2 + [large] * 2
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert set(answers) <= {413, 429}
        assert read_memory() - before < 300 * MEGABYTE
        response = eve.post(
            "/mcp",
            content=b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":['
            + b",".join([b"{}"] * 300_000)
            + b"]}}",
        )
        assert response.status_code == 413
        assert eve.post("/api/mail/put", json={"mailbox": "agent:eve", "body": {}}).is_success


def read_memory() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_agent_has_a_limited_number_of_connections(
    store: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_PER_AGENT", 3)
    store.agents.create("eve")
    token = store.tokens.create("e", scope="agent:eve").value
    with ExitStack() as clients, run_http_server(store) as http_server:
        results = []
        for _ in range(4):
            client = clients.enter_context(http_server.client(token))
            results.append(client.get("/api/agents/eve").status_code)
        assert results == [200, 200, 200, 429]


def test_connections_leave_file_descriptors_for_other_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, most in ((1_024, 512), (8_192, 4_096), (300, 44), (100, 32)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (files, files))
        assert connections.choose_max_connections() == most


def test_reads_continue_while_the_store_is_not_writable(
    store: Corral, url: str, clock: ManualClock
) -> None:
    """A writer that was stopped during a write blocks other writers, but no reader."""
    store.questions.ask("Well?", deadline_ms=1_000, asker="user:tester")
    with (
        corral.open(url, clock=clock, actor="user:other") as other,
        run_http_server(store) as http_server,
        http_server.client() as client,
    ):
        clock.advance(60_000)
        locked, release = threading.Event(), threading.Event()

        def hold() -> None:
            with other.transaction() as tx:
                tx.emit("project", "touch", "prj_x")
                locked.set()
                release.wait(300)

        holder = threading.Thread(target=hold)
        holder.start()
        assert locked.wait(60)
        try:
            start = time.monotonic()
            for path in ("/api", "/api/projects", "/api/questions", "/api/locks", "/api/runs"):
                assert client.get(path).status_code == 200, path
            assert client.get("/api/search/find", params={"text": "x"}).status_code == 200
            assert time.monotonic() - start < MAX_WAIT, "no request waited for the writer"
        finally:
            release.set()
            holder.join()
        wait_until(
            lambda: store.tokens.get("tests").used_at, "the token's last use is recorded later"
        )
