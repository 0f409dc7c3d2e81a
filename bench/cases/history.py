"""Cost of history: the same calls in a store with a short and with a long history."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import apsw
import psycopg

from bench.harness import Bar, Bench, Rates, Rival, Row, rate_of
from bench.opponents import BODY, MAILBOX, CorralQueue, now_ms, open_store
from corral.api import Corral
from corral.db.sqlite_deferred_indexes import fill_deferred_indexes
from corral.kernel.pagination import encode_cursor

TITLE = "The cost of a long history"
ABOUT = """
    The time of a call in a store with a long history (finished letters and as many events) over
    its time in a store with 10,000 rows of each. Half of the letters belong to the mailbox in
    use. Pages have 50 letters or 100 events.
"""
Engine = Literal["sqlite", "postgres"]
ENGINES: dict[Engine, str] = {"sqlite": "SQLite", "postgres": "PostgreSQL"}
BAR = Bar("<=", 1.5)
SHORT = 10_000
WAITING = 200  # pending letters, the same in both stores
PIECE = 10_000  # minimum rows per transaction; PostgreSQL's feed is ordered by transaction
LOOKS = 100

# Half of the history belongs to the measured mailbox.
LETTERS = """
    INSERT INTO letters (mailbox, body, rank, state, due_at, queue_at, owner, fence, attempts,
                         created_at, ended_at)
    SELECT CASE WHEN n % 2 = 0 THEN 'queue:bench' ELSE 'agent:' || (n % 50) END,
           '{{"task": "index"}}', 0, 'done', {now} - n, {now} - n, 'worker', 1, 1,
           {now} - n, {now} - n
    FROM {numbers}
"""
# 200 events of one subject are spread over it.
EVENTS = """
    INSERT INTO events (at, actor, kind, verb, subject)
    SELECT {now} - n, 'user:bench', 'letter', 'ack',
           CASE WHEN n % {apart} = 0 THEN 'run_bench' ELSE 'let_' || n END
    FROM {numbers}
"""
SUBJECT = "run_bench"
SCATTERED = 200
NUMBERS: dict[Engine, str] = {
    "sqlite": "(WITH RECURSIVE count (n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM count"
    " WHERE n < {last}) SELECT n FROM count)",
    "postgres": "generate_series({first}, {last}) AS n",
}


def measure(bench: Bench) -> list[Row]:
    long = bench.pick(1_000_000, 200_000)
    rows = []
    for engine, name in ENGINES.items():
        short_store, long_store = (
            bench.once(f"{engine} {size}", partial(_store_with_history, bench, engine, size))
            for size in (SHORT, long)
        )
        result = bench.compare(
            Rival("short", partial(_sample, short_store)),
            [Rival("long", partial(_sample, long_store))],
            rounds=bench.pick(7, 3),
        )
        rows += [
            Row(
                f"{name}, {long:,} rows: {operation}",
                result.speed_of_base_over("long", operation),
                BAR,
            )
            for operation in result.measured
        ]
    return rows


def _store_with_history(bench: Bench, engine: Engine, size: int) -> Corral:
    bench.progress(f"writing {size:,} letters and events of the past on {engine}")
    store = open_loaded_store(bench, engine, lambda run: load_past(run, engine, size))
    for _ in range(WAITING):
        store.mail.put("agent:ada", BODY)
    return store


def open_loaded_store(
    bench: Bench, engine: Engine, load: Callable[[Callable[[str], Any]], None]
) -> Corral:
    """Open a store whose history is inserted directly into its tables."""
    if engine == "sqlite":
        path = bench.new_file()
        store = open_store(f"sqlite:///{path}")
        file = apsw.Connection(str(path))
        file.execute("PRAGMA synchronous = OFF")  # the history need not survive a power cut
        load(file.execute)
        fill_deferred_indexes(file.execute)
        file.close()
    else:
        url = bench.server.new_database()
        store = open_store(url)
        with psycopg.connect(url, autocommit=True) as connection:
            load(connection.execute)
            connection.execute("VACUUM (ANALYZE)")
    return bench.closing.enter_context(store)


def load_past(
    run: Callable[[str], Any],
    engine: Engine,
    size: int,
    statements: Sequence[str] = (LETTERS, EVENTS),
) -> None:
    piece = max(PIECE, size // 100)
    for first in range(1, size + 1, piece):
        numbers = NUMBERS[engine].format(first=first, last=first + piece - 1)
        run("BEGIN")
        for statement in statements:
            run(statement.format(now=now_ms(), numbers=numbers, apart=size // SCATTERED))
        run("COMMIT")


def _page_calls(store: Corral) -> dict[str, Callable[[], Any]]:
    """Return calls for pages of lists, some of them deep in the history."""
    ((middle,),) = store.db.sql("SELECT max(seq) / 2 FROM letters").rows
    xid = "xid" if store.db.engine == "postgres" else "0"
    ((at, seq),) = store.db.sql(f"SELECT {xid}, seq FROM events WHERE seq = {middle}").rows
    return {
        "list": partial(store.mail.list),
        "list a mailbox": partial(store.mail.list, mailbox="agent:ada"),
        "a page in the middle of all letters": partial(
            store.mail.list, all=True, after=encode_cursor(middle)
        ),
        "a page in the middle of a mailbox": partial(
            store.mail.list, all=True, mailbox=MAILBOX, after=encode_cursor(middle)
        ),
        "events after the middle": partial(store.events.after, f"{at}-{seq}"),
        "newest events": partial(store.events.newest),
        "newest events of a subject": partial(store.events.newest, subject=SUBJECT),
    }


def _sample(store: Corral) -> Rates:
    rates = {operation: rate_of(call, LOOKS) for operation, call in _page_calls(store).items()}
    queue = CorralQueue(store)
    for _ in range(LOOKS):
        queue.put()
    return {"claim + ack": rate_of(queue.take, LOOKS), **rates}
