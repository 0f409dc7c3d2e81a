"""A house that is lived in, served."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

import corral
from corral.api import Corral
from corral.web.pages import error_page, routes
from tests.support.http_server import HttpServer, serving
from tests.support.postgres_server import PostgresServer
from tests.support.sample_store import SampleStore


class House(NamedTuple):
    served: HttpServer
    sample: SampleStore

    @property
    def store(self) -> Corral:
        return self.served.store


@contextmanager
def living(url: str, folder: Path) -> Iterator[House]:
    with corral.open(url, actor="user:tester") as store:
        sample = SampleStore(store, folder)
        with serving(store, pages=routes(), error_page=error_page) as served:
            yield House(served, sample)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A served store with content, on SQLite. A test changes only what it made itself."""
    folder = tmp_path_factory.mktemp("house")
    with living(f"sqlite:///{folder}/corral.db", folder) as house:
        yield house


@pytest.fixture
def house_on_postgresql(
    postgres_server: PostgresServer, postgres_template: str, tmp_path: Path
) -> Iterator[House]:
    url = postgres_server.new_database(template=postgres_template)
    with living(url, tmp_path) as house:
        yield house
    postgres_server.drop_database(url)


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> str:
    """SQLite: pages call operations, which tests/domain tests on both engines.

    A test that runs statements of many pages names both engines.
    """
    return str(getattr(request, "param", "sqlite"))


@pytest.fixture
def served(store: Corral) -> Iterator[HttpServer]:
    """The pages on an empty store."""
    with serving(store, pages=routes(), error_page=error_page) as running:
        yield running
