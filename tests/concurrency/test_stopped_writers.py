"""A process that is stopped (Ctrl-Z) keeps its kernel locks: the others wait, but not for ever."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

import corral
from corral.api import Corral
from corral.db import write_lock
from corral.db.write_lock import WriteLock
from corral.domain.mail import ops as mail
from corral.kernel.errors import StoreUnavailable
from corral.kernel.process_state import is_stopped
from tests.support.home import wait_until
from tests.support.invariants import check_store
from tests.support.kernel_locks import holds_lock
from tests.support.processes import Child, Signal
from tests.support.threads import Racer

BOX = "queue:work"
PATIENCE = 0.4
NEVER = 3_600.0


@pytest.fixture(autouse=True)
def _long_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that is to succeed does so on a slow machine, too."""
    monkeypatch.setattr(write_lock, "MAX_WAIT", NEVER)


@contextmanager
def short_patience() -> Iterator[None]:
    with patch.object(write_lock, "MAX_WAIT", PATIENCE):
        yield


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/corral.db"
    corral.open(url).close()
    return url


def write_until_told(url: str, taken: Signal, go: Signal) -> None:
    with corral.open(url) as store, store.transaction() as tx:
        mail.put(tx, BOX, "slow")
        taken.send()
        go.wait()


@contextmanager
def stopped(process: int) -> Iterator[None]:
    os.kill(process, signal.SIGSTOP)
    wait_until(partial(is_stopped, process), "it is stopped")
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


@contextmanager
def a_writer_that_is_stopped(url: str) -> Iterator[tuple[int, Signal]]:
    """Its process number, and a word that lets it finish once it goes on."""
    taken, go = Signal(), Signal()
    with Child(partial(write_until_told, url, taken, go)) as child:
        taken.wait()
        with stopped(child.pid):
            yield child.pid, go
        go.send()
        child.result()


def refused(store: Corral) -> StoreUnavailable:
    with pytest.raises(StoreUnavailable) as caught:
        store.mail.put(BOX, "refused")
    return caught.value


def refused_put(store: Corral) -> StoreUnavailable:
    with short_patience():
        return refused(store)


def test_waiting_for_a_stopped_writer_times_out_with_its_pid(file_url: str) -> None:
    with a_writer_that_is_stopped(file_url) as (process, _), corral.open(file_url) as store:
        began = time.monotonic()
        error = refused_put(store)
        assert time.monotonic() - began >= PATIENCE
        assert error.details["reason"] == "locked"
        assert error.details["holder"] == process
        assert f"process {process} is stopped" in error.message
        assert f"kill -CONT {process}" in error.message
        assert store.mail.list(mailbox=BOX).items == []  # readers go on


def test_writes_continue_when_a_stopped_writer_resumes(file_url: str) -> None:
    with a_writer_that_is_stopped(file_url):
        store = corral.open(file_url)
        refused_put(store)
    # Who gave up left nothing behind: neither a letter, nor a place in the line.
    store.mail.put(BOX, "fast")
    assert [letter.body for letter in store.mail.list(mailbox=BOX).items] == ["slow", "fast"]
    check_store(store)
    store.close()


def test_timeout_names_a_slow_writer(file_url: str) -> None:
    taken, go = Signal(), Signal()
    with (
        Child(partial(write_until_told, file_url, taken, go)) as child,
        corral.open(file_url) as store,
    ):
        taken.wait()
        error = refused_put(store)
        assert (error.reason, error.details["holder"]) == ("locked", child.pid)
        go.send()
        child.result()
        store.mail.put(BOX, "fast")


def test_waiting_threads_time_out_together(file_url: str) -> None:
    """And not one after the other, as each of them comes to lead."""
    count = 8
    enter, since_when = WriteLock.acquire, []

    def enter_when_all_wait(
        line: WriteLock, since: float | None = None, patience: float | None = None
    ) -> None:
        if not since_when:
            others = store._database._queue.waiting
            wait_until(lambda: len(others) == count - 1, "the other threads wait")
        since_when.append(time.monotonic() if since is None else since)
        enter(line, since, patience)

    with (
        a_writer_that_is_stopped(file_url),
        corral.open(file_url) as store,
        patch.object(WriteLock, "acquire", enter_when_all_wait),
        short_patience(),
    ):
        for racer in [Racer(partial(refused, store)) for _ in range(count)]:
            racer.result()
    assert len(since_when) == count
    assert max(since_when) == since_when[0], "the patience of one began when it came to lead"


def test_timeout_names_a_writer_stopped_in_the_queue(file_url: str) -> None:
    """It is the next in line and never comes: the line must not wait for it either."""
    taken, go, come, arrived = Signal(), Signal(), Signal(), Signal()

    def put_when_told(url: str) -> None:
        with corral.open(url) as store:
            come.wait()
            arrived.send()
            store.mail.put(BOX, "next")

    with (
        Child(partial(write_until_told, file_url, taken, go)) as writer,
        Child(partial(put_when_told, file_url)) as waiter,
        corral.open(file_url) as store,
    ):
        taken.wait()
        come.send()
        arrived.wait()
        door = f"{store.db.path}-writers-queue"
        wait_until(partial(holds_lock, door, waiter.pid), "it is the next in line")
        with stopped(waiter.pid):
            go.send()
            writer.result()
            error = refused_put(store)
            assert error.details["holder"] == waiter.pid
            refused_put(store)  # the second time, too
    with corral.open(file_url) as store:
        store.mail.put(BOX, "after all")
        check_store(store)


def test_store_closes_while_a_helper_waits_for_the_write_lock(file_url: str) -> None:
    with a_writer_that_is_stopped(file_url) as (_, go):
        first, second = corral.open(file_url), corral.open(file_url)
        with short_patience():
            for racer in [Racer(partial(refused, store)) for store in (first, second)]:
                racer.result()
        first.close()
        second.close()
        go.send()
    with corral.open(file_url) as store:
        store.mail.put(BOX, "after all")


def test_read_and_closing_the_store_do_not_wait_for_upkeep(
    file_url: str,
) -> None:
    """A write that runs before a read gives up in time: closing waits for writes in progress."""
    with a_writer_that_is_stopped(file_url), corral.open(file_url) as store:
        done = store.try_upkeep("x", lambda: store.mail.put(BOX, "upkeep"), seconds=0.2)
        store.close()
        assert done is None


@pytest.mark.parametrize(
    "words", [["task", "list"], ["delegation", "list"], ["hook", "claude", "post-tool-use"]]
)
def test_commands_that_read_do_not_wait_for_a_stopped_writer(
    words: list[str], tmp_path: Path, file_url: str
) -> None:
    (tmp_path / "work").mkdir()
    with corral.open(file_url) as store:
        project = store.projects.register(str(tmp_path / "work"))
        store.locks.acquire(project.id, "a.py", agent="user:ann")
    told = {"tool_name": "Edit", "tool_input": {"file_path": str(tmp_path / "work" / "a.py")}}
    env = {**os.environ, "CORRAL_STORE": file_url, "CORRAL_HOME": str(tmp_path / "home")}
    command = f"from corral.db import write_lock; write_lock.MAX_WAIT = {NEVER}; import runpy; "
    command += "runpy.run_module('corral', run_name='__main__', alter_sys=True)"
    with a_writer_that_is_stopped(file_url):
        ended = subprocess.run(
            [sys.executable, "-c", command, *words],
            env=env,
            cwd=tmp_path / "work",
            input=json.dumps(told).encode(),
            capture_output=True,
            check=False,
        )
    assert ended.returncode == (1 if words[0] == "hook" else 0), ended.stderr
