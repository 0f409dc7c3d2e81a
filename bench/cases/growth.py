"""Cost by the number of rows: the same calls after 10,000 and 10,000,000 rows."""

import compileall
import os
from functools import partial
from pathlib import Path

import corral
from bench.cases.history import (
    ENGINES,
    EVENTS,
    LETTERS,
    SUBJECT,
    Engine,
    load_past,
    open_loaded_store,
)
from bench.cases.start_up import CORRAL, run_command
from bench.harness import Bar, Bench, Rates, Rival, Row, rate_of
from bench.opponents import BODY, MAILBOX, CorralQueue
from corral.api import Corral
from corral.db.sqlite_deferred_indexes import FILL_INTERVAL

TITLE = "Growth to ten million rows"
ABOUT = """
    The time of a call in a store with this number of finished letters, events and search
    passages, over its time in a store with 10,000 of each. All stores take turns in one run.
    Half of the letters belong to the mailbox in use; the events of the subject are spread over
    the whole history; the rare word occurs in 20 passages, the common word in every second one.
    Pages have 50 rows. The command is measured as a whole process.
"""
BAR = Bar("<=", 1.5)
SIZES: dict[Engine, list[int]] = {
    "sqlite": [10_000, 100_000, 1_000_000, 10_000_000],
    "postgres": [10_000, 1_000_000],
}
QUICK: dict[Engine, list[int]] = {
    "sqlite": [10_000, 100_000, 1_000_000],
    "postgres": [10_000, 100_000],
}
WAITING = 40  # pending letters, the same in all stores, and less than a page
LOOKS = 100
STARTS = 3

# Directly into the table that search fills asynchronously; its index follows.
PASSAGES = """
    INSERT INTO passages (kind, subject, location, at, text)
    SELECT 'turn', 'ses_' || (n / 1000), n % 1000, {now} - n,
           'turn ' || n || ' of a long talk'
           || CASE WHEN n % 2 = 0 THEN ' about the common weather' ELSE '' END
           || CASE WHEN n % ({apart} * 10) = 7 THEN ' and a zebra' ELSE '' END
    FROM {numbers}
"""


def measure(bench: Bench) -> list[Row]:
    # As pip does on installation; a run that cannot write bytecode would compile at every start.
    compileall.compile_dir(str(Path(corral.__file__).parent), quiet=1)
    return [row for engine in ENGINES for row in _on(bench, engine)]


def _on(bench: Bench, engine: Engine) -> list[Row]:
    first, *sizes = bench.pick(SIZES, QUICK)[engine]
    base, *rivals = (
        Rival(f"{size:,}", partial(_sample, bench, _store_of(bench, engine, size)))
        for size in (first, *sizes)
    )
    result = bench.compare(base, rivals, rounds=bench.pick(7, 3))
    return [
        Row(
            f"{ENGINES[engine]}: {operation}",
            result.speed_of_base_over(f"{size:,}", operation),
            BAR,
            rows=size,
        )
        for operation in result.measured
        for size in sizes
    ]


def _store_of(bench: Bench, engine: Engine, size: int) -> Corral:
    return bench.once(f"growth {engine} {size}", partial(_make_store, bench, engine, size))


def _make_store(bench: Bench, engine: Engine, size: int) -> Corral:
    bench.progress(f"writing {size:,} letters, events and passages of the past on {engine}")
    statements = (LETTERS, EVENTS, PASSAGES)
    store = open_loaded_store(bench, engine, lambda run: load_past(run, engine, size, statements))
    for _ in range(WAITING):
        store.mail.put("agent:ada", BODY)
    return store


def _sample(bench: Bench, store: Corral) -> Rates:
    queue = CorralQueue(store)
    environment = os.environ | {"CORRAL_STORE": store.db.url, "CORRAL_HOME": str(bench.folder)}
    command = partial(run_command, [CORRAL, "mail", "list", "--json"], environment)
    return {
        # As many as one indexing batch, so that each sample includes its share of indexing.
        "put": rate_of(queue.put, FILL_INTERVAL),
        "claim + ack": rate_of(queue.take, FILL_INTERVAL),
        **{
            operation: rate_of(call, LOOKS)
            for operation, call in {
                "the newest page": lambda: store.mail.list(all=True),
                "a page of a mailbox": lambda: store.mail.list(all=True, mailbox=MAILBOX),
                "a page by subject": lambda: store.events.newest(subject=SUBJECT),
                "search for a rare word": lambda: store.search.find("zebra"),
                "search for a common word": lambda: store.search.find("weather"),
            }.items()
        },
        "corral mail list --json": rate_of(command, STARTS),
    }
