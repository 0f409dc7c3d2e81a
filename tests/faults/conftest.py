from collections.abc import Iterator

import pytest

import corral
from tests.support.postgres_server import PostgresServer


@pytest.fixture(scope="package")
def own_server(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """A server for tests that stop it. It keeps what it accepted also when it is killed.

    It asks for the shared one only because that one says why, when there is no PostgreSQL here.
    """
    server = PostgresServer(durable=True)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def own_url(own_server: PostgresServer) -> Iterator[str]:
    """A store of its own there. The next test finds the server up, whatever this one does to it."""
    url = own_server.new_database()
    corral.open(url).close()
    yield url
    if own_server._process is None:
        own_server.start()
    own_server.drop_database(url)
