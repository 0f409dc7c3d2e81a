"""Several handles on one SQLite file in one process, beside another SQLite library.

POSIX drops all locks of a process on a file when the process closes any descriptor of it. Without
those locks, an older SQLite in another process assumes that it is alone and deletes the WAL.
"""

import gc
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

import corral
from corral.adapters import attachments
from corral.adapters.channels.contract import StoredFile
from corral.adapters.channels.http_client import PlatformError, read_stored_file
from corral.adapters.output.regular_file import open_regular_file
from corral.api import Corral
from corral.api.doctor import examine
from corral.kernel import open_files
from corral.kernel.clock import ManualClock
from corral.kernel.errors import Invalid, Refused, StoreUnavailable
from tests.support.errors import because
from tests.support.invariants import check_store
from tests.support.processes import Child, Signal

READ = "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute(sys.argv[2]).fetchone()[0])"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "corral.db"
    with corral.open(path) as store:
        store.mail.put("agent:ada", "first")
    return path


def count_with_another_library(path: Path) -> int:
    """Count the letters with Python's sqlite3, in a process that then closes the file."""
    command = [sys.executable, "-c", READ, str(path), "SELECT count(*) FROM letters"]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def list_bodies(path: Path) -> list[object]:
    with corral.open(path) as store:
        check_store(store)
        return [letter.body for letter in store.mail.list().items]


OTHER_USES: dict[str, Callable[[Corral, Path], object]] = {
    "open": lambda store, path: corral.open(path).close(),
    "open without create": lambda store, path: corral.open(path, create=False).close(),
    "doctor": lambda store, path: examine(f"sqlite:///{path}"),
    "verify": lambda store, path: store.db.verify(),
    "check": lambda store, path: store.db.check(),
    "backup": lambda store, path: store.db.backup(path.with_name("copy.db")),
    "restore its own file": lambda store, path: store.db.restore(path),
}


@pytest.mark.parametrize("use", OTHER_USES)
def test_locks_survive_other_uses_of_the_file_in_the_process(file: Path, use: str) -> None:
    with corral.open(file) as store:
        before = count_held_locks(file)
        OTHER_USES[use](store, file)
        assert count_held_locks(file) == before
        count_with_another_library(file)
        store.mail.put("agent:ada", "after")
    assert list_bodies(file)[-1] == "after"


def count_held_locks(path: Path) -> int:
    """Return the number of POSIX locks that this process holds on a file."""
    inode, process = str(path.stat().st_ino), str(os.getpid())
    locks = map(str.split, Path("/proc/locks").read_text().splitlines())
    return sum(
        fields[1] == "POSIX" and fields[4] == process and fields[5].rpartition(":")[2] == inode
        for fields in locks
    )


def test_letters_survive_another_library_reading_beside_two_handles(file: Path) -> None:
    with corral.open(file) as first, corral.open(file) as second:
        for number in range(20):
            (first, second)[number % 2].mail.put("agent:ada", number)
            if number % 5 == 0:
                assert count_with_another_library(file) == number + 2
    assert list_bodies(file) == ["first", *range(20)]


@pytest.mark.skipif(shutil.which("sqlite3") is None, reason="no sqlite3 shell")
def test_sqlite3_shell_does_not_delete_the_wal_of_two_handles(file: Path) -> None:
    with corral.open(file), corral.open(file) as two:
        shell = ["sqlite3", str(file), "SELECT count(*) FROM letters"]
        subprocess.run(shell, check=True, capture_output=True)
        assert file.with_name("corral.db-wal").exists()
        two.mail.put("agent:ada", "second")
    assert list_bodies(file) == ["first", "second"]


# -- one set of connections ----------------------------------------------------------------------


def other_names(file: Path) -> dict[str, Path]:
    (file.parent / "folder").mkdir()
    (file.parent / "link").symlink_to(file.parent)
    file.with_name("link.db").symlink_to(file)
    os.link(file, file.with_name("hard.db"))
    return {
        "dots": file.parent / "folder" / ".." / file.name,
        "linked folder": file.parent / "link" / file.name,
        "linked file": file.with_name("link.db"),
        "hard link": file.with_name("hard.db"),
    }


@pytest.mark.parametrize("name", ["dots", "linked folder", "linked file", "hard link"])
def test_handles_under_any_name_share_connections_and_side_files(file: Path, name: str) -> None:
    with corral.open(file) as first, corral.open(other_names(file)[name]) as second:
        first.mail.put("agent:ada", "one")
        second.mail.put("agent:ada", "two")
        connections = [c for c in apsw.connections() if str(file.parent) in c.filename]
        assert len(connections) <= 3, "one writer and one reader for each handle"
        results = {path.name for path in file.parent.rglob("*-writers*")}
        assert results == {"corral.db-writers", "corral.db-writers-queue"}
    file.with_name("hard.db").unlink()
    assert list_bodies(file) == ["first", "one", "two"]


def test_hard_link_is_rejected_in_another_process(file: Path) -> None:
    """SQLite would name its WAL after the other path, and lose this process's writes."""
    program = "import corral, pathlib, sys; s = corral.open(pathlib.Path(sys.argv[1]));"
    program += "s.mail.put('agent:ada', 'other'); s.close()"
    hard = file.with_name("hard.db")
    with corral.open(file) as store:
        os.link(file, hard)
        result = subprocess.run(
            [sys.executable, "-c", program, str(hard)], capture_output=True, text=True, check=False
        )
        assert "has 2 names (hard links)" in result.stderr
        store.mail.put("agent:ada", "second")
    with pytest.raises(StoreUnavailable, check=because("hard_linked")) as caught:
        corral.open(file)
    assert caught.value.reason == "hard_linked"
    hard.unlink()
    assert list_bodies(file) == ["first", "second"]


def test_unclosed_handles_leave_no_file_open(file: Path) -> None:
    def count_open_files() -> int:
        gc.collect()
        return len(os.listdir("/dev/fd"))

    corral.open(file).mail.put("agent:ada", "warm up")
    before = count_open_files()
    for _ in range(5):
        corral.open(file).mail.put("agent:ada", "second")
    assert count_open_files() == before


def test_last_handle_closes_connections_and_removes_the_wal(file: Path) -> None:
    first, second = corral.open(file), corral.open(file)
    second.mail.put("agent:ada", "second")
    first.close()
    first.close()
    assert file.with_name("corral.db-wal").exists()
    second.mail.put("agent:ada", "third")
    second.close()
    assert not file.with_name("corral.db-wal").exists()
    assert not [c for c in apsw.connections() if c.filename == str(file)]
    assert list_bodies(file) == ["first", "second", "third"]


def test_each_handle_keeps_its_actor_and_clock_in_shared_commits(file: Path) -> None:
    clocks = {f"user:{number}": ManualClock(1_800_000_000_000 + number) for number in range(8)}
    stores = [corral.open(file, actor=actor, clock=clock) for actor, clock in clocks.items()]
    start = threading.Barrier(len(stores))

    def put(store: Corral) -> None:
        start.wait()
        for _ in range(20):
            store.mail.put("agent:ada", store._database.actor)

    threads = [threading.Thread(target=put, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = stores[0].events.after("0-0", limit=200).items
    for store in stores:
        store.close()
    puts = [event for event in events if event.actor in clocks]
    assert len(puts) == 160
    assert all(event.at == clocks[event.actor].now() for event in puts)


def test_nested_write_of_another_handle_is_rejected_at_once(file: Path) -> None:
    with corral.open(file) as first, corral.open(file) as second:
        with first.transaction(), pytest.raises(RuntimeError, match="open transaction"):
            second.mail.put("agent:ada", "inside")
        second.mail.put("agent:ada", "after")


def test_unclosed_handle_does_not_keep_the_file_open(file: Path) -> None:
    store = corral.open(file)
    store.mail.put("agent:ada", "second")
    del store
    import gc

    gc.collect()
    assert not open_files.IN_USE
    assert list_bodies(file) == ["first", "second"]


# -- forks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dots", "linked folder", "linked file", "hard link"])
def test_forked_child_is_refused_the_file_under_any_name(file: Path, name: str) -> None:
    others: dict[str, Path] = {}

    def open_by_another_name() -> str:
        try:
            corral.open(others[name]).close()
        except RuntimeError as error:
            return str(error)
        return "not rejected"

    with corral.open(file):
        others |= other_names(file)
        with Child(open_by_another_name, carrying=True) as child:
            assert "process that forked this one" in child.result()


def test_connections_collected_in_a_child_leave_the_wal_alone(file: Path) -> None:
    """The child is the last process with the file open, and a crashed writer left its WAL."""
    closed, crashed = Signal(), Signal()
    stores = [corral.open(file)]

    def collect() -> bool:
        import gc

        closed.send()
        crashed.wait()
        stores.clear()
        gc.collect()
        return file.with_name("corral.db-wal").exists()

    stores[0].mail.put("agent:ada", "second")
    with Child(collect, carrying=True) as child:
        closed.wait()
        stores[0].close()
        crash = "import corral, os, pathlib, sys; s = corral.open(pathlib.Path(sys.argv[1]));"
        crash += "s.mail.put('agent:ada', 'third'); os._exit(0)"
        subprocess.run([sys.executable, "-c", crash, str(file)], check=True)
        crashed.send()
        assert child.result(), "the WAL still exists"
    assert list_bodies(file) == ["first", "second", "third"]


# -- files that are moved, deleted or replaced -----------------------------------------------------


def move(file: Path) -> None:
    file.rename(file.with_name("moved.db"))


def delete(file: Path) -> None:
    file.unlink()


def delete_all(file: Path) -> None:
    for path in file.parent.glob("corral.db*"):
        path.unlink()


def replace(file: Path) -> None:
    shutil.copyfile(file, file.with_name("new.db"))
    file.with_name("new.db").rename(file)


def move_folder(file: Path) -> None:
    file.parent.rename(file.parent.with_name("elsewhere"))
    file.parent.mkdir()


def delete_wal(file: Path) -> None:
    file.with_name("corral.db-wal").unlink()


def replace_wal(file: Path) -> None:
    wal = file.with_name("corral.db-wal")
    shutil.copyfile(wal, file.with_name("new-wal"))
    file.with_name("new-wal").rename(wal)


@pytest.mark.parametrize(
    "change", [move, delete, delete_all, replace, move_folder, delete_wal, replace_wal]
)
@pytest.mark.parametrize("writes", ["before", "not before"])
def test_write_after_the_file_was_replaced_is_rejected(
    tmp_path: Path, change: Callable[[Path], None], writes: str
) -> None:
    file = tmp_path / "folder" / "corral.db"
    corral.open(file).close()
    with corral.open(file) as store, corral.open(file) as other:
        if writes == "before":
            store.mail.put("agent:ada", "accepted")
        change(file)
        for handle in (store, other):
            with pytest.raises(StoreUnavailable) as caught:
                handle.mail.put("agent:ada", "refused")
            assert caught.value.reason == "replaced"
            with pytest.raises(StoreUnavailable):
                handle.mail.list()
            with pytest.raises(StoreUnavailable), handle.transaction():
                pass


def test_closing_a_replaced_store_leaves_the_new_wal_alone(file: Path) -> None:
    old = corral.open(file)
    old.mail.put("agent:ada", "old")
    delete_all(file)
    new = corral.open(file)
    new.mail.put("agent:ada", "new")
    with pytest.raises(StoreUnavailable):
        old.mail.put("agent:ada", "refused")
    old.close()
    assert file.with_name("corral.db-wal").exists()
    new.mail.put("agent:ada", "newer")
    new.close()
    assert list_bodies(file) == ["new", "newer"]


def test_store_without_its_wal_can_be_reopened_in_the_process(file: Path) -> None:
    store = corral.open(file)
    store.mail.put("agent:ada", "second")
    delete_wal(file)
    with pytest.raises(StoreUnavailable):
        store.mail.put("agent:ada", "refused")
    with corral.open(file) as reopened:
        reopened.mail.put("agent:ada", "third")
    store.close()
    assert list_bodies(file)[-1] == "third"


def test_every_thread_of_a_lost_batch_gets_an_error(file: Path) -> None:
    with corral.open(file) as store:
        store.mail.put("agent:ada", "accepted")
        move(file)
        results: list[str] = []
        start = threading.Barrier(8)

        def put() -> None:
            start.wait()
            try:
                store.mail.put("agent:ada", "refused")
            except StoreUnavailable as error:
                results.append(error.reason)

        threads = [threading.Thread(target=put) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == ["replaced"] * 8


def test_file_that_is_not_regular_is_rejected(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreUnavailable) as caught:
        corral.open(tmp_path / "pipe")
    assert caught.value.reason == "unwritable"


def test_open_store_is_not_read_as_a_database_of_another_tool(file: Path) -> None:
    with corral.open(file) as store:
        before = count_held_locks(file)
        with pytest.raises(Refused, check=because("unreadable")):
            store.imports.import_database("flightdeck", file)
        assert count_held_locks(file) == before


def test_external_paths_to_the_store_are_not_opened(file: Path) -> None:
    with corral.open(file) as store:
        store.mail.put("agent:ada", "second")
        before, never = count_held_locks(file), file.parent / "elsewhere"
        for name in ("corral.db", "corral.db-wal", "corral.db-shm"):
            with pytest.raises(OSError, match="is a Corral store"):
                open_regular_file(file.with_name(name))
            with pytest.raises(PlatformError):
                read_stored_file(StoredFile(name, str(file.with_name(name)), 1))
            with pytest.raises(Invalid):
                attachments.read_attachment(
                    name, [str(file.parent)], max_bytes=1_000_000, forbidden_folder=never
                )
        assert count_held_locks(file) == before
    os.close(open_regular_file(file))
