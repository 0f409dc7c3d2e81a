"""One loop in its thread: wake-ups, failures, leads, and its end. No daemon, no other process."""

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


class Counted(BaseLoop):
    """A loop that only counts its rounds, and does what it is told in each."""

    name = "counted"
    min_interval = 0.0

    def __init__(self) -> None:
        self.rounds = self.follower_rounds = 0
        self.work: list[int | Exception] = []
        self.held = threading.Event()
        self.held.set()

    def run_once(self, store: Corral) -> int:
        self.rounds += 1
        self.held.wait(30)
        told = self.work.pop(0) if self.work else 0
        if isinstance(told, Exception):
            raise told
        return told

    def run_as_follower(self, store: Corral) -> int:
        self.follower_rounds += 1
        return 0

    def next_delay(self, store: Corral) -> float:
        return FOREVER


@contextmanager
def going(loop: Counted, store: Corral, *, leads: bool = True) -> Iterator[LoopThread]:
    runner = LoopThread(loop, store, is_leader=lambda: leads)
    runner.thread.start()
    try:
        yield runner
    finally:
        loop.held.set()
        runner.stop()
        runner.thread.join(30)
        assert not runner.thread.is_alive()


@pytest.fixture
def engine() -> str:
    return "sqlite"


def test_loop_runs_on_wake_up_and_while_there_is_work(store: Corral) -> None:
    loop = Counted()
    loop.work = [3, 2, 0]
    with going(loop, store) as runner:
        wait_until(lambda: loop.rounds == 3, "three rounds: two with work, one without")
        assert runner.status(None).done == 5
        runner.wake()
        wait_until(lambda: loop.rounds == 4, "one more")


def test_wake_up_during_a_round_is_not_lost(store: Corral) -> None:
    loop = Counted()
    loop.held.clear()
    with going(loop, store) as runner:
        wait_until(lambda: loop.rounds == 1, "it is in its round")
        runner.wake()
        loop.held.set()
        wait_until(lambda: loop.rounds == 2, "it looks again")


def test_failure_is_reported_and_retried_with_back_off(
    store: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "FIRST_PAUSE", 0.05)
    loop = Counted()
    loop.work = [
        StoreUnavailable("The store is away.", reason="io"),
        ValueError("a mistake"),
        ValueError("a mistake"),
    ]
    began = time.monotonic()
    with going(loop, store) as runner:
        wait_until(lambda: loop.rounds == 4, "it got well again")
        wait_until(lambda: runner.status("me").state == "works", "and says so")
        assert time.monotonic() - began >= 0.05 + 0.1 + 0.2
        told = runner.status("me")
    assert (told.errors, told.error) == (3, "ValueError: a mistake")
    assert told.failed_at is not None


def test_commits_do_not_shorten_the_back_off(
    store: Corral, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "FIRST_PAUSE", 0.5)
    loop = Counted()
    loop.work = [ValueError("a mistake")]
    began = time.monotonic()
    with going(loop, store) as runner:
        while loop.rounds < 2:
            runner.wake()
            time.sleep(0.005)
        assert time.monotonic() - began >= 0.5


def test_follower_does_only_the_work_of_its_machine(
    store: Corral,
) -> None:
    loop = Counted()
    with going(loop, store, leads=False) as runner:
        for turn in range(1, 4):
            wait_until(lambda turn=turn: loop.follower_rounds == turn, "it ran as a follower")
            runner.wake()
        assert loop.rounds == 0
        assert runner.status("somebody").state == "waits"
        assert runner.status("somebody").leader == "somebody"


def test_wake_ups_are_throttled(store: Corral) -> None:
    loop = Counted()
    loop.min_interval = 0.2
    began = time.monotonic()
    with going(loop, store) as runner:
        while time.monotonic() - began < 0.5:
            runner.wake()
            time.sleep(0.001)
            assert loop.rounds <= 1 + (time.monotonic() - began) / loop.min_interval
