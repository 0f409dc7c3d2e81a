"""Mail on PostgreSQL, four worker processes on one mailbox."""

from contextlib import ExitStack
from functools import partial

from bench.cases.peers_on_sqlite import sample_alone
from bench.harness import Bar, Bench, Rates, Rival, Row, rate_of
from bench.opponents import CorralQueue, on_postgres, open_store, put_then_take
from bench.opponents.on_sqlite import dbos_worker
from bench.worker_pool import WorkerPool

TITLE = "Mail on PostgreSQL"
ABOUT = """
    Four processes empty one mailbox on a server with fsync on. By hand (1x): psycopg with two
    prepared statements in autocommit on Corral's tables: a claim with SKIP LOCKED, and a
    data-modifying WITH that acknowledges and writes the event; two round trips, the minimum.
    The peers have their own tables on the same server. procrastinate is driven by its own fetch
    and finish functions, without the other duties of its worker; PGMQ by its SQL functions
    send, read and archive, which like Corral keeps finished messages. Put is one process, one
    message per commit. DBOS records each workflow; it polls every millisecond, and the time
    ends when the last workflow has run.
"""
PUTS = 200
DBOS = "DBOS on PostgreSQL, one at a time"
WHY = """
    It writes one row of one table in one round trip; Corral writes the letter with its queue
    position and an event.
"""
WORKERS = 4
BACKLOG = 10_000  # more than any worker handles in one period


def measure(bench: Bench) -> list[Row]:
    seconds = bench.pick(1.5, 0.7)
    with ExitStack() as closing:
        by_hand, corral, procrastinate, pgmq = (
            _rival(bench, closing, contestant, seconds)
            for contestant in (
                on_postgres.BY_HAND,
                on_postgres.CORRAL,
                on_postgres.PROCRASTINATE,
                on_postgres.PGMQ,
            )
        )
        rounds = bench.pick(7, 3)
        raw = bench.compare(by_hand, [corral], rounds=rounds)
        peers = bench.compare(corral, [procrastinate, pgmq], rounds=bench.pick(5, 2))
    return [
        Row("claim + ack", raw.speed_of("Corral", "claim + ack"), Bar(">=", 0.7)),
        *(
            Row(
                "claim + ack on PostgreSQL, 4 workers",
                peers.speed_of_base_over(peer.name, "claim + ack"),
                Bar(">", 1),
                over=peer.name,
            ).unless_ahead(WHY)
            for peer in (procrastinate, pgmq)
        ),
        *_puts(bench),
        *_against_dbos(bench),
    ]


def _puts(bench: Bench) -> list[Row]:
    with ExitStack() as closing:
        corral, *peers = (
            _putting(bench, closing, contestant)
            for contestant in (on_postgres.CORRAL, on_postgres.PROCRASTINATE, on_postgres.PGMQ)
        )
        result = bench.compare(corral, peers, rounds=bench.pick(9, 3))
    return [
        Row(
            "put on PostgreSQL", result.speed_of_base_over(peer.name, "put"), over=peer.name
        ).unless_ahead(WHY)
        for peer in peers
    ]


def _putting(bench: Bench, closing: ExitStack, contestant: on_postgres.Contestant) -> Rival:
    url = bench.server.new_database()
    contestant.make(url)
    put_one = closing.enter_context(contestant.putting(url))
    return Rival(contestant.name, lambda: {"put": rate_of(put_one, PUTS)})


def _against_dbos(bench: Bench) -> list[Row]:
    count = bench.pick(100, 30)
    pool = WorkerPool(1, dbos_worker, bench.server.new_database(), count, False, True)
    with pool, open_store(bench.server.new_database()) as store:
        corral = Rival("Corral", partial(put_then_take, CorralQueue(store), count))
        dbos = Rival(DBOS, partial(sample_alone, pool))
        result = bench.compare(corral, [dbos], rounds=bench.pick(5, 2))
    return [
        Row(f"{call} on PostgreSQL", result.speed_of_base_over(DBOS, call), Bar(">", 1), over=DBOS)
        for call in ("put", "put + claim + ack")
    ]


def _rival(
    bench: Bench, closing: ExitStack, contestant: on_postgres.Contestant, seconds: float
) -> Rival:
    """A contestant with its database, its backlog and its workers."""
    url = bench.server.new_database()
    contestant.make(url)
    contestant.fill(url, BACKLOG)
    pool = closing.enter_context(WorkerPool(WORKERS, contestant.make_worker, url))

    def sample() -> Rates:
        count = sum(pool.run_for(seconds))
        contestant.fill(url, count)
        return {"claim + ack": count / seconds}

    return Rival(contestant.name, sample)
