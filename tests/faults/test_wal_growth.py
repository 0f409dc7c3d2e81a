"""A reader stopped inside its transaction: the WAL stays bounded, and doctor names the reader."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import corral
from corral.api.doctor import examine
from corral.db import sqlite_wal
from corral.db.statement import Statement
from corral.db.tx import Tx
from corral.kernel.errors import StoreUnavailable
from corral.kernel.process_state import is_stopped
from tests.support.home import wait_until
from tests.support.processes import Child, Signal

BODY = "x" * 10_000


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sqlite_wal, "WARN_BYTES", 300_000)
    monkeypatch.setattr(sqlite_wal, "MAX_BYTES", 1_000_000)
    monkeypatch.setattr(sqlite_wal, "MAX_BYTES_FOR_LIVE_READERS", 4_000_000)
    monkeypatch.setattr(sqlite_wal, "CHECK_INTERVAL", 4)
    path = tmp_path / "corral.db"
    with corral.open(path) as store:
        store.mail.put("queue:work", "first")
    return path


@contextmanager
def open_reader(path: Path, *, empty_wal: bool = False) -> Iterator["Child[None]"]:
    """Start a process with an open read transaction; it runs until killed."""
    reading = Signal()

    def read_and_pause(tx: Tx) -> None:
        tx.run(Statement("SELECT count(*) FROM letters"))
        reading.send()
        signal.pause()

    def read() -> None:
        with corral.open(path) as store:
            if not empty_wal:
                store.mail.put("queue:work", "first")
            store._database.read(read_and_pause)

    with Child(read) as child:
        reading.wait()
        yield child


def put_until_rejected(path: Path, max_puts: int) -> tuple[StoreUnavailable, int]:
    with corral.open(path) as store:
        for _ in range(max_puts):
            try:
                store.mail.put("queue:work", BODY)
            except StoreUnavailable as error:
                return error, sqlite_wal.measure_wal(str(path))
    raise AssertionError(f"the WAL grew to {sqlite_wal.measure_wal(str(path)):,} bytes")


@pytest.mark.parametrize("empty_wal", [False, True])
def test_stopped_reader_bounds_the_wal_and_is_named(file: Path, empty_wal: bool) -> None:
    with open_reader(file, empty_wal=empty_wal) as child:
        os.kill(child.pid, signal.SIGSTOP)
        wait_until(lambda: is_stopped(child.pid), "the reader is stopped")
        error, size = put_until_rejected(file, 500)
        assert error.reason == "log_full"
        assert error.details["holder"] == child.pid
        assert size < 1_500_000
        reported = [item for item in examine(f"sqlite:///{file}") if item.check == "log"]
        assert [item.state for item in reported] == ["warning"]
        assert str(child.pid) in reported[0].message
        with corral.open(file) as store:
            accepted = len(store.mail.list(limit=200).items)
            os.kill(child.pid, signal.SIGCONT)
            child.kill()
            store.mail.put("queue:work", "after")
            assert len(store.mail.list(limit=200).items) == accepted + 1
            assert sqlite_wal.measure_wal(str(file)) < 300_000
    assert not [item for item in examine(f"sqlite:///{file}") if item.check == "log"]


def test_running_reader_gets_a_larger_limit_than_a_stopped_one(file: Path) -> None:
    with open_reader(file):
        error, size = put_until_rejected(file, 900)
        assert error.reason == "log_full"
        assert 4_000_000 < size < 5_000_000


def test_large_transaction_without_readers_is_accepted(file: Path) -> None:
    from corral.domain.mail import ops as mail

    with corral.open(file) as store:
        with store.transaction() as tx:
            for _ in range(300):
                mail.put(tx, "queue:work", BODY)
        for _ in range(10):
            store.mail.put("queue:work", "after")
