"""Latency from put to claim by another waiting process."""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager

from bench.harness import Bar, Bench, Row, Spread, percentile
from bench.opponents import BODY, MAILBOX, OWNER, open_store
from bench.worker_pool import Task, WorkerPool

TITLE = "Wake-up of a waiting process"
ABOUT = """
    One process waits in `claim(wait_ms=…)`; another puts a letter at a random time. Measured
    from the return of put, which is its commit, to the return of claim, including the commit of
    the claim. The spread is that of three parts of the sample.
"""
ROUNDS = 3
BAR = Bar("<", 20)
LONGEST_PAUSE = 0.06


def measure(bench: Bench) -> list[Row]:
    count = bench.pick(300, 90)
    stores = {
        "SQLite": f"sqlite:///{bench.new_file()}",
        "PostgreSQL": bench.server.new_database(),
    }
    rows = []
    for engine, url in stores.items():
        bench.progress(f"{count} letters on {engine}")
        waits = _measure_delays(url, count)
        thirds = [waits[start::ROUNDS] for start in range(ROUNDS)]
        rows += [
            Row(f"{engine}, p99", _percentile(waits, thirds, 99), BAR, "ms"),
            Row(f"{engine}, p50", _percentile(waits, thirds, 50), unit="ms"),
        ]
    return rows


def _percentile(waits: list[float], thirds: list[list[float]], percent: float) -> Spread:
    of_thirds = [percentile(third, percent) for third in thirds]
    return Spread(percentile(waits, percent), min(of_thirds), max(of_thirds))


def _measure_delays(url: str, count: int) -> list[float]:
    """Return the milliseconds from the return of `put` to the return of `claim`, at random times.

    All processes of a machine share the monotonic clock. A claim may return before the put that it
    waited for; that counts as zero.
    """
    timeout = 10.0
    with open_store(url) as store, WorkerPool(1, waiting_worker, url) as waiter:
        waits = []
        for _ in range(count):
            waiter.start(timeout)
            time.sleep(random.uniform(0.02, LONGEST_PAUSE))  # the waiting process sleeps by then
            store.mail.put(MAILBOX, BODY)
            committed = time.monotonic()
            (picked_up,) = waiter.results(timeout)
            waits.append(max(picked_up - committed, 0) * 1_000)
    return waits


@contextmanager
def waiting_worker(number: int, url: str) -> Iterator[Task]:
    with open_store(url) as store:

        def wait_for_one(end: float) -> float:
            timeout_ms = int((end - time.monotonic()) * 1_000)
            (letter,) = store.mail.claim(MAILBOX, owner=OWNER, wait_ms=timeout_ms)
            picked_up = time.monotonic()
            store.mail.ack(letter)
            return picked_up

        yield wait_for_one
