"""Unreachable stores: invalid URLs and servers that do not respond."""

import socket

import pytest

import corral
from corral.db import postgres_pool
from corral.kernel.errors import Invalid, StoreUnavailable
from tests.support.errors import because
from tests.support.postgres_server import PostgresServer, reserve_port
from tests.support.threads import Racer


@pytest.mark.parametrize(
    "url",
    [
        "corral.db",
        "/tmp/corral.db",
        "sqlite:",
        "sqlite:corral.db",
        "sqlite://",
        "sqlite:///",
        "sqlite://corral.db",
        "sqlite:///with\0nul.db",
        "mysql://localhost/corral",
        "http://localhost/store",
        "postgresql:",
        "postgresql:corral",
        "://",
        "postgresql://localhost/corral?nonsense=1",
    ],
)
def test_invalid_store_url_is_rejected_with_the_right_spelling(url: str) -> None:
    with pytest.raises(Invalid, check=because("bad_url")):
        corral.open(url)


@pytest.fixture(autouse=True)
def _long_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A blocked open fails by the timeout of its thread."""
    monkeypatch.setattr(postgres_pool, "MAX_SERVER_WAIT", 3_600.0)


def open_unavailable(url: str, reason: str = "unreachable") -> StoreUnavailable:
    with pytest.raises(StoreUnavailable) as caught:
        Racer(lambda: corral.open(url)).result()
    assert caught.value.reason == reason
    return caught.value


def test_stopped_server_is_reported_as_unreachable_at_once() -> None:
    with reserve_port() as unused:
        port = unused.getsockname()[1]
        error = open_unavailable(f"postgresql://ada:secret@127.0.0.1:{port}/corral")
    assert "Check that the server runs" in error.message
    assert "secret" not in f"{error.message} {error.details} {error.__cause__}"


def test_missing_database_is_reported(postgres_server: PostgresServer) -> None:
    assert "nowhere" in open_unavailable(postgres_server.url("nowhere"), "missing").message


def test_server_of_another_kind_is_reported_as_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        # The kernel accepts the connection; no response follows.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(postgres_pool, "CONNECT_TIMEOUT", 2)  # libpq's minimum
            open_unavailable(f"postgresql://ada@127.0.0.1:{port}/corral")


def test_invalid_port_is_reported_without_a_traceback() -> None:
    with pytest.raises((Invalid, StoreUnavailable)):
        corral.open("postgresql://localhost:many/corral")
