from collections.abc import Iterator

import pytest

import corral
from tests.support.postgres_server import PostgresServer


@pytest.fixture(scope="package")
def own_server(postgres_server: PostgresServer) -> Iterator[PostgresServer]:
    """A server for tests that stop it. It keeps accepted writes when it is killed.

    It uses the shared server's fixture only to be skipped with its reason if PostgreSQL is missing.
    """
    server = PostgresServer(durable=True)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def own_url(own_server: PostgresServer) -> Iterator[str]:
    """The URL of a store on that server, which is started again after the test."""
    url = own_server.new_database()
    corral.open(url).close()
    yield url
    if own_server._process is None:
        own_server.start()
    own_server.drop_database(url)
