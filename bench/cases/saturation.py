"""Sixteen processes that write to one SQLite file as fast as they can: fairness and latency."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from bench.crew import Crew, Task
from bench.harness import Bar, Bench, Row, Spread
from bench.opponents import BODY, MAILBOX, OWNER, open_store
from bench.opponents.raw_sqlite import RawSqlite

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
    """What one process did, and its slowest call."""

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
    shifts = _saturate(hire_corral, corral_file, seconds)
    bench.progress(f"APSW by hand with busy_timeout for {seconds:.0f} s")
    plain_shifts = _saturate(hire_by_hand, plain_file, seconds)
    return [
        Row("rows lost or duplicated", _single(_count_lost(corral_file, shifts)), Bar("=", 0), ""),
        Row("errors that reached a caller", _single(_errors(shifts)), Bar("=", 0), ""),
        Row("least served over most served", _single(_fairness(shifts)), Bar(">=", 0.3)),
        Row("longest wait of any call", _single(_longest(shifts)), Bar("<", 1_000), "ms"),
        Row(
            "throughput; plain APSW with busy_timeout is 1",
            _single(_total(shifts) / _total(plain_shifts)),
        ),
        Row("plain APSW: errors", _single(_errors(plain_shifts)), unit=""),
        Row("plain APSW: least over most served", _single(_fairness(plain_shifts))),
        Row("plain APSW: longest wait", _single(_longest(plain_shifts)), unit="ms"),
    ]


def _saturate(hire: Callable[..., Any], path: Path, seconds: float) -> list[WriterResult]:
    with Crew(PROCESSES, hire, path) as crew:
        return crew.shift(seconds)


@contextmanager
def hire_corral(number: int, path: Path) -> Iterator[Task]:
    with open_store(f"sqlite:///{path}") as store:
        mail, owner = store.mail, f"{OWNER}-{number}"

        def cycle(shift: WriterResult) -> None:
            shift.timed(partial(mail.put, MAILBOX, BODY))
            shift.put += 1
            for letter in shift.timed(partial(mail.claim, MAILBOX, owner=owner)):
                shift.timed(partial(mail.ack, letter))
                shift.done += 1

        yield partial(_work, cycle)


@contextmanager
def hire_by_hand(number: int, path: Path) -> Iterator[Task]:
    raw = RawSqlite(path)

    def cycle(shift: WriterResult) -> None:
        shift.timed(raw.put)
        shift.put += 1
        claimed = shift.timed(raw.claim)
        if claimed is not None:
            seq, fence, _ = claimed
            shift.timed(partial(raw.ack, seq, fence))
            shift.done += 1

    yield partial(_work, cycle)


def _work(cycle: Cycle, end: float) -> WriterResult:
    shift = WriterResult()
    while time.monotonic() < end:
        try:
            cycle(shift)
        except Exception as error:  # every error that reaches the caller is counted
            shift.errors.append(repr(error))
    return shift


def _count_lost(path: Path, shifts: list[WriterResult]) -> int:
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
    reported_puts = sum(shift.put for shift in shifts)
    reported_acks = sum(shift.done for shift in shifts)
    return sum(
        abs(result - value)
        for result, value in (
            (reported_puts, put),
            (reported_puts, put_events),
            (reported_acks, done),
            (reported_acks, ack_events),
        )
    )


def _errors(shifts: list[WriterResult]) -> int:
    return sum(len(shift.errors) for shift in shifts)


def _fairness(shifts: list[WriterResult]) -> float:
    served = [shift.put + shift.done for shift in shifts]
    return min(served) / max(served)


def _longest(shifts: list[WriterResult]) -> float:
    return max(shift.longest_ms for shift in shifts)


def _total(shifts: list[WriterResult]) -> int:
    return sum(shift.put + shift.done for shift in shifts)


def _single(value: float) -> Spread:
    return Spread.of([value])
