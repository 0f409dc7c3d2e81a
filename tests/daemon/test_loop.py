"""One loop in its thread: wake-ups, failures, leadership and stop."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from corral.api import Corral
from corral.daemon import loop as loops
from corral.daemon.loop import BaseLoop, LoopThread
from corral.kernel.errors import StoreUnavailable
from tests.support.home import wait_until

FOREVER = 3_600.0


class CountingLoop(BaseLoop):
    """A loop that counts its rounds and returns or raises the next item of `work`."""

    name = "counted"
    min_interval = 0.0

    def __init__(self) -> None:
        self.rounds = self.follower_rounds = 0
        self.work: list[int | Exception] = []
        self.released = threading.Event()
        self.released.set()

    def run_once(self, store: Corral) -> int:
        self.rounds += 1
        self.released.wait(30)
        item = self.work.pop(0) if self.work else 0
        if isinstance(item, Exception):
            raise item
        return item

    def run_as_follower(self, store: Corral) -> int:
        self.follower_rounds += 1
        return 0

    def next_delay(self, store: Corral) -> float:
        return FOREVER


@contextmanager
def run_loop(loop: CountingLoop, store: Corral, *, leads: bool = True) -> Iterator[LoopThread]:
    runner = LoopThread(loop, store, is_leader=lambda: leads)
    runner.thread.start()
    try:
        yield runner
    finally:
        loop.released.set()
        runner.stop()
        runner.thread.join(30)
        assert not runner.thread.is_alive()


@pytest.fixture
def engine() -> str:
    return "sqlite"


def test_loop_runs_on_wake_up_and_while_there_is_work(store: Corral) -> None:
    loop = CountingLoop()
    loop.work = [3, 2, 0]
    with run_loop(loop, store) as runner:
        wait_until(lambda: loop.rounds == 3, "three rounds: two with work, one without")
        assert runner.status(None).done == 5
        runner.wake()
        wait_until(lambda: loop.rounds == 4, "one more round")


def test_wake_up_during_a_round_is_not_lost(store: Corral) -> None:
    loop = CountingLoop()
    loop.released.clear()
    with run_loop(loop, store) as runner:
        wait_until(lambda: loop.rounds == 1, "the first round runs")
        runner.wake()
        loop.released.set()
        wait_until(lambda: loop.rounds == 2, "the second round runs")


def test_failure_is_reported_and_retried_with_back_off(
    store: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "FIRST_PAUSE", 0.05)
    loop = CountingLoop()
    loop.work = [
        StoreUnavailable("The store is unavailable.", reason="io"),
        ValueError("a bug"),
        ValueError("a bug"),
    ]
    start = time.monotonic()
    with run_loop(loop, store) as runner:
        wait_until(lambda: loop.rounds == 4, "the loop recovered")
        wait_until(lambda: runner.status("me").state == "works", "the status shows it")
        assert time.monotonic() - start >= 0.05 + 0.1 + 0.2
        status = runner.status("me")
    assert (status.errors, status.error) == (3, "ValueError: a bug")
    assert status.failed_at is not None


def test_commits_do_not_shorten_the_back_off(
    store: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "FIRST_PAUSE", 0.5)
    loop = CountingLoop()
    loop.work = [ValueError("a bug")]
    start = time.monotonic()
    with run_loop(loop, store) as runner:
        while loop.rounds < 2:
            runner.wake()
            time.sleep(0.005)
        assert time.monotonic() - start >= 0.5


def test_follower_does_only_the_work_of_its_machine(
    store: Corral,
) -> None:
    loop = CountingLoop()
    with run_loop(loop, store, leads=False) as runner:
        for turn in range(1, 4):
            wait_until(lambda turn=turn: loop.follower_rounds == turn, "a round as a follower")
            runner.wake()
        assert loop.rounds == 0
        assert runner.status("other").state == "waits"
        assert runner.status("other").leader == "other"


def test_wake_ups_are_throttled(store: Corral) -> None:
    loop = CountingLoop()
    loop.min_interval = 0.2
    start = time.monotonic()
    with run_loop(loop, store) as runner:
        while time.monotonic() - start < 0.5:
            runner.wake()
            time.sleep(0.001)
            assert loop.rounds <= 1 + (time.monotonic() - start) / loop.min_interval
