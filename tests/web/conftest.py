"""Fixtures: the dashboard on a store with sample content and on an empty store."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

import corral
from corral.api import Corral
from corral.web.pages import error_page, routes
from tests.support.http_server import HttpServer, run_http_server
from tests.support.postgres_server import PostgresServer
from tests.support.sample_store import SampleStore


class SampleSite(NamedTuple):
    http_server: HttpServer
    sample: SampleStore

    @property
    def store(self) -> Corral:
        return self.http_server.store


@contextmanager
def serve_sample(url: str, folder: Path) -> Iterator[SampleSite]:
    with corral.open(url, actor="user:tester") as store:
        sample = SampleStore(store, folder)
        with run_http_server(store, pages=routes(), error_page=error_page) as http_server:
            yield SampleSite(http_server, sample)


@pytest.fixture(autouse=True)
def _wait_for_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every action finish before its response: on a busy machine one may take seconds."""
    monkeypatch.setattr("corral.web.background.WAIT_SECONDS", threading.TIMEOUT_MAX)


@pytest.fixture(scope="module")
def sample_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SampleSite]:
    """A served store with sample content, on SQLite. A test changes only its own records."""
    folder = tmp_path_factory.mktemp("site")
    with serve_sample(f"sqlite:///{folder}/corral.db", folder) as sample_site:
        yield sample_site


@pytest.fixture
def sample_site_on_postgresql(
    postgres_server: PostgresServer, postgres_template: str, tmp_path: Path
) -> Iterator[SampleSite]:
    url = postgres_server.new_database(template=postgres_template)
    with serve_sample(url, tmp_path) as sample_site:
        yield sample_site
    postgres_server.drop_database(url)


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> str:
    """SQLite: pages call operations, which tests/domain tests on both engines.

    A test that runs statements of many pages names both engines.
    """
    return str(getattr(request, "param", "sqlite"))


@pytest.fixture
def http_server(store: Corral) -> Iterator[HttpServer]:
    """The pages on an empty store."""
    with run_http_server(store, pages=routes(), error_page=error_page) as running:
        yield running
