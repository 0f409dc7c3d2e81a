"""A stopped process (Ctrl-Z) keeps its kernel locks: other writers wait and time out."""

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
SHORT_WAIT = 0.4
NEVER = 3_600.0


@pytest.fixture(autouse=True)
def _long_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes that must succeed do not time out on a slow machine."""
    monkeypatch.setattr(write_lock, "MAX_WAIT", NEVER)


@contextmanager
def short_wait() -> Iterator[None]:
    with patch.object(write_lock, "MAX_WAIT", SHORT_WAIT):
        yield


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/corral.db"
    corral.open(url).close()
    return url


def write_until_signalled(url: str, started: Signal, go: Signal) -> None:
    with corral.open(url) as store, store.transaction() as tx:
        mail.put(tx, BOX, "slow")
        started.send()
        go.wait()


@contextmanager
def stop_process(process: int) -> Iterator[None]:
    os.kill(process, signal.SIGSTOP)
    wait_until(partial(is_stopped, process), "the process is stopped")
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


@contextmanager
def stopped_writer(url: str) -> Iterator[tuple[int, Signal]]:
    """Yield the pid of a stopped writer and a signal that lets it finish when it resumes."""
    started, go = Signal(), Signal()
    with Child(partial(write_until_signalled, url, started, go)) as child:
        started.wait()
        with stop_process(child.pid):
            yield child.pid, go
        go.send()
        child.result()


def put_and_fail(store: Corral) -> StoreUnavailable:
    with pytest.raises(StoreUnavailable) as caught:
        store.mail.put(BOX, "refused")
    return caught.value


def put_and_time_out(store: Corral) -> StoreUnavailable:
    with short_wait():
        return put_and_fail(store)


def test_waiting_for_a_stopped_writer_times_out_with_its_pid(file_url: str) -> None:
    with stopped_writer(file_url) as (process, _), corral.open(file_url) as store:
        start = time.monotonic()
        error = put_and_time_out(store)
        assert time.monotonic() - start >= SHORT_WAIT
        assert error.details["reason"] == "locked"
        assert error.details["holder"] == process
        assert f"process {process} is stopped" in error.message
        assert f"kill -CONT {process}" in error.message
        assert store.mail.list(mailbox=BOX).items == []  # reads continue


def test_writes_continue_when_a_stopped_writer_resumes(file_url: str) -> None:
    with stopped_writer(file_url):
        store = corral.open(file_url)
        put_and_time_out(store)
    # A timed-out writer leaves no letter and no queue position.
    store.mail.put(BOX, "fast")
    assert [letter.body for letter in store.mail.list(mailbox=BOX).items] == ["slow", "fast"]
    check_store(store)
    store.close()


def test_timeout_names_a_slow_writer(file_url: str) -> None:
    started, go = Signal(), Signal()
    with (
        Child(partial(write_until_signalled, file_url, started, go)) as child,
        corral.open(file_url) as store,
    ):
        started.wait()
        error = put_and_time_out(store)
        assert (error.reason, error.details["holder"]) == ("locked", child.pid)
        go.send()
        child.result()
        store.mail.put(BOX, "fast")


def test_waiting_threads_time_out_together(file_url: str) -> None:
    """The timeout of a thread starts when it begins to wait, not when it becomes the leader."""
    count = 8
    original_acquire, start_times = WriteLock.acquire, []

    def acquire_when_all_wait(
        lock: WriteLock, since: float | None = None, patience: float | None = None
    ) -> None:
        if not start_times:
            others = store._database._queue.waiting
            wait_until(lambda: len(others) == count - 1, "the other threads wait")
        start_times.append(time.monotonic() if since is None else since)
        original_acquire(lock, since, patience)

    with (
        stopped_writer(file_url),
        corral.open(file_url) as store,
        patch.object(WriteLock, "acquire", acquire_when_all_wait),
        short_wait(),
    ):
        for racer in [Racer(partial(put_and_fail, store)) for _ in range(count)]:
            racer.result()
    assert len(start_times) == count
    assert max(start_times) == start_times[0], "a timeout started when the thread became the leader"


def test_timeout_names_a_writer_stopped_in_the_queue(file_url: str) -> None:
    """The process at the head of the queue is stopped, and the others must not wait for it."""
    started, go, join_queue, joining = Signal(), Signal(), Signal(), Signal()

    def put_on_signal(url: str) -> None:
        with corral.open(url) as store:
            join_queue.wait()
            joining.send()
            store.mail.put(BOX, "next")

    with (
        Child(partial(write_until_signalled, file_url, started, go)) as writer,
        Child(partial(put_on_signal, file_url)) as waiter,
        corral.open(file_url) as store,
    ):
        started.wait()
        join_queue.send()
        joining.wait()
        queue_lock = f"{store.db.path}-writers-queue"
        wait_until(partial(holds_lock, queue_lock, waiter.pid), "the process is next in the queue")
        with stop_process(waiter.pid):
            go.send()
            writer.result()
            error = put_and_time_out(store)
            assert error.details["holder"] == waiter.pid
            put_and_time_out(store)  # also the second time
    with corral.open(file_url) as store:
        store.mail.put(BOX, "after")
        check_store(store)


def test_store_closes_while_a_helper_waits_for_the_write_lock(file_url: str) -> None:
    with stopped_writer(file_url) as (_, go):
        first, second = corral.open(file_url), corral.open(file_url)
        with short_wait():
            for racer in [Racer(partial(put_and_fail, store)) for store in (first, second)]:
                racer.result()
        first.close()
        second.close()
        go.send()
    with corral.open(file_url) as store:
        store.mail.put(BOX, "after")


def test_read_and_closing_the_store_do_not_wait_for_upkeep(
    file_url: str,
) -> None:
    """A write that runs before a read gives up in time: closing waits for writes in progress."""
    with stopped_writer(file_url), corral.open(file_url) as store:
        result = store.try_write_before_read(
            "x", lambda: store.mail.put(BOX, "upkeep"), seconds=0.2
        )
        store.close()
        assert result is None


@pytest.mark.parametrize(
    "arguments", [["task", "list"], ["delegation", "list"], ["hook", "claude", "post-tool-use"]]
)
def test_commands_that_read_do_not_wait_for_a_stopped_writer(
    arguments: list[str], tmp_path: Path, file_url: str
) -> None:
    (tmp_path / "work").mkdir()
    with corral.open(file_url) as store:
        project = store.projects.register(str(tmp_path / "work"))
        store.locks.acquire(project.id, "a.py", agent="user:ann")
    hook_input = {"tool_name": "Edit", "tool_input": {"file_path": str(tmp_path / "work" / "a.py")}}
    env = {**os.environ, "CORRAL_STORE": file_url, "CORRAL_HOME": str(tmp_path / "home")}
    command = f"from corral.db import write_lock; write_lock.MAX_WAIT = {NEVER}; import runpy; "
    command += "runpy.run_module('corral', run_name='__main__', alter_sys=True)"
    with stopped_writer(file_url):
        result = subprocess.run(
            [sys.executable, "-c", command, *arguments],
            env=env,
            cwd=tmp_path / "work",
            input=json.dumps(hook_input).encode(),
            capture_output=True,
            check=False,
        )
    assert result.returncode == (1 if arguments[0] == "hook" else 0), result.stderr
