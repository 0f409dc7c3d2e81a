"""A PostgreSQL client that is stopped inside a transaction releases its row locks in time."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import corral
from corral.api import Corral
from corral.db.statement import Statement
from corral.db.tx import Tx
from corral.kernel.errors import StoreUnavailable
from tests.support.postgres_server import PostgresServer
from tests.support.processes import Child, Signal
from tests.support.store import read, write

LOCK_PROJECT = Statement("UPDATE projects SET name = name WHERE id = :id")


@pytest.fixture
def short_limit_url(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    """A store whose server ends idle transactions quickly instead of after 30 s."""
    url = postgres_server.new_database(template=postgres_template)
    database = url.rpartition("/")[2]
    postgres_server.run_sql(
        f"ALTER DATABASE {database} SET idle_in_transaction_session_timeout = '200ms'"
    )
    yield url
    postgres_server.drop_database(url)


def register_project(folder: Path, url: str) -> str:
    with corral.open(url) as store:
        return store.projects.register(str(folder)).id


def stop_inside_transaction(tx: Tx, id: str, stopping: Signal) -> None:
    tx.run(LOCK_PROJECT, id=id)
    stopping.send()
    os.kill(os.getpid(), signal.SIGSTOP)


def test_lock_of_a_stopped_client_is_released(short_limit_url: str, tmp_path: Path) -> None:
    id = register_project(tmp_path, short_limit_url)
    stopping = Signal()
    attempts = []

    def archive() -> tuple[str, int]:
        def work(tx: Tx) -> None:
            attempts.append(1)
            if len(attempts) == 1:
                stop_inside_transaction(tx, id, stopping)
            tx.run(LOCK_PROJECT, id=id)
            tx.emit("project", "touch", id)

        with corral.open(short_limit_url) as store:
            write(store, work)
        return "written", len(attempts)

    with Child(archive) as stopped:
        stopping.wait()
        with corral.open(short_limit_url) as store:
            store.projects.archive(id)  # blocks until the server ends the stopped transaction
        os.kill(stopped.pid, signal.SIGCONT)
        assert stopped.result() == ("written", 2), "the interrupted operation is run again"


def test_open_transaction_ended_by_the_server_is_reported(
    short_limit_url: str, tmp_path: Path
) -> None:
    id = register_project(tmp_path, short_limit_url)
    stopping = Signal()

    def write_and_stop() -> str:
        with corral.open(short_limit_url) as store:
            try:
                with store.transaction() as tx:
                    stop_inside_transaction(tx, id, stopping)
            except StoreUnavailable as error:
                return str(error.reason)
        return "committed"

    with Child(write_and_stop) as stopped:
        stopping.wait()
        with corral.open(short_limit_url) as store:
            store.projects.archive(id)
        os.kill(stopped.pid, signal.SIGCONT)
        assert stopped.result() == "idle_transaction"


def test_default_limit_is_set_where_the_server_has_none(
    postgres_server: PostgresServer, postgres_template: str
) -> None:
    url = postgres_server.new_database(template=postgres_template)
    with corral.open(url) as store:
        assert get_idle_limit(store) == "30s"
    postgres_server.drop_database(url)


def test_limit_of_the_server_is_respected(short_limit_url: str) -> None:
    with corral.open(short_limit_url) as store:
        assert get_idle_limit(store) == "200ms"


def get_idle_limit(store: Corral) -> str:
    query = Statement("SELECT current_setting('idle_in_transaction_session_timeout')")
    return str(read(store, lambda tx: tx.value(query), mode="one"))
