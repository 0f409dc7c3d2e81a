"""Group commit: threads share a transaction, and an error affects only its own job."""

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
    """Like KeyboardInterrupt: raised from outside of the job."""


def _put_then_raise(tx: Tx, error: BaseException) -> None:
    mail.put(tx, BOX, "failed")
    raise error


class FailingResource(Resource):
    fail = write(_put_then_raise)


def count_waiting(store: Corral) -> int | None:
    """Return the number of waiting writers; None on PostgreSQL, where writers do not wait."""
    queue = getattr(store._database, "_queue", None)
    return None if queue is None else len(queue.waiting)


@contextmanager
def run_grouped(store: Corral, works: list[Callable[[], object]]) -> Iterator[list[Racer[object]]]:
    """Start threads that all wait in the write queue, in this order.

    On SQLite an open transaction blocks them. When it ends, the first thread becomes the leader and
    writes the jobs of the others in its transaction. PostgreSQL has no queue.
    """
    racers: list[Racer[object]] = []

    def is_waiting() -> bool:
        length = count_waiting(store)
        return length is None or length >= sum(racer.is_running for racer in racers)

    with store.transaction():
        for work in works:
            racers.append(Racer(work))
            wait_until(is_waiting, "the thread waits in the queue")
    yield racers
    for racer in racers:
        racer.join()


def make_puts(store: Corral, count: int) -> list[Callable[[], object]]:
    return [partial(store.mail.put, BOX, number) for number in range(count)]


def list_bodies(store: Corral) -> list[object]:
    return sorted(
        (letter.body for letter in store.mail.list(mailbox=BOX, limit=1_000).items), key=str
    )


def expected_bodies(count: int) -> list[object]:
    return sorted(range(count), key=str)


def test_sqlite_groups_writes_of_many_threads_into_few_commits(url: str, engine: str) -> None:
    commits: list[str] = []
    with corral.open(url, clock=ManualClock(), probe=commits.append) as store:
        with run_grouped(store, make_puts(store, THREADS)):
            pass
        assert list_bodies(store) == expected_bodies(THREADS)
    count = commits.count("after commit") - 1  # without the blocking transaction
    # PostgreSQL groups commits itself, in the server.
    assert count <= 4 if engine == "sqlite" else count == THREADS


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
    works = make_puts(store, THREADS - 1)
    works.insert(place, partial(FailingResource(store._executor).fail, error))
    with run_grouped(store, works) as racers:
        pass
    assert [racer.error for racer in racers if racer.error is not None] == [error]
    assert racers[place].error is error
    assert list_bodies(store) == expected_bodies(THREADS - 1)
    check_store(store)


def test_grouped_writes_record_the_actor_of_each_caller(store: Corral) -> None:
    store.act_as("user:tester")
    names = [f"token:t{n}" if n % 2 else "user:tester" for n in range(12)]
    works: list[Callable[[], object]] = [
        partial((store if name == "user:tester" else store.as_actor(name)).mail.put, BOX, name)
        for name in names
    ]
    with run_grouped(store, works):
        pass
    put = store.mail.list(mailbox=BOX, limit=100).items
    events = store.events.newest(limit=100).items
    actors = {event.subject: event.actor for event in events if event.kind == "letter"}
    assert {letter.body: actors[letter.id] for letter in put} == {name: name for name in names}
    assert [actors[letter.id] for letter in put] == [letter.body for letter in put]


def test_errors_in_a_group_reach_only_their_callers(store: Corral) -> None:
    store.mail.put(BOX, "taken over")
    (letter,) = store.mail.claim(BOX, owner="me")
    works = make_puts(store, 20)
    works[3] = partial(store.mail.put, "nowhere", 3)
    works[7] = partial(store.mail.ack, letter.id, fence=letter.fence + 1)
    works[11] = partial(store.mail.resolve, letter.id, delivered=True)
    with run_grouped(store, works) as racers:
        pass
    errors = {place: racer.error for place, racer in enumerate(racers) if racer.error}
    assert {place: getattr(error, "code", error) for place, error in errors.items()} == {
        3: "invalid",
        7: "held",
        11: "illegal_move",
    }
    assert isinstance(errors[7], Held)
    expected = [number for number in range(20) if number not in errors]
    assert list_bodies(store) == sorted([*expected, "taken over"], key=str)
    check_store(store)


def test_interrupt_after_the_commit_repeats_no_job(url: str) -> None:
    interrupt = threading.Event()

    def probe(moment: str) -> None:
        if moment == "after commit" and interrupt.is_set():
            interrupt.clear()
            raise KeyboardInterrupt

    with corral.open(url, clock=ManualClock(), probe=probe) as store:
        with run_grouped(store, [lambda: None, *make_puts(store, 20)]) as racers:
            interrupt.set()
        raised = [type(racer.error) for racer in racers if racer.error is not None]
        assert raised in ([], [KeyboardInterrupt])
        # All committed jobs stay, including the interrupted one, and none is repeated.
        assert list_bodies(store) == expected_bodies(20)
        check_store(store)


@pytest.fixture
def interrupt_main_thread() -> Iterator[Callable[[], None]]:
    """Return a function that raises `Stop` in the main thread, like Ctrl-C."""

    def raise_stop(number: int, frame: object) -> None:
        raise Stop

    before = signal.signal(signal.SIGUSR1, raise_stop)
    try:
        yield lambda: os.kill(os.getpid(), signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)


@contextmanager
def open_transaction(store: Corral) -> Iterator[threading.Event]:
    """Keep a transaction open in another thread until the event is set."""
    started, released = threading.Event(), threading.Event()

    def hold_transaction() -> None:
        with store.transaction():
            started.set()
            assert released.wait(SECONDS)

    holder = Racer(hold_transaction)
    assert started.wait(SECONDS)
    try:
        yield released
    finally:
        released.set()
        holder.result()


def test_interrupted_waiting_thread_does_not_block_others(
    store: Corral, interrupt_main_thread: Callable[[], None]
) -> None:
    put, waiting = threading.Event(), threading.Event()

    def put_and_wait() -> None:
        waiting.set()
        store.mail.put(BOX, "interrupted")
        put.set()  # PostgreSQL writes do not wait
        time.sleep(SECONDS)

    def interrupt_when_it_waits() -> None:
        assert waiting.wait(SECONDS)
        wait_until(lambda: put.is_set() or count_waiting(store) == 1, "the main thread waits")
        interrupt_main_thread()

    with open_transaction(store):
        interrupter = Racer(interrupt_when_it_waits)
        with pytest.raises(Stop):
            put_and_wait()
        interrupter.result()
    others = [Racer(partial(store.mail.put, BOX, number)) for number in range(3)]
    for other in others:
        other.result()
    assert set(list_bodies(store)) - {"interrupted"} == {0, 1, 2}


def test_interrupt_while_joining_the_queue_does_not_block_others(
    tmp_path: Path,
) -> None:
    class InterruptedAtAppend(deque[Job]):
        def append(self, job: Job) -> None:
            super().append(job)
            raise Stop

    with corral.open(tmp_path / "corral.db") as store:
        queue = store._database._queue
        with open_transaction(store):
            queue.waiting = InterruptedAtAppend()
            with pytest.raises(Stop):
                store.mail.put(BOX, "interrupted")
            assert not queue.waiting
            queue.waiting = deque()
        Racer(partial(store.mail.put, BOX, "after")).result()
        assert list_bodies(store) == ["after"]


@pytest.mark.parametrize("is_removed", [False, True], ids=["before removal", "after removal"])
def test_interrupt_while_taking_a_job_does_not_lose_it(tmp_path: Path, is_removed: bool) -> None:
    class InterruptedAtRemove(deque[Job]):
        is_armed = True

        def remove(self, job: Job) -> None:
            if is_removed:
                super().remove(job)
            if self.is_armed:
                self.is_armed = False
                raise Stop
            if not is_removed:
                super().remove(job)

    with corral.open(tmp_path / "corral.db") as store:
        queue = store._database._queue
        with open_transaction(store):
            queue.waiting = InterruptedAtRemove()
            leader = Racer(partial(store.mail.put, BOX, "by the leader"))
            wait_until(lambda: count_waiting(store) == 1, "the leader waits")
            follower = Racer(partial(store.mail.put, BOX, "by the follower"))
            wait_until(lambda: count_waiting(store) == 2, "the follower waits")
        leader.join()
        follower.result()
        assert isinstance(leader.error, Stop)
        assert list_bodies(store) == ["by the follower"]


def test_failing_clock_of_another_handle_fails_only_its_own_write(store: Corral, url: str) -> None:
    error = ZeroDivisionError()

    class FailingClock(ManualClock):
        fails = False

        def now(self) -> int:
            if self.fails:
                self.fails = False
                raise error
            return super().now()

    clock = FailingClock()
    with corral.open(url, clock=clock) as other:
        other.mail.put(BOX, "before")
        works = make_puts(store, 2)
        works.insert(1, partial(other.mail.put, BOX, "failed"))
        clock.fails = True
        with run_grouped(store, works) as racers:
            pass
        assert [racer.error for racer in racers] == [None, error, None]
        assert list_bodies(store) == sorted(["before", 0, 1], key=str)
        other.mail.put(BOX, "after")


def test_interrupted_leader_does_not_lose_the_jobs_of_others(
    store: Corral, interrupt_main_thread: Callable[[], None]
) -> None:
    def put_and_interrupt_the_main_thread(tx: Tx) -> None:
        mail.put(tx, BOX, "by the follower")
        if threading.current_thread() is threading.main_thread():
            interrupt_main_thread()

    class Other(Resource):
        put = write(put_and_interrupt_the_main_thread)

    def follow_and_free(free: threading.Event) -> "Racer[None]":
        if count_waiting(store) is not None:
            wait_until(lambda: count_waiting(store) == 1, "the main thread waits")
        follower = Racer(Other(store._executor).put)
        if count_waiting(store) is not None:
            wait_until(lambda: count_waiting(store) == 2, "the follower waits too")
        free.set()
        return follower

    with open_transaction(store) as free:
        following = Racer(lambda: follow_and_free(free))
        with suppress(Stop):
            store.mail.put(BOX, "by the main thread")
        following.result().result()
    assert list_bodies(store).count("by the follower") == 1
    store.mail.put(BOX, "after")
    check_store(store)


class OnceFailing(Resource):
    """A write that puts a letter, and raises an error after one of its calls."""

    def __init__(self, store: Corral, body: str, error: BaseException, *, at_call: int) -> None:
        super().__init__(store._executor)
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
        works = make_puts(store, 2)
        works[place] = OnceFailing(store, "repeated", Invalid("no"), at_call=2).put
        works.append(OnceFailing(store, "interrupted", KeyboardInterrupt(), at_call=1).put)
        with run_grouped(store, works) as racers:
            pass
        assert [type(racer.error) for racer in racers] == [
            KeyboardInterrupt,
            type(None),
            type(None),
        ]
        expected = ["interrupted", "repeated", 0] if place else ["interrupted", 1]
        assert list_bodies(store) == sorted(expected, key=str)
        check_store(store)


def test_concurrent_first_writes_do_not_deadlock(url: str) -> None:
    """The first writes initialize the store, with more threads than connections."""
    with corral.open(url) as store:
        together = threading.Barrier(THREADS)

        def put(number: int) -> None:
            together.wait(SECONDS)
            store.mail.put(BOX, number)

        racers = [Racer(partial(put, number)) for number in range(THREADS)]
        for racer in racers:
            racer.result()
        assert list_bodies(store) == expected_bodies(THREADS)


def test_concurrent_mixed_operations_keep_the_store_consistent(store: Corral) -> None:
    def run_operations(number: int) -> None:
        store.mail.put(BOX, number)
        for letter in store.mail.claim(BOX, owner=str(number)):
            store.mail.ack(letter)
        store.settings.set("mail.max_attempts", number % 9 + 1)
        timer = store.timers.set(f"agent:{number}", "body", delay_ms=5_000)
        store.timers.cancel(timer.id)
        for letter in store.mail.claim(BOX, owner=str(number)):
            try:
                store.mail.fail(letter, "broken")
            except CorralError as error:
                pytest.fail(f"a claimed letter was lost: {error}")

    racers = [Racer(partial(run_operations, number)) for number in range(24)]
    for racer in racers:
        racer.result()
    assert len(store.mail.list(mailbox=BOX, all=True, limit=100).items) == 24
    check_store(store)
