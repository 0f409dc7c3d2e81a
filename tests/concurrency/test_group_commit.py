"""Threads that share a transaction: what one of them does wrong is its own affair."""

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

import corral
from corral.api import Corral
from corral.api.operation import Resource, write
from corral.db.group_commit import Job
from corral.db.tx import Tx
from corral.domain.mail import ops as mail
from corral.kernel.clock import ManualClock
from corral.kernel.errors import CorralError, Held, Invalid
from tests.support.home import wait_until
from tests.support.invariants import check_store
from tests.support.threads import SECONDS, Racer

BOX = "queue:work"
THREADS = 64


class Stop(BaseException):
    """As KeyboardInterrupt: no error of the work's own."""


def _put_then_raise(tx: Tx, error: BaseException) -> None:
    mail.put(tx, BOX, "of the one that failed")
    raise error


class Odd(Resource):
    fail = write(_put_then_raise)


def line_length(store: Corral) -> int | None:
    """How many threads wait to write; None for PostgreSQL, where none has to wait."""
    line = getattr(store._database, "_queue", None)
    return None if line is None else len(line.waiting)


@contextmanager
def crowd(store: Corral, works: list[Callable[[], object]]) -> Iterator[list[Racer[object]]]:
    """Threads that all stand in line, in this order, when the way becomes free.

    On SQLite an open transaction keeps them there; the first of them then leads and the others
    follow in its transaction. PostgreSQL needs no such line, and lets them all through.
    """
    racers: list[Racer[object]] = []

    def stand_in_line() -> bool:
        length = line_length(store)
        return length is None or length >= sum(racer.is_running for racer in racers)

    with store.transaction():
        for work in works:
            racers.append(Racer(work))
            wait_until(stand_in_line, "a thread stands in line")
    yield racers
    for racer in racers:
        racer.join()


def puts(store: Corral, count: int) -> list[Callable[[], object]]:
    return [partial(store.mail.put, BOX, number) for number in range(count)]


def bodies(store: Corral) -> list[object]:
    return sorted(
        (letter.body for letter in store.mail.list(mailbox=BOX, limit=1_000).items), key=str
    )


def numbers(count: int) -> list[object]:
    return sorted(range(count), key=str)


def test_sqlite_groups_writes_of_many_threads_into_few_commits(url: str, engine: str) -> None:
    commits: list[str] = []
    with corral.open(url, clock=ManualClock(), probe=commits.append) as store:
        with crowd(store, puts(store, THREADS)):
            pass
        assert bodies(store) == numbers(THREADS)
    told = commits.count("after commit") - 1  # without the transaction that kept them waiting
    # PostgreSQL groups commits itself, in the server.
    assert told <= 4 if engine == "sqlite" else told == THREADS


@pytest.mark.parametrize(
    ("place", "error"),
    [
        (0, Invalid("no")),
        (0, Stop()),
        (1, ZeroDivisionError()),
        (1, Stop()),
        (THREADS - 1, Invalid("no")),
    ],
    ids=repr,
)
def test_failing_job_does_not_roll_back_other_jobs(
    store: Corral, place: int, error: BaseException
) -> None:
    works = puts(store, THREADS - 1)
    works.insert(place, partial(Odd(store._database).fail, error))
    with crowd(store, works) as racers:
        pass
    assert [racer.error for racer in racers if racer.error is not None] == [error]
    assert racers[place].error is error
    assert bodies(store) == numbers(THREADS - 1)
    check_store(store)


def test_grouped_writes_record_the_actor_of_each_caller(store: Corral) -> None:
    store.act_as("user:tester")
    names = [f"token:t{n}" if n % 2 else "user:tester" for n in range(12)]
    works: list[Callable[[], object]] = [
        partial((store if name == "user:tester" else store.as_actor(name)).mail.put, BOX, name)
        for name in names
    ]
    with crowd(store, works):
        pass
    put = store.mail.list(mailbox=BOX, limit=100).items
    events = store.events.newest(limit=100).items
    actors = {event.subject: event.actor for event in events if event.kind == "letter"}
    assert {letter.body: actors[letter.id] for letter in put} == {name: name for name in names}
    assert [actors[letter.id] for letter in put] == [letter.body for letter in put]


def test_errors_in_a_group_reach_only_their_callers(store: Corral) -> None:
    store.mail.put(BOX, "taken over")
    (mine,) = store.mail.claim(BOX, owner="me")
    works = puts(store, 20)
    works[3] = partial(store.mail.put, "nowhere", 3)
    works[7] = partial(store.mail.ack, mine.id, fence=mine.fence + 1)
    works[11] = partial(store.mail.resolve, mine.id, delivered=True)
    with crowd(store, works) as racers:
        pass
    errors = {place: racer.error for place, racer in enumerate(racers) if racer.error}
    assert {place: getattr(error, "code", error) for place, error in errors.items()} == {
        3: "invalid",
        7: "held",
        11: "illegal_move",
    }
    assert isinstance(errors[7], Held)
    expected = [number for number in range(20) if number not in errors]
    assert bodies(store) == sorted([*expected, "taken over"], key=str)
    check_store(store)


def test_interrupt_after_the_commit_repeats_no_job(url: str) -> None:
    interrupt = threading.Event()

    def probe(moment: str) -> None:
        if moment == "after commit" and interrupt.is_set():
            interrupt.clear()
            raise KeyboardInterrupt

    with corral.open(url, clock=ManualClock(), probe=probe) as store:
        with crowd(store, [lambda: None, *puts(store, 20)]) as racers:
            interrupt.set()
        raised = [type(racer.error) for racer in racers if racer.error is not None]
        assert raised in ([], [KeyboardInterrupt])
        # What was committed stays, also that of the one who was interrupted, and no more than that.
        assert bodies(store) == numbers(20)
        check_store(store)


@pytest.fixture
def interrupting() -> Iterator[Callable[[], None]]:
    """A signal that raises `Stop` in the main thread, wherever it is: what Ctrl-C does."""

    def raise_stop(number: int, frame: object) -> None:
        raise Stop

    before = signal.signal(signal.SIGUSR1, raise_stop)
    try:
        yield lambda: os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


@contextmanager
def held(store: Corral) -> Iterator[threading.Event]:
    """Another thread has a transaction open until the event is set."""
    begun, free = threading.Event(), threading.Event()

    def hold() -> None:
        with store.transaction():
            begun.set()
            assert free.wait(SECONDS)

    holder = Racer(hold)
    assert begun.wait(SECONDS)
    try:
        yield free
    finally:
        free.set()
        holder.result()


def test_interrupted_waiting_thread_does_not_block_others(
    store: Corral, interrupting: Callable[[], None]
) -> None:
    put, waits = threading.Event(), threading.Event()

    def wait_in_line() -> None:
        waits.set()
        store.mail.put(BOX, "interrupted")
        put.set()  # on PostgreSQL no write has to wait
        time.sleep(SECONDS)

    def interrupt_when_it_waits() -> None:
        assert waits.wait(SECONDS)
        wait_until(lambda: put.is_set() or line_length(store) == 1, "the main thread waits")
        interrupting()

    with held(store):
        interrupter = Racer(interrupt_when_it_waits)
        with pytest.raises(Stop):
            wait_in_line()
        interrupter.result()
    others = [Racer(partial(store.mail.put, BOX, number)) for number in range(3)]
    for other in others:
        other.result()
    assert set(bodies(store)) - {"interrupted"} == {0, 1, 2}


def test_interrupt_while_joining_the_queue_does_not_block_others(
    tmp_path: Path,
) -> None:
    class InterruptedAtAppend(deque[Job]):
        def append(self, job: Job) -> None:
            super().append(job)
            raise Stop

    with corral.open(tmp_path / "corral.db") as store:
        line = store._database._queue
        with held(store):
            line.waiting = InterruptedAtAppend()
            with pytest.raises(Stop):
                store.mail.put(BOX, "interrupted")
            assert not line.waiting
            line.waiting = deque()
        Racer(partial(store.mail.put, BOX, "after")).result()
        assert bodies(store) == ["after"]


def test_interrupted_leader_does_not_lose_the_jobs_of_others(
    store: Corral, interrupting: Callable[[], None]
) -> None:
    def put_and_interrupt_the_main_thread(tx: Tx) -> None:
        mail.put(tx, BOX, "of the other")
        if threading.current_thread() is threading.main_thread():
            interrupting()

    class Other(Resource):
        put = write(put_and_interrupt_the_main_thread)

    def follow_and_free(free: threading.Event) -> "Racer[None]":
        if line_length(store) is not None:
            wait_until(lambda: line_length(store) == 1, "the main thread waits")
        follower = Racer(Other(store._database).put)
        if line_length(store) is not None:
            wait_until(lambda: line_length(store) == 2, "the other thread waits behind it")
        free.set()
        return follower

    with held(store) as free:
        following = Racer(lambda: follow_and_free(free))
        with suppress(Stop):
            store.mail.put(BOX, "of the main thread")
        following.result().result()
    assert bodies(store).count("of the other") == 1
    store.mail.put(BOX, "the way is free")
    check_store(store)


class OnceFailing(Resource):
    """A write that puts a letter, and raises an error after one of its calls."""

    def __init__(self, store: Corral, body: str, error: BaseException, *, at_call: int) -> None:
        super().__init__(store._database)
        self._body, self._error, self._calls_left = body, error, at_call

    def put(self) -> None:
        self._database.write(self._put)

    def _put(self, tx: Tx) -> None:
        mail.put(tx, BOX, self._body)
        self._calls_left -= 1
        if self._calls_left == 0:
            raise self._error


@pytest.mark.parametrize("place", [0, 1], ids=["the leader's work fails", "a job fails"])
def test_interrupt_survives_a_failure_of_the_repeated_batch(tmp_path: Path, place: int) -> None:
    """The last job is interrupted on the leader's thread, then another fails when it is repeated.

    Only SQLite groups commits in the process.
    """
    with corral.open(tmp_path / "corral.db", clock=ManualClock()) as store:
        works = puts(store, 2)
        works[place] = OnceFailing(store, "repeated", Invalid("no"), at_call=2).put
        works.append(OnceFailing(store, "interrupted", KeyboardInterrupt(), at_call=1).put)
        with crowd(store, works) as racers:
            pass
        assert [type(racer.error) for racer in racers] == [
            KeyboardInterrupt,
            type(None),
            type(None),
        ]
        expected = ["interrupted", "repeated", 0] if place else ["interrupted", 1]
        assert bodies(store) == sorted(expected, key=str)
        check_store(store)


def test_concurrent_first_writes_do_not_deadlock(url: str) -> None:
    """Nothing is known yet, not even the server's time, and there are more threads than places."""
    with corral.open(url) as store:
        together = threading.Barrier(THREADS)

        def put(number: int) -> None:
            together.wait(SECONDS)
            store.mail.put(BOX, number)

        racers = [Racer(partial(put, number)) for number in range(THREADS)]
        for racer in racers:
            racer.result()
        assert bodies(store) == numbers(THREADS)


def test_concurrent_mixed_operations_keep_the_store_consistent(store: Corral) -> None:
    def everything(number: int) -> None:
        store.mail.put(BOX, number)
        for letter in store.mail.claim(BOX, owner=str(number)):
            store.mail.ack(letter)
        store.settings.set("mail.max_attempts", number % 9 + 1)
        timer = store.timers.set(f"agent:{number}", "tea", delay_ms=5_000)
        store.timers.cancel(timer.id)
        for letter in store.mail.claim(BOX, owner=str(number)):
            try:
                store.mail.fail(letter, "broken")
            except CorralError as error:
                pytest.fail(f"a letter that was claimed was lost: {error}")

    racers = [Racer(partial(everything, number)) for number in range(24)]
    for racer in racers:
        racer.result()
    assert len(store.mail.list(mailbox=BOX, all=True, limit=100).items) == 24
    check_store(store)
