"""A house that is lived in, served."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

import corral
from corral.interfaces.web.pages import error_page, routes
from corral.library import Corral
from tests.support.lived_in import LivedIn
from tests.support.served import Served, serving


class House(NamedTuple):
    served: Served
    lived_in: LivedIn

    @property
    def store(self) -> Corral:
        return self.served.store


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def house(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[House]:
    """Nothing changes in it: what a test does, it does to things of its own."""
    folder = tmp_path_factory.mktemp("house")
    if request.param == "sqlite":
        url = f"sqlite:///{folder}/corral.db"
    else:
        server = request.getfixturevalue("postgres_server")
        template = request.getfixturevalue("postgres_template")
        url = server.new_database(template=template)
    with corral.open(url, actor="user:tester") as store:
        lived_in = LivedIn(store, folder)
        with serving(store, pages=routes(), error_page=error_page) as served:
            yield House(served, lived_in)
    if request.param == "postgres":
        server.drop_database(url)


@pytest.fixture
def served(store: Corral) -> Iterator[Served]:
    """The pages on an empty store."""
    with serving(store, pages=routes(), error_page=error_page) as running:
        yield running
