"""The HTTP API while its PostgreSQL server restarts."""

import signal
import threading

import pytest

import corral
from corral.api import Corral
from corral.db import postgres_pool
from corral.kernel.clock import HOUR
from tests.support.home import wait_until
from tests.support.http_server import run_http_server
from tests.support.postgres_server import PostgresServer


class BackgroundWriter:
    """Puts letters through the API and keeps the ids of those accepted."""

    def __init__(self, store: Corral) -> None:
        self._store = store
        self._stop = threading.Event()
        self.accepted: list[str] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.accepted.append(self._store.mail.put("queue:q", len(self.accepted)).id)

    def wait_for(self, count: int) -> None:
        wait_until(lambda: len(self.accepted) >= count, "the writer continues")

    def end(self) -> list[str]:
        self._stop.set()
        self._thread.join()
        return self.accepted


def test_server_restart_loses_no_request_and_no_event(
    own_server: PostgresServer, own_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients keep sending during the restart. Accepted letters are stored and in the feed."""
    monkeypatch.setattr(postgres_pool, "MAX_SERVER_WAIT", 3_600.0)
    with (
        corral.open(own_url) as store,
        run_http_server(store) as http_server,
        corral.open(http_server.url, token=http_server.token) as remote,
    ):
        events = remote.events.follow("0-0", timeout_ms=HOUR)
        letters = (event.subject for event in events if event.kind == "letter")
        writing = BackgroundWriter(remote)
        received = [next(letters)]
        for how in (signal.SIGINT, signal.SIGQUIT):
            before = len(writing.accepted)
            own_server.stop(how)
            own_server.start()
            writing.wait_for(before + 10)
        accepted = writing.end()
        received += [next(letters) for _ in accepted[1:]]
        events.close()
        assert len({*accepted}) == len(accepted)
        assert received == accepted
