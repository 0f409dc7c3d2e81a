"""Fixtures of the tests of the command line, the hooks, the HTTP API and MCP."""

from collections.abc import Iterator

import pytest

from corral.api import Corral
from tests.support.cli_runner import Cli
from tests.support.http_server import HttpServer, run_http_server


@pytest.fixture
def engine() -> str:
    """SQLite: no interface depends on the engine, and every operation is tested on both.

    Modules that call many concepts, and the feed, still run on both.
    """
    return "sqlite"


@pytest.fixture
def cli(url: str, capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line on a store."""
    return Cli(capsys, url)


@pytest.fixture
def home_cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line on the user's own store, in the test's home."""
    return Cli(capsys)


@pytest.fixture
def http_server(store: Corral) -> Iterator[HttpServer]:
    """The HTTP API of the store, without pages."""
    with run_http_server(store) as running:
        yield running
