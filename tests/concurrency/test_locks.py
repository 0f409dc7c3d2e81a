"""Many processes lock the same paths: one holder at a time, fair order, no starvation."""

import os
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

import corral
from corral.api import Corral
from corral.kernel.errors import Held
from tests.support.invariants import check_store
from tests.support.listeners import call_before_waits, disable_safety_polls
from tests.support.processes import Child, Signal, run_concurrently
from tests.support.threads import race


class HeldInterval(NamedTuple):
    """The time for which a process held a lock, by the monotonic clock."""

    since: int
    until: int
    fence: int
    owner: int


def hold_lock(store: Corral, project: str, path: str) -> HeldInterval:
    me = str(os.getpid())
    lock = store.locks.acquire(project, path, me, wait=True, timeout_ms=600_000)
    since = time.monotonic_ns()
    time.sleep(0.001)
    until = time.monotonic_ns()
    store.locks.release(lock)
    return HeldInterval(since, until, lock.fence, os.getpid())


def test_waiting_processes_hold_overlapping_paths_one_at_a_time_in_order(
    url: str, tmp_path: Path
) -> None:
    (tmp_path / "src").mkdir()
    with corral.open(url) as store:
        project = store.projects.register(tmp_path).id
    paths = ["src/*", "./src/a.py", "src", "**/a.py"]

    def work(number: int) -> list[HeldInterval]:
        with corral.open(url) as store:
            return [hold_lock(store, project, paths[(number + n) % 4]) for n in range(10)]

    by_worker = run_concurrently([partial(work, number) for number in range(6)])
    intervals = sorted(interval for worker in by_worker for interval in worker)
    assert len(intervals) == 60
    assert all(interval.until <= following.since for interval, following in pairwise(intervals))
    assert [interval.fence for interval in intervals] == sorted(
        interval.fence for interval in intervals
    )
    with corral.open(url) as store:
        assert store.locks.list().items == []
        check_store(store)


def test_one_of_sixteen_concurrent_acquires_succeeds(store: Corral, tmp_path: Path) -> None:
    project = store.projects.register(tmp_path).id
    for number in range(5):
        racers = race(
            [
                partial(store.locks.acquire, project, f"{number}/{'x' * (n % 2)}", f"agent-{n}")
                for n in range(16)
            ]
        )
        won = [racer for racer in racers if racer.error is None]
        assert len({racer.result().owner for racer in won}) == 1
        assert all(isinstance(racer.error, Held) for racer in racers if racer.error is not None)
    check_store(store)


def test_release_wakes_a_waiting_process(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disable_safety_polls(monkeypatch)
    asleep = Signal()
    with corral.open(url) as store:
        project = store.projects.register(tmp_path).id
        lock = store.locks.acquire(project, "a", "x")

    def wait() -> str:
        call_before_waits(monkeypatch, asleep.send)
        with corral.open(url) as store:
            return store.locks.acquire(project, "a", "y", wait=True).owner

    with Child(wait) as waiting, corral.open(url) as store:
        asleep.wait()
        store.locks.release(lock)
        assert waiting.result() == "agent:y"


def test_shared_and_exclusive_locks_of_many_processes_exclude_each_other(
    url: str, tmp_path: Path
) -> None:
    with corral.open(url) as store:
        project = store.projects.register(tmp_path).id
    inside = tmp_path / "inside"
    inside.write_text("")

    def work(number: int) -> int:
        clashes = 0
        with corral.open(url) as store:
            for n in range(8):
                mode = "shared" if (number + n) % 3 else "exclusive"
                lock = store.locks.acquire(
                    project,
                    "data/",
                    f"a{number}",
                    mode=mode,
                    wait=True,
                    timeout_ms=600_000,
                )
                holders = store.locks.holders(project, "data/")
                modes = [holder.mode for holder in holders]
                clashes += "exclusive" in modes and len(modes) > 1
                store.locks.release(lock)
        return clashes

    assert run_concurrently([partial(work, number) for number in range(6)]) == [0] * 6
    with corral.open(url) as store:
        check_store(store)
