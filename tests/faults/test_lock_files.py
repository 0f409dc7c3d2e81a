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

VICTIM = "a file of another user"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    (tmp_path / "victim").write_text(VICTIM)
    return tmp_path / "victim"


def plant_symlink(victim: Path, path: Path) -> None:
    path.symlink_to(victim)


def plant_fifo(_: Path, path: Path) -> None:
    os.mkfifo(path)


def plant_folder(_: Path, path: Path) -> None:
    path.mkdir()


def put_and_fail(store: Corral) -> StoreUnavailable:
    with pytest.raises(StoreUnavailable) as caught:
        store.mail.put("queue:work", "never")
    return caught.value


# A FIFO in place of `corral.db-writers` is missing here: it can be locked like any file.
@pytest.mark.parametrize(
    ("name", "plant"),
    [
        ("corral.db-writers", plant_symlink),
        ("corral.db-writers", plant_folder),
        ("corral.db-writers-queue", plant_symlink),
        ("corral.db-writers-queue", plant_fifo),
        ("corral.db-writers-queue", plant_folder),
    ],
)
def test_planted_lock_file_is_neither_written_nor_waited_for(
    tmp_path: Path, victim: Path, name: str, plant: Callable[[Path, Path], None]
) -> None:
    path = tmp_path / name
    corral.open(tmp_path / "corral.db").close()
    path.unlink()
    plant(victim, path)
    with corral.open(tmp_path / "corral.db") as store:
        error = put_and_fail(store)
        assert error.reason == "unwritable"
        assert "remove the object with that name" in error.message
        open_files = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            put_and_fail(store)
        assert len(os.listdir("/proc/self/fd")) == open_files, "files stay open"
        assert victim.read_text() == VICTIM
        if plant is plant_folder:
            path.rmdir()
        else:
            path.unlink()
        store.mail.put("queue:work", "after")


def acquire_write_lock(path: str) -> None:
    lock = WriteLock(path)
    try:
        lock.acquire()
    except StoreUnavailable:
        return
    queue_lock, _ = lock._files or lock._open()
    assert queue_lock.try_lock()
    queue_lock.unlock()


def test_sparse_copy_of_shared_memory_on_a_full_disk_kills_no_process(
    small_disk: Path,
) -> None:
    (small_disk / "store-writers").touch()
    (small_disk / "store-writers-queue").touch()
    os.truncate(small_disk / "store-writers-queue", 1)
    fill(small_disk / "ballast")
    with Child(lambda: acquire_write_lock(str(small_disk / "store"))) as child:
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
            lock: Any = getattr(store._database, "_write_lock")  # noqa: B009
            queue_lock, _ = lock._files
            assert queue_lock.try_lock()
            queue_lock.unlock()
            store.now()
            return [letter.body for letter in store.mail.list().items]

    with Child(write_and_read) as child:
        assert child.result() == ["before", "after"]
