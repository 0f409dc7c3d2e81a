"""The stream of a run's output on the dashboard: its token and its share of the request limit."""

import threading
from collections.abc import Iterator
from functools import partial

import httpx
import pytest

from corral.api import Corral
from corral.http import app
from corral.http.middleware.concurrency import ConcurrencyMiddleware
from corral.web import terminal
from corral.web.pages import routes
from corral.web.terminal import TerminalEvent
from tests.support.http_server import HttpServer, run_http_server
from tests.support.run_factories import add_launch, add_run
from tests.support.threads import SECONDS


@pytest.fixture
def live_run(store: Corral) -> str:
    run = add_run(store, "running")
    add_launch(store, run)
    return run


def test_terminal_stream_of_a_revoked_token_ends(
    http_server: HttpServer, store: Corral, live_run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    revoked = threading.Event()

    def output_events(*_: object) -> Iterator[TerminalEvent]:
        yield TerminalEvent("output", b"before")
        assert revoked.wait(SECONDS)
        yield TerminalEvent("output", b"after")

    monkeypatch.setattr(terminal, "TOKEN_CHECK_SECONDS", 0.0)
    monkeypatch.setattr(terminal, "output_events", output_events)
    token = store.tokens.create("revoked").value
    with (
        http_server.client(token) as client,
        client.stream("GET", f"/runs/{live_run}/terminal") as response,
    ):
        lines = response.iter_lines()
        while next(lines) != "data: before":
            pass
        store.tokens.revoke("revoked")
        revoked.set()
        assert "data: after" not in list(lines)


def test_open_terminal_occupies_no_request_slot(
    store: Corral, live_run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = partial(ConcurrencyMiddleware, max_requests=1)
    monkeypatch.setattr(app, "ConcurrencyMiddleware", limited)
    with (
        run_http_server(store, pages=routes()) as http_server,
        http_server.client() as client,
        client.stream("GET", f"/runs/{live_run}/terminal") as response,
    ):
        assert response.status_code == 200
        assert httpx.get(f"{http_server.url}/api/agents", headers=client.headers).status_code == 200
