"""Many processes write one SQLite file: none starves, none is held up by the dead."""

import os
import signal
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Self
from unittest.mock import patch

import apsw
import pytest

import corral
from corral.api import Corral
from corral.db import write_lock
from corral.db.write_lock import QueueLock
from corral.domain.mail import ops as mail
from corral.kernel.ids import parse_number
from tests.support.home import wait_until
from tests.support.invariants import check_store
from tests.support.kernel_locks import holds_lock, requests_lock, waits_for_lock
from tests.support.processes import Child, Counters, Signal, run_concurrently

PROCESSES = 8
ROUNDS = 10


@pytest.fixture(autouse=True)
def _long_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that waits in vain fails by the test's own limit, not by a slow machine."""
    monkeypatch.setattr(write_lock, "MAX_WAIT", 3_600.0)


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/corral.db"
    corral.open(url).close()
    return url


class Overtaking:
    """Counts the letters of other processes that go in while a put of this one is the next in line.

    Where this process is not the next, but behind another one, the kernel decides.
    """

    def __init__(self, url: str) -> None:
        self.counts: list[int] = []
        self._file = apsw.Connection(url.removeprefix("sqlite:///"))
        self._newest = 0
        try_lock = QueueLock.try_lock

        def try_lock_and_look(door: QueueLock) -> bool:
            locked = try_lock(door)
            if locked:
                self._newest = self._file.execute("SELECT max(seq) FROM letters").get or 0
            return locked

        self._patch = patch.object(QueueLock, "try_lock", try_lock_and_look)

    def __enter__(self) -> Self:
        self._patch.start()
        return self

    def put(self, store: Corral, mailbox: str, body: object) -> None:
        self._newest = 0
        mine = store.mail.put(mailbox, body)
        if self._newest:  # else it was not the next in line, or there was no line
            self.counts.append(parse_number("let", mine.id) - self._newest - 1)

    def __exit__(self, *_: object) -> None:
        self._patch.stop()
        self._file.close()


def test_concurrent_writer_processes_all_progress_and_lose_nothing(file_url: str) -> None:
    """All of them go on until the slowest one has done its rounds. The bench measures how evenly
    they are served; that depends on the machine."""
    rounds = Counters(PROCESSES)

    def put_and_ack(me: int) -> tuple[int, int]:
        served = 0
        mailbox = f"queue:{me}"
        with Overtaking(file_url) as overtaking, corral.open(file_url) as store:
            while min(rounds.all()) < ROUNDS:
                overtaking.put(store, mailbox, served)
                (letter,) = store.mail.claim(mailbox, owner="me")
                store.mail.ack(letter)
                served += 1
                rounds.set(me, served)
        return served, max(overtaking.counts, default=0)

    results = run_concurrently([partial(put_and_ack, number) for number in range(PROCESSES)])
    counts = sorted(served for served, _ in results)
    overtaken = max(most for _, most in results)
    print(f"served: least {counts[0]}, most {counts[-1]}; overtaken by {overtaken} at the most")
    # Each of the others may be past the look at the line when ours becomes the next.
    assert overtaken < PROCESSES
    with corral.open(file_url) as store:
        done = store.db.sql("SELECT state, count(*) FROM letters GROUP BY state").rows
        assert done == [["done", sum(counts)]]
        assert store.db.sql("SELECT count(*) FROM events").rows == [[2 * sum(counts)]]
        check_store(store)


def door_of(url: str) -> str:
    """The lock of the next process in line; those behind that process wait for it."""
    return url.removeprefix("sqlite:///") + "-writers-queue"


def test_write_lock_is_granted_in_arrival_order(file_url: str) -> None:
    signals = [Signal() for _ in range(6)]

    def put_my_number(number: int) -> None:
        with corral.open(file_url) as store:
            signals[number].wait()
            store.mail.put("queue:work", number)

    with ExitStack() as stack:
        children = [stack.enter_context(Child(partial(put_my_number, n))) for n in range(6)]
        with corral.open(file_url) as store:
            with store.transaction():
                for child, go in zip(children, signals, strict=True):
                    go.send()
                    stands_in_line = partial(requests_lock, door_of(file_url), child.pid)
                    wait_until(stands_in_line, "it stands in line")
            for child in children:
                child.result()
            served = store.db.sql("SELECT body FROM letters ORDER BY seq").rows
            assert served == [[str(number)] for number in range(6)]


def test_crashed_lock_holder_does_not_block_writers(file_url: str) -> None:
    """Its lock was freed by the kernel, and the sign that it showed is taken down by the next."""
    with corral.open(file_url) as store, corral.open(file_url) as other:
        store.mail.put("queue:work", 1)
        door = Path(door_of(file_url))
        assert door.read_bytes()[0] == 0
        with door.open("r+b") as sign:
            sign.write(b"\1")
        other.mail.put("queue:work", 2)
        assert door.read_bytes()[0] == 0
        store.mail.put("queue:work", 3)
        assert len(store.mail.list(mailbox="queue:work").items) == 3


def test_continuous_writer_does_not_starve_others(file_url: str) -> None:
    """SQLite alone lets the one go on and on, while the other sleeps before it tries again."""
    writing = Signal()

    def put_for_ever() -> None:
        with corral.open(file_url) as store:
            store.mail.put("queue:work", "greedy")
            writing.send()
            while True:
                store.mail.put("queue:work", "greedy")

    def put_now_and_then() -> int:
        with Overtaking(file_url) as overtaking, corral.open(file_url) as store:
            while len(overtaking.counts) < 60:
                time.sleep(0.005)
                overtaking.put(store, "queue:work", "patient")
        return max(overtaking.counts)

    with Child(put_for_ever) as greedy:
        writing.wait()
        with Child(put_now_and_then) as patient:
            overtaken = patient.result()
        greedy.kill()
    # One is under way when ours becomes the next.
    assert overtaken <= 1


def put_one(url: str, go: Signal | None = None) -> None:
    """Put a letter, after a word."""
    with corral.open(url) as store:
        if go is not None:
            go.wait()
        store.mail.put("queue:work", "after the death")


def test_killed_writer_releases_the_write_lock(file_url: str) -> None:
    taken, go = Signal(), Signal()

    def take_the_turn_and_stay() -> None:
        with corral.open(file_url) as store, store.transaction() as tx:
            mail.put(tx, "queue:work", "half done")
            taken.send()
            signal.pause()

    with (
        Child(take_the_turn_and_stay) as first,
        Child(lambda: put_one(file_url, go)) as second,
    ):
        taken.wait()
        go.send()
        wait_until(partial(holds_lock, door_of(file_url), second.pid), "it is the next in line")
        first.kill()
        second.result()
    with corral.open(file_url) as store:
        assert [letter.body for letter in store.mail.list().items] == ["after the death"]
        check_store(store)


def test_process_killed_in_the_queue_does_not_block_others(file_url: str) -> None:
    first_go, second_go = Signal(), Signal()
    with (
        Child(lambda: put_one(file_url, first_go)) as first,
        Child(lambda: put_one(file_url, second_go)) as second,
        corral.open(file_url) as store,
    ):
        with store.transaction():
            first_go.send()
            wait_until(partial(holds_lock, door_of(file_url), first.pid), "it is the next in line")
            second_go.send()
            wait_until(
                partial(waits_for_lock, door_of(file_url), second.pid), "it is behind the first"
            )
            first.kill()
        second.result()
        store.mail.put("queue:work", "mine")
        assert [letter.body for letter in store.mail.list().items] == ["after the death", "mine"]


def test_forked_child_does_not_keep_the_lock_of_a_dead_parent(
    file_url: str,
) -> None:
    """A daemon's supervisors outlive it, and were forked at any moment of its life."""
    told, tell = os.pipe()

    def fork_while_writing_and_stay() -> None:
        with corral.open(file_url) as store, store.transaction() as tx:
            mail.put(tx, "queue:work", "half done")
            supervisor = os.fork()
            if supervisor == 0:
                signal.pause()
                os._exit(0)
            os.write(tell, f"{supervisor}\n".encode())
            signal.pause()

    with Child(fork_while_writing_and_stay) as parent:
        supervisor = int(os.read(told, 100))
        try:
            parent.kill()
            with Child(lambda: put_one(file_url)) as next_one:
                next_one.result()
        finally:
            os.kill(supervisor, signal.SIGKILL)
