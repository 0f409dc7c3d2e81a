"""Other users of the same file: programs without our locks, other machines, forked children."""

import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import apsw
import pytest

import corral
from corral.api import Corral
from corral.db import filesystem, sqlite_connection_set
from corral.domain.mail import ops as mail
from corral.kernel.errors import StoreUnavailable
from tests.support.errors import because
from tests.support.invariants import check_store
from tests.support.processes import Child, Signal


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "corral.db"
    with corral.open(path) as store:
        store.mail.put("agent:ada", "hello")
    return path


# -- another program ----------------------------------------------------------------------------


def test_program_that_holds_the_file_is_reported_after_a_timeout(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_connection_set, "BUSY_MS", 100)
    with corral.open(file) as store:
        browser = apsw.Connection(str(file))
        browser.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreUnavailable, check=because("locked")) as caught:
            store.mail.put("agent:ada", "blocked")
        assert caught.value.reason == "locked"
        assert len(store.mail.list().items) == 1, "reads continue"
        browser.execute("ROLLBACK")
        browser.close()
        store.mail.put("agent:ada", "after")
        assert [letter.body for letter in store.mail.list().items] == ["hello", "after"]


def test_program_that_holds_the_file_briefly_is_waited_for(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_connection_set, "BUSY_MS", 3_600_000)
    held = Signal()

    def hold_briefly() -> None:
        browser = apsw.Connection(str(file))
        browser.set_busy_timeout(3_600_000)  # the store is opened at the same time
        browser.execute("BEGIN EXCLUSIVE")
        held.send()
        time.sleep(0.3)
        browser.execute("ROLLBACK")

    with Child(hold_briefly) as child, corral.open(file) as store:
        held.wait()
        store.mail.put("agent:ada", "after")
        child.result()


def test_file_held_by_another_program_cannot_become_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_connection_set, "BUSY_MS", 100)
    path = tmp_path / "corral.db"
    browser = apsw.Connection(str(path))
    browser.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreUnavailable) as caught:
        corral.open(path)
    assert caught.value.reason == "locked"
    browser.execute("ROLLBACK")
    browser.close()
    corral.open(path).close()


# -- old SQLite versions -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "is_supported"), [("3.51.2", False), ("3.9.9", False), ("3.51.3", True)]
)
def test_sqlite_version_with_corruption_bug_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, is_supported: bool
) -> None:
    monkeypatch.setattr(apsw, "sqlite_lib_version", lambda: version)
    path = tmp_path / "corral.db"
    if is_supported:
        corral.open(path).close()
        return
    with pytest.raises(StoreUnavailable, check=because("old_sqlite")) as caught:
        corral.open(path)
    assert caught.value.reason == "old_sqlite"
    assert not path.exists()


# -- a network file system ----------------------------------------------------------------------


def reason_for(path: Path) -> str | None:
    """Return why the store cannot be opened; None if it can."""
    try:
        corral.open(path).close()
    except StoreUnavailable as error:
        return error.reason
    return None


def test_network_file_system_allows_one_process_at_a_time(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem, "read_file_system_type", lambda path: "nfs")
    opened, closed = Signal(), Signal()

    def open_twice() -> list[str | None]:
        opened.wait()
        first = reason_for(file)
        closed.send()
        opened.wait()
        return [first, reason_for(file)]

    with Child(open_twice) as other:
        with corral.open(file) as store:
            opened.send()
            closed.wait()
            store.mail.put("agent:ada", "from the first process")
            assert len(store.mail.list().items) == 2
        opened.send()
        assert other.result() == ["network_file_system", None]


def test_killed_process_releases_a_store_on_a_network_file_system(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem, "read_file_system_type", lambda path: "nfs")
    opened = Signal()

    def open_and_pause() -> None:
        with corral.open(file):
            opened.send()
            signal.pause()

    with Child(open_and_pause) as child:
        opened.wait()
        with pytest.raises(StoreUnavailable, check=because("network_file_system")):
            corral.open(file)
        child.kill()
    corral.open(file).close()


def test_local_disk_allows_many_processes(file: Path) -> None:
    opened = Signal()

    def open_too() -> str | None:
        opened.wait()
        return reason_for(file)

    with Child(open_too) as other, corral.open(file):
        opened.send()
        assert other.result() is None


# -- children -----------------------------------------------------------------------------------

USES: dict[str, Callable[[Corral], object]] = {
    "write": lambda store: store.mail.put("agent:ada", "from the child"),
    "single write": lambda store: store.mail.claim("agent:ada", owner="child"),
    "read": lambda store: store.mail.list(),
    "transaction": lambda store: store.transaction().__enter__(),
}


@pytest.mark.parametrize("use", USES)
def test_store_opened_before_a_fork_is_rejected_in_the_child(url: str, use: str) -> None:
    with corral.open(url) as store:
        store.mail.put("agent:ada", "before the fork")

        def use_store() -> str:
            try:
                USES[use](store)
            except RuntimeError as error:
                return str(error)
            return "not rejected"

        with Child(use_store, carrying=True) as child:
            assert "opened before a fork" in child.result()
        # The child's attempt did not harm the parent's connection.
        store.mail.put("agent:ada", "after the fork")
        assert [letter.body for letter in store.mail.list().items] == [
            "before the fork",
            "after the fork",
        ]


def test_closing_an_inherited_store_in_a_child_spares_the_parent(url: str) -> None:
    """Code that forks often closes inherited handles before it exits."""
    with corral.open(url) as store:
        store.mail.put("agent:ada", "before the fork")
        with Child(store.close, carrying=True) as child:
            child.result()
        store.mail.put("agent:ada", "after the fork")
        assert len(store.mail.list().items) == 2


@pytest.mark.parametrize("when", ["at rest", "in a transaction"])
def test_store_reopened_in_a_forked_child_keeps_its_writes(url: str, when: str) -> None:
    """It may be rejected, because SQLite does not survive a fork, but nothing is lost."""
    opened, closed = Signal(), Signal()

    def reopen_and_put() -> list[str]:
        accepted: list[str] = []
        try:
            with corral.open(url) as child_store:
                for number in range(3):
                    child_store.mail.put("agent:ada", f"child {number}")
                    accepted.append(f"child {number}")
                    if number == 0:
                        opened.send()
                        closed.wait()
        except (RuntimeError, StoreUnavailable) as error:
            if "fork" not in str(error):
                raise
        finally:
            opened.send()
        return accepted

    with ExitStack() as stack:
        with corral.open(url) as store:
            store.mail.put("agent:ada", "parent")
            if when == "in a transaction":
                with store.transaction() as tx:
                    mail.put(tx, "agent:ada", "uncommitted at the fork")
                    child = stack.enter_context(Child(reopen_and_put, carrying=True))
            else:
                child = stack.enter_context(Child(reopen_and_put, carrying=True))
            opened.wait()
        with corral.open(url) as other:
            other.mail.put("agent:ada", "other")
        closed.send()
        accepted = child.result()
    with corral.open(url) as other:
        bodies = [letter.body for letter in other.mail.list().items]
        assert [body for body in bodies if body.startswith("child")] == accepted
        assert {"parent", "other"} <= set(bodies)
        check_store(other)
