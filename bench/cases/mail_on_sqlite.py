"""Mail on SQLite, one process: Corral against the same statements written by hand."""

import time
from collections.abc import Callable
from functools import partial

from bench.harness import Bar, Bench, Rates, Rival, Row
from bench.opponents import MAILBOX, OWNER, CorralQueue, open_store, put_then_take
from bench.opponents.raw_sqlite import PLAIN_CLAIM, RawSqlite
from corral.api import Corral

TITLE = "Mail on SQLite, one process"
ABOUT = """
    The same work on the same tables: a letter row and an event row for a put; a claim that
    honours priority and due time; an acknowledgement with fence check and event row. By hand
    (1x): APSW with prepared statements and Corral's pragmas, without records, validation or
    fair write lock. NORMAL durability on both sides.
"""
BAR = Bar(">=", 0.7)


def measure(bench: Bench) -> list[Row]:
    count = bench.pick(500, 300)
    store = open_store(f"sqlite:///{bench.new_file()}")
    plain_claim = RawSqlite(bench.new_file(), claim=PLAIN_CLAIM)
    result = bench.compare(
        Rival("by hand", partial(put_then_take, RawSqlite(bench.new_file()), count)),
        [
            Rival("Corral", partial(put_then_take, CorralQueue(store), count)),
            Rival("ordered", partial(put_then_take, CorralQueue(store, "agent:ada"), count)),
            Rival("fused", partial(_measure_emptying, _take_fused, store, count)),
            Rival("tens", partial(_measure_emptying, _take_tens, store, count)),
            Rival("plain", partial(put_then_take, plain_claim, count)),
        ],
        rounds=bench.pick(21, 5),
    )
    store.close()
    return [
        Row("put", result.speed_of("Corral", "put"), BAR),
        Row("claim + ack", result.speed_of("Corral", "claim + ack"), BAR),
        Row("claim + ack in an ordered mailbox", result.speed_of("ordered", "claim + ack")),
        Row("ack and claim the next in one call", result.speed_of("fused", "claim + ack")),
        Row("claim ten at a time, ack each", result.speed_of("tens", "claim + ack")),
        Row(
            "by hand, with a claim that scans letters that are not due",
            result.speed_of("plain", "claim + ack"),
        ),
    ]


def _measure_emptying(empty: Callable[[Corral], None], store: Corral, count: int) -> Rates:
    for _ in range(count):
        CorralQueue(store).put()
    start = time.perf_counter()
    empty(store)
    return {"claim + ack": count / (time.perf_counter() - start)}


def _take_fused(store: Corral) -> None:
    letters = store.mail.claim(MAILBOX, owner=OWNER)
    while letters:
        letters = store.mail.ack_and_claim(letters[0], owner=OWNER)


def _take_tens(store: Corral) -> None:
    while letters := store.mail.claim(MAILBOX, owner=OWNER, limit=10):
        for letter in letters:
            store.mail.ack(letter)
