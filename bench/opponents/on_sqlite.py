"""Python queues on SQLite, called as their own workers call them.

Each has two configurations: the default, and WAL with `synchronous = NORMAL`, which is Corral's
default. Only the second is a fair comparison. None of them writes an event row or has a fence.
"""

import logging
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from bench.harness import Rates
from bench.opponents import BODY
from bench.worker_pool import Task

NORMAL = "PRAGMA synchronous = NORMAL"


class Huey:
    """Dequeue and execute, as in its consumer.

    A task is gone from the file once it is dequeued; it returns a value, so that its completion is
    recorded.
    """

    def __init__(self, path: Path, *, normal: bool) -> None:
        from huey import SqliteHuey

        logging.getLogger("huey").setLevel(logging.WARNING)
        self._huey = SqliteHuey("bench", filename=str(path))
        if normal:
            self._huey.storage.conn.execute(NORMAL)
        self._work = self._huey.task()(_done)

    def put(self) -> None:
        self._huey.enqueue(self._work.s(BODY))

    def take(self) -> None:
        self._huey.execute(self._huey.dequeue())


class Litequeue:
    """WAL and NORMAL by default."""

    def __init__(self, path: Path) -> None:
        from litequeue import LiteQueue

        self._queue = LiteQueue(path)

    def put(self) -> None:
        self._queue.put(msgspec.json.encode(BODY).decode())

    def take(self) -> None:
        message = self._queue.pop()
        msgspec.json.decode(message.data)
        self._queue.done(message.message_id)


class PersistQueue:
    """The variant with acknowledgements."""

    def __init__(self, path: Path, *, normal: bool) -> None:
        from persistqueue import SQLiteAckQueue
        from persistqueue.serializers import json

        self._queue = SQLiteAckQueue(str(path.parent), serializer=json)
        if normal:
            self._queue._putter.execute(NORMAL)  # type: ignore[attr-defined]

    def put(self) -> None:
        self._queue.put(BODY)

    def take(self) -> None:
        item = self._queue.get(raw=True)
        self._queue.ack(id=item["pqid"])

    def forget(self) -> None:
        """Delete acknowledged items, because it scans all of them to find the next item."""
        self._queue.clear_acked_data(max_delete=1_000_000, keep_latest=0)


def _done(body: dict[str, Any]) -> str:
    return "done"


@contextmanager
def dbos_worker(
    number: int, url: str, count: int, normal: bool, one_at_a_time: bool
) -> Iterator[Task]:
    """DBOS with its queue thread, in its own process, because it polls even when idle.

    On SQLite `normal` sets NORMAL and WAL. It polls every few milliseconds instead of every second.
    The measured time ends when the last workflow has run, before its end is recorded.
    """
    import sqlalchemy
    from dbos import DBOS

    if normal:

        @sqlalchemy.event.listens_for(sqlalchemy.Engine, "connect")
        def tune(connection: sqlite3.Connection, _: Any) -> None:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(NORMAL)

    DBOS(
        config={
            "name": "bench",
            "system_database_url": url,
            "log_level": "ERROR",
            "executor_id": "bench",
        }
    )
    finished = threading.Semaphore(0)

    @DBOS.workflow()
    def workflow(body: dict[str, Any]) -> None:
        finished.release()

    DBOS.listen_queues(["bench"])
    DBOS.launch()
    queue = DBOS.register_queue(
        "bench",
        worker_concurrency=1 if one_at_a_time else None,
        polling_interval_sec=0.001 if one_at_a_time else 0.02,
    )
    unread_queue = DBOS.register_queue("unread")
    queue.enqueue(workflow, BODY)
    finished.acquire()  # the queue thread has found the queue

    def fill_and_wait(end: float) -> Rates:
        start = time.perf_counter()
        for _ in range(count):
            unread_queue.enqueue(workflow, BODY)
        put_end = time.perf_counter()
        for _ in range(count):
            queue.enqueue(workflow, BODY)
        for _ in range(count):
            finished.acquire()
        work_end = time.perf_counter()
        return {"put": count / (put_end - start), "put + claim + ack": count / (work_end - put_end)}

    try:
        yield fill_and_wait
    finally:
        DBOS.destroy()
