"""The daemon process itself, called within the test."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from corral import serve
from corral.api import Corral, open_service


@pytest.fixture
def restored_signals() -> Iterator[None]:
    """Restore the signal handlers that a daemon replaces."""
    numbers = (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)
    handlers = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


class LostNode(serve.LoopManager):
    """Loops that give up as soon as they have started."""

    def __init__(self, store: Corral, *, give_up: Callable[[str], None], **options: object) -> None:
        super().__init__(store, loops=[], give_up=give_up)
        self._report_loss = give_up

    def begin(self) -> list[object]:
        results = super().begin()
        self._report_loss("the node is gone")
        return results


@pytest.mark.usefixtures("restored_signals")
def test_daemon_that_gives_up_during_start_does_not_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[object] = []

    async def record_serve(server: serve.Server, sockets: object) -> None:
        served.append(sockets)

    monkeypatch.setenv("CORRAL_HOME", str(tmp_path))
    monkeypatch.setattr(serve, "LoopManager", LostNode)
    monkeypatch.setattr(serve.Server, "serve", record_serve)
    with open_service(f"sqlite:///{tmp_path}/corral.db", actor="daemon") as store:
        server = serve.DaemonServer(serve._options(["--port", "0"]), store)
        assert server.run() == 5
    assert served == []
