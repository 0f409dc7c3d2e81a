"""The event feed for browsers: every event, in order, exactly once, for any number of clients."""

import asyncio
import socket
import threading
import time
from contextlib import suppress

import msgspec
import pytest

import corral
from corral.api import Corral
from corral.db.wakeups import SAFETY_POLL
from corral.domain.events.model import Event
from corral.http import feed, streams
from tests.support.home import wait_until
from tests.support.http_server import HttpServer, run_http_server


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def request_feed(http_server: HttpServer, query: str = "", last: str | None = None) -> bytes:
    """Return the request of a listener, whose response is read line by line."""
    lines = [f"GET /api/events{query} HTTP/1.1", "Host: 127.0.0.1", "Connection: close"]
    lines += [f"Authorization: Bearer {http_server.token}"]
    lines += [f"Last-Event-ID: {last}"] if last else []
    return "\r\n".join([*lines, "", ""]).encode()


class Browser:
    """A client on its own thread, like an EventSource."""

    def __init__(self, http_server: HttpServer, query: str = "", last: str | None = None) -> None:
        self.ids: list[str] = []
        self.subjects: list[str] = []
        self._heard = threading.Condition()
        self._ready = threading.Event()
        self._line = socket.create_connection(("127.0.0.1", http_server.port))
        self._line.sendall(request_feed(http_server, query, last))
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()
        assert self._ready.wait(60)

    def _listen(self) -> None:
        with self._line.makefile("rb") as result:
            for line in result:
                if line.startswith(b"retry: "):
                    self._ready.set()
                if line.startswith(b"id: "):
                    self.ids.append(line[4:].decode().strip())
                if line.startswith(b"data: "):
                    with self._heard:
                        self.subjects.append(msgspec.json.decode(line[6:])["subject"])
                        self._heard.notify_all()

    def wait_for(self, count: int, seconds: float = 60) -> list[str]:
        with self._heard:
            assert self._heard.wait_for(lambda: len(self.subjects) >= count, seconds), (
                f"{len(self.subjects)} of {count} events"
            )
        return self.subjects

    def ended(self, seconds: float = 60) -> bool:
        """Return whether the server closed the connection."""
        self._thread.join(seconds)
        closed = not self._thread.is_alive()
        self.close()
        return closed

    def close(self) -> None:
        with suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)
        self._thread.join(30)
        self._line.close()


def put(store: Corral, count: int) -> list[str]:
    return [store.mail.put("queue:q", n).id for n in range(count)]


def test_event_of_another_process_arrives_at_once(http_server: HttpServer, url: str) -> None:
    browser = Browser(http_server)
    with corral.open(url) as another:
        delays = []
        for _ in range(20):
            before = time.monotonic()
            count = len(browser.subjects)
            (id,) = put(another, 1)
            assert browser.wait_for(count + 1)[-1] == id
            delays.append(time.monotonic() - before)
    assert min(delays) < SAFETY_POLL / 2, "a commit wakes the feed, which does not poll"
    browser.close()


def test_reconnected_client_continues_after_the_last_event(
    http_server: HttpServer, store: Corral
) -> None:
    first = Browser(http_server)
    first_ids = put(store, 5)
    # On PostgreSQL, events committed just before may still come first.
    wait_until(lambda: first_ids[4] in first.subjects, "the client has received the letters")
    first.close()
    later_ids = put(store, 1_200)  # more than a page
    reconnected = Browser(http_server, last=first.ids[first.subjects.index(first_ids[2])])
    assert reconnected.wait_for(1_202) == first_ids[3:] + later_ids
    later = put(store, 3)
    assert reconnected.wait_for(1_205) == first_ids[3:] + later_ids + later
    assert len({*reconnected.ids}) == 1_205
    reconnected.close()


def test_client_can_name_the_cursor_to_follow_from(http_server: HttpServer, store: Corral) -> None:
    put(store, 2)
    cursor = store.events.after(limit=100).items[-1].cursor
    expected = put(store, 2)
    browser = Browser(http_server, query=f"?after={cursor}")
    assert browser.wait_for(2) == expected
    browser.close()


def test_events_can_be_filtered(http_server: HttpServer, store: Corral) -> None:
    agents = Browser(http_server, query="?kind=agent")
    store.agents.create("ada")
    put(store, 3)
    id = store.agents.create("ben").id
    assert agents.wait_for(2)[-1] == id
    single = Browser(http_server, query="?subject=let_2", last="0-0")
    assert single.wait_for(1) == ["let_2"]
    agents.close()
    single.close()


def test_invalid_cursor_is_rejected(http_server: HttpServer) -> None:
    with http_server.client() as client:
        assert client.get("/api/events?after=x").status_code == 400
        assert client.get("/api/events?colour=red").status_code == 400


def test_no_event_is_lost_between_history_and_live_feed(http_server: HttpServer, url: str) -> None:
    """A client connects while another process writes as fast as it can."""
    stop = threading.Event()
    expected_ids: list[str] = []

    def write() -> None:
        with corral.open(url) as another:
            while not stop.is_set():
                expected_ids.extend(put(another, 1))

    writer = threading.Thread(target=write)
    writer.start()
    browsers = []
    for _ in range(8):
        browsers.append(Browser(http_server, last="0-0"))
        time.sleep(0.02)
    stop.set()
    writer.join(30)
    expected = [event.subject for event in _all(http_server.store)]
    for browser in browsers:
        assert browser.wait_for(len(expected)) == expected
        assert len({*browser.ids}) == len(expected)
        browser.close()


def _all(store: Corral) -> list[Event]:
    result, cursor = [], None
    deadline = time.monotonic() + 60
    total = store.db.sql("SELECT count(*) FROM events").rows[0][0]
    while len(result) < total:  # PostgreSQL's feed may hold the last ones back for a moment
        page = store.events.after(cursor, limit=500)
        result += page.items
        cursor = page.next
        assert time.monotonic() < deadline
    return result


def test_client_that_does_not_read_is_disconnected_alone(
    store: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the other client reads within this time
    monkeypatch.setattr(streams, "SEND_TIMEOUT_SECONDS", 5.0)
    monkeypatch.setattr(feed, "MAX_QUEUED_BYTES", 256 * 1024)  # so that the other client lags, too
    with (
        run_http_server(store) as http_server,
        socket.create_connection(("127.0.0.1", http_server.port)) as idle_client,
        http_server.client() as client,
    ):
        idle_client.sendall(request_feed(http_server))
        assert idle_client.recv(12) == b"HTTP/1.1 200"
        browser = Browser(http_server)
        for n in range(300):  # more than the kernel buffers for a client that does not read
            with store.transaction() as tx:
                tx.emit("letter", "put", f"let_{n}", data={"text": "x" * 50_000})
        browser.wait_for(300)
        wait_until(
            lambda: "corral_feed_subscribers 1\n" in client.get("/metrics").text,
            "the idle client is disconnected",
        )
        browser.close()


def test_feed_of_a_revoked_token_ends(store: Corral, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "TOKEN_CHECK_SECONDS", 0.0)
    with run_http_server(store) as http_server:
        browser = Browser(http_server)
        store.tokens.revoke("tests")
        assert browser.ended()


def test_stopping_server_releases_its_listeners(store: Corral) -> None:
    with run_http_server(store) as http_server:
        browser = Browser(http_server)
    assert browser.ended()


def test_five_hundred_clients_get_every_event_in_order(http_server: HttpServer, url: str) -> None:
    """Each over a real connection, while another process writes."""
    count, events = 500, 100
    expected: list[str] = []

    def write() -> None:
        with corral.open(url) as another:
            expected.extend(put(another, events))

    async def listen(ready: asyncio.Semaphore) -> list[str]:
        reader, writer = await asyncio.open_connection("127.0.0.1", http_server.port)
        writer.write(request_feed(http_server))
        subjects: list[str] = []
        while b"retry" not in await reader.readline():
            pass
        ready.release()
        while len(subjects) < events:
            line = await reader.readline()
            assert line, "the server closed the connection"
            if line.startswith(b"data: "):
                subjects.append(msgspec.json.decode(line[6:])["subject"])
        writer.close()
        await writer.wait_closed()
        return subjects

    async def run_clients() -> list[list[str]]:
        ready = asyncio.Semaphore(0)
        tasks = [asyncio.create_task(listen(ready)) for _ in range(count)]
        for _ in range(count):
            await asyncio.wait_for(ready.acquire(), 120)
        await asyncio.to_thread(write)
        return await asyncio.wait_for(asyncio.gather(*tasks), 240)

    received = asyncio.run(run_clients())
    assert len(received) == count
    assert all(subjects == expected for subjects in received)
