"""Sixty-four threads of one process at full durability: fsyncs shared by group commit."""

import threading
import time

from bench.harness import Bar, Bench, Rates, Rival, Row, Spread, percentile
from bench.opponents import BODY, MAILBOX, open_store
from corral.api import Corral

TITLE = "64 threads at full durability, SQLite"
ABOUT = """
    With `durability = full` each commit waits for the disk. Threads of one process share
    commits (group commit). One thread is 1x. The slower the disk, the larger the gain.
"""
THREADS = 64


def measure(bench: Bench) -> list[Row]:
    seconds = bench.pick(1.5, 0.7)
    waits: list[float] = []
    with open_store(f"sqlite:///{bench.new_file()}") as store:
        store.db.durability("full")

        def alone() -> Rates:
            return {"put": len(_put_for(store, 1, seconds)) / seconds}

        def together() -> Rates:
            durations = _put_for(store, THREADS, seconds)
            waits.append(percentile(durations, 99) * 1_000)
            return {"put": len(durations) / seconds}

        result = bench.compare(
            Rival("one thread", alone), [Rival("64 threads", together)], rounds=bench.pick(7, 3)
        )
    return [
        Row("puts by 64 threads", result.speed_of("64 threads", "put"), Bar(">=", 4)),
        Row("time of a put among 64 threads, p99", Spread.of(waits), unit="ms"),
    ]


def _put_for(store: Corral, threads: int, seconds: float) -> list[float]:
    """Return the duration of each call that `threads` threads make in so many seconds."""
    durations: list[float] = []
    end = time.perf_counter() + seconds

    def work() -> None:
        while (start := time.perf_counter()) < end:
            store.mail.put(MAILBOX, BODY)
            durations.append(time.perf_counter() - start)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return durations
