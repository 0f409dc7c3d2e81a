"""Planted files in place of a SQLite store's locks, and a disk without space for them."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import corral
from corral.api import Corral
from corral.db import write_lock
from corral.db.write_lock import WriteLock
from corral.kernel.errors import StoreUnavailable
from tests.support.full_disk import fill
from tests.support.processes import Child

VICTIM = "a file of somebody"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    (tmp_path / "victim").write_text(VICTIM)
    return tmp_path / "victim"


def link(victim: Path, place: Path) -> None:
    place.symlink_to(victim)


def fifo(_: Path, place: Path) -> None:
    os.mkfifo(place)


def folder(_: Path, place: Path) -> None:
    place.mkdir()


def refused(store: Corral) -> StoreUnavailable:
    with pytest.raises(StoreUnavailable) as caught:
        store.mail.put("queue:work", "never")
    return caught.value


@pytest.mark.parametrize("name", ["corral.db-writers", "corral.db-writers-queue"])
@pytest.mark.parametrize("put", [link, fifo, folder])
def test_planted_lock_file_is_neither_written_nor_waited_for(
    tmp_path: Path, victim: Path, name: str, put: Callable[[Path, Path], None]
) -> None:
    place = tmp_path / name
    corral.open(tmp_path / "corral.db").close()
    place.unlink()
    put(victim, place)
    if (name, put) == ("corral.db-writers", fifo):
        return  # it can be locked like any file
    with corral.open(tmp_path / "corral.db") as store:
        error = refused(store)
        assert error.reason == "unwritable"
        assert "remove the object with that name" in error.message
        held = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            refused(store)
        assert len(os.listdir("/proc/self/fd")) == held, "files stay open"
        assert victim.read_text() == VICTIM
        if put is folder:
            place.rmdir()
        else:
            place.unlink()
        store.mail.put("queue:work", "after")


def write_to_the_sign(path: str) -> None:
    line = WriteLock(path)
    try:
        line.acquire()
    except StoreUnavailable:
        return
    door, _ = line._files or line._open()
    assert door.try_lock()
    door.unlock()


def test_sparse_copy_of_shared_memory_on_a_full_disk_kills_no_process(
    small_disk: Path,
) -> None:
    (small_disk / "store-writers").touch()
    (small_disk / "store-writers-queue").touch()
    os.truncate(small_disk / "store-writers-queue", 1)
    fill(small_disk / "ballast")
    with Child(lambda: write_to_the_sign(str(small_disk / "store"))) as child:
        child.result()


def test_process_interrupted_at_its_turn_releases_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with corral.open(tmp_path / "corral.db") as store:
        store.mail.put("queue:work", "before")
        lock = write_lock.flock

        def interrupted(descriptor: int, how: int) -> None:
            lock(descriptor, how)
            if how == write_lock.TRY_LOCK:
                raise KeyboardInterrupt

        monkeypatch.setattr(write_lock, "flock", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.mail.put("queue:work", "interrupted")
        monkeypatch.undo()
        other = WriteLock(f"{tmp_path}/corral.db")
        monkeypatch.setattr(write_lock, "MAX_WAIT", 0.1)
        other.acquire()
        other.close()
        store.mail.put("queue:work", "after")
        assert [letter.body for letter in store.mail.list().items] == ["before", "after"]


@pytest.mark.parametrize("size", [0, 1, 8, 15])
def test_truncated_shared_memory_kills_no_process_and_loses_nothing(
    tmp_path: Path, size: int
) -> None:
    path = tmp_path / "corral.db"

    def write_and_read() -> list[object]:
        with corral.open(path) as store:
            store.mail.put("queue:work", "before")
            os.truncate(tmp_path / "corral.db-writers-queue", size)
            store.mail.put("queue:work", "after")
            line: Any = getattr(store._database, "_write_lock")  # noqa: B009
            door, _ = line._files
            assert door.try_lock()
            door.unlock()
            store.now()
            return [letter.body for letter in store.mail.list().items]

    with Child(write_and_read) as child:
        assert child.result() == ["before", "after"]
