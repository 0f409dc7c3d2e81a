"""Mail on SQLite against Python queues, one process."""

import time
from collections.abc import Callable
from functools import partial
from typing import cast

from bench.harness import Bar, Bench, Comparison, Rates, Rival, Row
from bench.opponents import MAILBOX, OWNER, CorralQueue, Queue, open_store, put_then_take
from bench.opponents.on_sqlite import Huey, Litequeue, PersistQueue, dbos_worker
from bench.opponents.raw_sqlite import RawSqlite
from bench.worker_pool import WorkerPool
from corral.api import Corral

TITLE = "Mail on SQLite beside other queues, one process"
ABOUT = """
    Each peer is driven as its own worker drives it, with the same body: put 1,000 messages,
    then process them. "A worker's loop" is `ack_and_claim` for Corral, and the equivalent loop
    of the peer. The bars apply to huey at NORMAL and to the others as shipped; other rows show
    both settings. The peers use SQLite of the standard library and write no events: their put
    writes two pages, Corral's three (letter, queue position, event). The row "by hand" shows
    what that alone costs. DBOS is a workflow engine: it also records each workflow, its claims
    cannot be separated from its puts, and its queue polls every few milliseconds.
"""
FASTER = Bar(">", 1)
TWENTY_TIMES = Bar(">=", 20)
LOOP = "a worker's loop"
PERSIST = """
    It inserts one row of four columns and updates it twice: no event, no fence, no lease, no
    priority.
"""
BY_HAND = """
    The same rows without records, validation, fair write lock and group commit.
"""
DISK = """
    Waiting for the disk is nearly all of the time. huey commits once for a job, because it deletes
    the job before it runs; Corral and persist-queue commit twice.
"""
LIGHT = """
    It writes one row of one table; Corral writes the letter, its queue position and an event.
"""


def measure(bench: Bench) -> list[Row]:
    count = 400
    with open_store(f"sqlite:///{bench.new_file()}") as store:
        corral = Rival("Corral", partial(_sample_corral, store, count))
        return [
            *_against_queues(bench, corral, count),
            *_against_dbos(bench, corral),
            *_at_full(bench, store),
        ]


def _against_queues(bench: Bench, corral: Rival, count: int) -> list[Row]:
    peers: dict[str, tuple[Queue, Bar | None]] = {
        "huey at NORMAL": (Huey(bench.new_file(), normal=True), FASTER),
        "huey as shipped (FULL)": (Huey(bench.new_file(), normal=False), None),
        "litequeue as shipped (NORMAL)": (Litequeue(bench.new_file()), FASTER),
        "persist-queue at NORMAL": (PersistQueue(bench.new_file(), normal=True), None),
        "persist-queue as shipped (FULL)": (PersistQueue(bench.new_file(), normal=False), FASTER),
        "Corral's rows, by hand": (RawSqlite(bench.new_file()), None),
    }
    rivals = [Rival(name, _sampler(queue, count)) for name, (queue, _) in peers.items()]
    result = bench.compare(corral, rivals, rounds=bench.pick(15, 2))
    return [
        row
        for name, (_, bar) in peers.items()
        for row in _rows(result, name, ("put", "claim + ack", LOOP), bar)
    ]


def _at_full(bench: Bench, store: Corral) -> list[Row]:
    """Queues that default to FULL, and Corral at FULL as well."""
    store.db.durability("full")
    count = bench.pick(200, 100)
    peers: dict[str, Queue] = {
        "huey, both at FULL": Huey(bench.new_file(), normal=False),
        "persist-queue, both at FULL": PersistQueue(bench.new_file(), normal=False),
    }
    corral = Rival("Corral", partial(_sample_corral, store, count))
    rivals = [Rival(name, _sampler(queue, count)) for name, queue in peers.items()]
    result = bench.compare(corral, rivals, rounds=bench.pick(7, 2))
    return [
        row
        for name in peers
        for row in _rows(result, name, ("put", "claim + ack", LOOP), None, DISK)
    ]


def _why(peer: str) -> str:
    if "persist-queue" in peer:
        return PERSIST
    return BY_HAND if "by hand" in peer else LIGHT


def _against_dbos(bench: Bench, corral: Rival) -> list[Row]:
    ways = {
        "DBOS as shipped (FULL), one at a time": (False, True, TWENTY_TIMES),
        "DBOS at NORMAL, one at a time": (True, True, None),
        "DBOS at NORMAL, all at once": (True, False, None),
    }
    rows = []
    for name, (normal, one_at_a_time, bar) in ways.items():
        url = f"sqlite:///{bench.new_file()}"
        args = (url, bench.pick(100, 30), normal, one_at_a_time)
        with WorkerPool(1, dbos_worker, *args) as pool:
            dbos = Rival(name, partial(sample_alone, pool))
            result = bench.compare(corral, [dbos], rounds=bench.pick(5, 2))
        rows += _rows(result, name, ("put", "put + claim + ack"), bar)
    return rows


def _sample_corral(store: Corral, count: int) -> Rates:
    queue = CorralQueue(store)
    rates = put_then_take(queue, count)
    for _ in range(count):
        queue.put()
    start = time.perf_counter()
    letters = store.mail.claim(MAILBOX, owner=OWNER)
    while letters:
        letters = store.mail.ack_and_claim(letters[0], owner=OWNER)
    return {**rates, LOOP: count / (time.perf_counter() - start)}


def sample_alone(pool: WorkerPool) -> Rates:
    (rates,) = pool.run_for(0)
    return cast(Rates, rates)


def _sampler(queue: Queue, count: int) -> Callable[[], Rates]:
    def sample() -> Rates:
        rates = put_then_take(queue, count)
        if isinstance(queue, PersistQueue):
            queue.forget()
        return {**rates, LOOP: rates["claim + ack"]}

    return sample


def _rows(
    comparison: Comparison, peer: str, calls: tuple[str, ...], bar: Bar | None, why: str = ""
) -> list[Row]:
    return [
        Row(
            f"{call} on SQLite", comparison.speed_of_base_over(peer, call), bar, over=peer
        ).unless_ahead(why or _why(peer))
        for call in calls
    ]
