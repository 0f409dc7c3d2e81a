"""Claim and complete on PostgreSQL: Corral, the same work by hand, and two queues.

Each contestant has its own database on the same durable server. It is filled in bulk, and worker
processes with one connection each empty it. A contestant has four functions: `make` creates its
tables, `fill` adds items, `make_worker` sets up a worker in its process, and `putting` prepares to
put single items.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import msgspec
import psycopg
from psycopg.types.json import set_json_loads

from bench.opponents import (
    ACTOR,
    BODY,
    LEASE_MS,
    MAILBOX,
    OWNER,
    CorralQueue,
    now_ms,
    open_store,
)
from bench.worker_pool import Task
from corral.db.postgres_pool import SESSION_SETTINGS

CLAIM = """
    WITH RECURSIVE level (rank) AS (
        SELECT min(rank) FROM letters WHERE mailbox = $1 AND state = 'waiting'
        UNION ALL
        SELECT (SELECT min(later.rank) FROM letters AS later
                WHERE later.mailbox = $1 AND later.state = 'waiting' AND later.rank > level.rank)
        FROM level
        WHERE rank IS NOT NULL AND NOT EXISTS (
            SELECT 1 FROM letters AS due
            WHERE due.mailbox = $1 AND due.state = 'waiting'
              AND due.rank = level.rank AND due.queue_at <= $3 AND due.due_at <= $3)
    ),
    picked AS MATERIALIZED (
        SELECT seq FROM letters
        WHERE mailbox = $1 AND state = 'waiting' AND rank = (SELECT max(rank) FROM level)
          AND queue_at <= $3 AND due_at <= $3
        ORDER BY queue_at, seq LIMIT 1 FOR UPDATE SKIP LOCKED
    )
    UPDATE letters
    SET owner = $2, fence = fence + 1, attempts = attempts + 1, due_at = $4, queue_at = $4
    WHERE seq = (SELECT seq FROM picked)
    RETURNING seq, fence, attempts, body
"""

# The letter and its event in one statement, so that one round trip commits both.
ACK = """
    WITH done AS (
        UPDATE letters SET state = 'done', ended_at = $1
        WHERE seq = $2 AND fence = $3 AND state IN ('waiting', 'unconfirmed')
        RETURNING seq
    )
    INSERT INTO events (at, actor, kind, verb, subject)
    SELECT $1, $4, 'letter', 'ack', 'let_' || seq FROM done
"""

FILL = """
    INSERT INTO letters
        (mailbox, body, rank, state, due_at, queue_at, fence, attempts, created_at)
    SELECT %s, %s, 0, 'waiting', %s, %s, 0, 0, %s FROM generate_series(1, %s)
"""


class Contestant(NamedTuple):
    name: str
    make: Callable[[str], None]
    fill: Callable[[str, int], None]
    make_worker: Callable[..., AbstractContextManager[Task]]
    putting: Callable[[str], AbstractContextManager[Callable[[], Any]]]


def _count_until(take: Callable[[], bool]) -> Task:
    """Take items until a deadline."""

    def task(end: float) -> int:
        count = 0
        while time.monotonic() < end and take():
            count += 1
        return count

    return task


# -- Corral, and by hand on Corral's tables -----------------------------------------------------


def make_letters(url: str) -> None:
    open_store(url).close()


def fill_letters(url: str, count: int) -> None:
    now = now_ms() - 1  # due at once, also by the server's clock
    body = msgspec.json.encode(BODY).decode()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(FILL, (MAILBOX, body, now, now, now, count))
        connection.execute("VACUUM (ANALYZE) letters")


@contextmanager
def corral_worker(number: int, url: str) -> Iterator[Task]:
    with open_store(url) as store:
        queue = CorralQueue(store)

        def take() -> bool:
            queue.take()
            return True

        yield _count_until(take)


@contextmanager
def worker_by_hand(number: int, url: str) -> Iterator[Task]:
    with psycopg.connect(url, autocommit=True, prepare_threshold=0) as connection:
        set_json_loads(msgspec.json.decode, connection)
        connection.execute(SESSION_SETTINGS, prepare=False)  # like Corral
        run = psycopg.RawCursor(connection).execute

        def take() -> bool:
            now = now_ms()
            claimed = run(CLAIM, (MAILBOX, OWNER, now, now + LEASE_MS)).fetchone()
            if claimed is None:
                return False
            seq, fence, _attempts, _body = claimed
            return run(ACK, (now_ms(), seq, fence, ACTOR)).rowcount == 1

        yield _count_until(take)


@contextmanager
def put_letters(url: str) -> Iterator[Callable[[], Any]]:
    with open_store(url) as store:
        yield CorralQueue(store).put


# -- procrastinate ------------------------------------------------------------------------------


def _procrastinate(url: str) -> Any:
    import procrastinate

    app = procrastinate.App(
        connector=procrastinate.PsycopgConnector(conninfo=url, min_size=1, max_size=1)
    )
    app.task(name="work", queue="bench")(lambda **_: None)
    return app


def make_procrastinate(url: str) -> None:
    with _procrastinate(url).open() as app:
        app.schema_manager.apply_schema()


def fill_procrastinate(url: str, count: int) -> None:
    with _procrastinate(url).open() as app:
        app.tasks["work"].batch_defer(*[BODY] * count)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("VACUUM (ANALYZE) procrastinate_jobs")


@contextmanager
def procrastinate_worker(number: int, url: str) -> Iterator[Task]:
    """Only its fetch and finish: its own worker does more and is slower."""
    from procrastinate.jobs import Status

    app = _procrastinate(url)
    with asyncio.Runner() as runner:
        runner.run(app.connector.open_async())
        manager = app.job_manager
        worker = runner.run(manager.register_worker())

        async def work_until(end: float) -> int:
            count = 0
            while time.monotonic() < end:
                job = await manager.fetch_job(queues=["bench"], worker_id=worker)
                if job is None:
                    break
                await manager.finish_job(job, status=Status.SUCCEEDED, delete_job=False)
                count += 1
            return count

        yield lambda end: runner.run(work_until(end))
        runner.run(app.connector.close_async())


@contextmanager
def put_procrastinate(url: str) -> Iterator[Callable[[], Any]]:
    with _procrastinate(url).open() as app:
        defer = app.tasks["work"].defer
        yield lambda: defer(**BODY)


# -- PGMQ's own SQL functions -------------------------------------------------------------------


def make_pgmq(url: str) -> None:
    from pgmq.install import get_embedded_install_sql, install_pgmq_sql

    install_pgmq_sql(get_embedded_install_sql(), dsn=url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pgmq.create('bench')")


def fill_pgmq(url: str, count: int) -> None:
    body = msgspec.json.encode(BODY).decode()
    send = (
        "SELECT count(*) FROM"
        " pgmq.send_batch('bench', array_fill(CAST(%s AS JSONB), ARRAY[CAST(%s AS INT)]))"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(send, (body, count))
        connection.execute("VACUUM (ANALYZE) pgmq.q_bench")


@contextmanager
def pgmq_worker(number: int, url: str) -> Iterator[Task]:
    """Read and archive: like Corral, it keeps finished items."""
    with psycopg.connect(url, autocommit=True, prepare_threshold=0) as connection:
        run = psycopg.RawCursor(connection).execute

        def take() -> bool:
            row = run("SELECT msg_id, message FROM pgmq.read('bench', 30, 1)").fetchone()
            if row is None:
                return False
            archived = run("SELECT pgmq.archive('bench', CAST($1 AS BIGINT))", (row[0],)).fetchone()
            return bool(archived and archived[0])

        yield _count_until(take)


@contextmanager
def put_pgmq(url: str) -> Iterator[Callable[[], Any]]:
    with psycopg.connect(url, autocommit=True, prepare_threshold=0) as connection:
        run = psycopg.RawCursor(connection).execute
        send = "SELECT pgmq.send('bench', CAST($1 AS JSONB))"
        yield lambda: run(send, (msgspec.json.encode(BODY).decode(),)).fetchone()


BY_HAND = Contestant("by hand", make_letters, fill_letters, worker_by_hand, put_letters)
CORRAL = Contestant("Corral", make_letters, fill_letters, corral_worker, put_letters)
PROCRASTINATE = Contestant(
    "procrastinate", make_procrastinate, fill_procrastinate, procrastinate_worker, put_procrastinate
)
PGMQ = Contestant("PGMQ's SQL", make_pgmq, fill_pgmq, pgmq_worker, put_pgmq)
