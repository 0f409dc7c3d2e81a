"""Sixteen processes that write to one SQLite file as fast as they can: fairness and latency."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from bench.harness import Bar, Bench, Row, Spread
from bench.opponents import BODY, MAILBOX, OWNER, open_store
from bench.opponents.raw_sqlite import RawSqlite
from bench.worker_pool import Task, WorkerPool

TITLE = "16 processes writing one SQLite file"
ABOUT = """
    Each process puts, claims and acknowledges through the library as fast as it can. Nothing
    lost means that every call that returned is found once in the letters and in the events.
    SQLite's busy handler sleeps and retries, so some writers wait very long; Corral's writers
    queue, which costs a process switch for each transaction.
"""
PROCESSES = 16
T = TypeVar("T")


class WriterResult(msgspec.Struct):
    """The counts of one process, and its slowest call."""

    put: int = 0
    done: int = 0
    longest_ms: float = 0.0
    errors: list[str] = msgspec.field(default_factory=list)

    def timed(self, call: Callable[[], T]) -> T:
        start = time.monotonic()
        try:
            return call()
        finally:
            self.longest_ms = max(self.longest_ms, (time.monotonic() - start) * 1_000)


Cycle = Callable[[WriterResult], None]


def measure(bench: Bench) -> list[Row]:
    seconds = bench.pick(10.0, 3.0)
    corral_file, plain_file = bench.new_file(), bench.new_file()
    open_store(f"sqlite:///{corral_file}").close()
    RawSqlite(plain_file)
    bench.progress(f"Corral for {seconds:.0f} s")
    results = _saturate(corral_worker, corral_file, seconds)
    bench.progress(f"APSW by hand with busy_timeout for {seconds:.0f} s")
    plain_results = _saturate(worker_by_hand, plain_file, seconds)
    return [
        Row("rows lost or duplicated", _single(_count_lost(corral_file, results)), Bar("=", 0), ""),
        Row("errors that reached a caller", _single(_errors(results)), Bar("=", 0), ""),
        Row("least served over most served", _single(_fairness(results)), Bar(">=", 0.3)),
        Row("longest wait of any call", _single(_longest(results)), Bar("<", 1_000), "ms"),
        Row(
            "throughput; plain APSW with busy_timeout is 1",
            _single(_total(results) / _total(plain_results)),
        ),
        Row("plain APSW: errors", _single(_errors(plain_results)), unit=""),
        Row("plain APSW: least over most served", _single(_fairness(plain_results))),
        Row("plain APSW: longest wait", _single(_longest(plain_results)), unit="ms"),
    ]


def _saturate(make_worker: Callable[..., Any], path: Path, seconds: float) -> list[WriterResult]:
    with WorkerPool(PROCESSES, make_worker, path) as pool:
        return pool.run_for(seconds)


@contextmanager
def corral_worker(number: int, path: Path) -> Iterator[Task]:
    with open_store(f"sqlite:///{path}") as store:
        mail, owner = store.mail, f"{OWNER}-{number}"

        def cycle(result: WriterResult) -> None:
            result.timed(partial(mail.put, MAILBOX, BODY))
            result.put += 1
            for letter in result.timed(partial(mail.claim, MAILBOX, owner=owner)):
                result.timed(partial(mail.ack, letter))
                result.done += 1

        yield partial(_work, cycle)


@contextmanager
def worker_by_hand(number: int, path: Path) -> Iterator[Task]:
    raw = RawSqlite(path)

    def cycle(result: WriterResult) -> None:
        result.timed(raw.put)
        result.put += 1
        claimed = result.timed(raw.claim)
        if claimed is not None:
            seq, fence, _ = claimed
            result.timed(partial(raw.ack, seq, fence))
            result.done += 1

    yield partial(_work, cycle)


def _work(cycle: Cycle, end: float) -> WriterResult:
    result = WriterResult()
    while time.monotonic() < end:
        try:
            cycle(result)
        except Exception as error:  # every error that reaches the caller is counted
            result.errors.append(repr(error))
    return result


def _count_lost(path: Path, results: list[WriterResult]) -> int:
    """Return accepted calls that are missing or duplicated in the store."""
    with open_store(f"sqlite:///{path}") as store:
        ((put, done),) = store.db.sql(
            "SELECT count(*), count(*) FILTER (WHERE state = 'done') FROM letters",
            timeout_ms=60_000,
        ).rows
        ((put_events, ack_events),) = store.db.sql(
            "SELECT count(*) FILTER (WHERE verb = 'put'), count(*) FILTER (WHERE verb = 'ack')"
            " FROM events",
            timeout_ms=60_000,
        ).rows
    reported_puts = sum(result.put for result in results)
    reported_acks = sum(result.done for result in results)
    return sum(
        abs(result - value)
        for result, value in (
            (reported_puts, put),
            (reported_puts, put_events),
            (reported_acks, done),
            (reported_acks, ack_events),
        )
    )


def _errors(results: list[WriterResult]) -> int:
    return sum(len(result.errors) for result in results)


def _fairness(results: list[WriterResult]) -> float:
    served = [result.put + result.done for result in results]
    return min(served) / max(served)


def _longest(results: list[WriterResult]) -> float:
    return max(result.longest_ms for result in results)


def _total(results: list[WriterResult]) -> int:
    return sum(result.put + result.done for result in results)


def _single(value: float) -> Spread:
    return Spread.of([value])
