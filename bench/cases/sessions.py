"""Sessions and search: append a turn, read the last ones, find a word among a million."""

import time
from functools import partial

import apsw

from bench.harness import Bar, Bench, Rates, Rival, Row, rate_of
from bench.opponents import now_ms, open_store
from bench.opponents.sessions import Conversation, ConversationByHand, CorralConversation
from corral.api import Corral
from corral.domain.search import ops as search

TITLE = "Sessions and search"
ABOUT = """
    Appending a turn is one transaction: it increments the session's count and inserts the turn.
    By hand (1x): the same two prepared statements through APSW. The last 50 turns, and the
    newest 20 that contain a word, are read in a store of 1,000,000 turns and in a small one:
    the ratio of times, or for search the ratio of speeds. "The search on" indexes every 1,000
    turns while appending.
"""
COUNT = 500
READS = 100
SHORT, MIDDLE, LONG = 10_000, 100_000, 1_000_000
PIECE = 10_000
TURNS_PER_SESSION = 1_000  # turns of one session in a store with history


def measure(bench: Bench) -> list[Row]:
    return [*_append(bench), *_long_history(bench), *_search(bench)]


def _append(bench: Bench) -> list[Row]:
    rounds = bench.pick(15, 4)
    with open_store(f"sqlite:///{bench.new_file()}") as store:
        corral = Rival("Corral", partial(_measure_append, CorralConversation(store)))
        by_hand = Rival("by hand", partial(_measure_append, ConversationByHand(bench.new_file())))
        searched = open_store(f"sqlite:///{bench.new_file()}")
        indexed = Rival(
            "indexed", partial(_measure_append_and_index, searched, CorralConversation(searched))
        )
        raw = bench.compare(by_hand, [corral], rounds=rounds)
        with_search = bench.compare(corral, [indexed], rounds=bench.pick(7, 3))
        rows = [
            Row("append a turn", raw.speed_of("Corral", "append"), Bar(">=", 0.6)),
            Row(
                "append a turn, the search on",
                with_search.speed_of("indexed", "append"),
                Bar(">=", 0.7),
            ),
        ]
        searched.close()
        return rows


def _long_history(bench: Bench) -> list[Row]:
    long = bench.pick(LONG, MIDDLE)
    short_store, long_store = (_store_with(bench, size) for size in (SHORT, long))
    result = bench.compare(
        Rival("short", partial(_measure_reads, short_store)),
        [Rival("long", partial(_measure_reads, long_store))],
        rounds=bench.pick(9, 3),
    )
    return [
        Row(
            f"{long:,} turns: {operation}",
            result.speed_of_base_over("long", operation),
            Bar("<=", 1.5),
        )
        for operation in result.measured
    ]


def _search(bench: Bench) -> list[Row]:
    long, middle = bench.pick((LONG, MIDDLE), (MIDDLE, SHORT))
    middle_store, long_store = (_store_with(bench, size) for size in (middle, long))
    for store in (middle_store, long_store):
        bench.progress("indexing")
        while store.search.catch_up():
            pass
    result = bench.compare(
        Rival("middle", partial(_measure_search, middle_store)),
        [Rival("long", partial(_measure_search, long_store))],
        rounds=bench.pick(9, 3),
    )
    bars = {"a rare word": Bar(">=", 0.3), "a common word": Bar(">=", 0.3)}
    return [
        Row(
            f"newest 20 of {operation}, {long:,} over {middle:,}",
            result.speed_of("long", operation),
            bars[operation],
        )
        for operation in result.measured
    ]


def _store_with(bench: Bench, size: int) -> Corral:
    return bench.once(f"turns {size}", partial(_make_store, bench, size))


def _make_store(bench: Bench, size: int) -> Corral:
    """Create sessions of 1,000 turns. 20 have the rare word, every second the common one."""
    bench.progress(f"writing {size:,} turns of the past")
    path = bench.new_file()
    store = open_store(f"sqlite:///{path}")
    ids = [store.sessions.open().id for _ in range(size // TURNS_PER_SESSION)]
    file = apsw.Connection(str(path))
    file.execute("CREATE TEMP TABLE ids (n INTEGER PRIMARY KEY, id TEXT)")
    file.executemany("INSERT INTO ids VALUES (?, ?)", list(enumerate(ids)))
    for first in range(0, size, PIECE):
        file.execute(
            """
            WITH RECURSIVE count (n) AS (
                SELECT :first UNION ALL SELECT n + 1 FROM count WHERE n + 1 < :last)
            INSERT INTO turns (session_id, number, role, content, is_error, at)
            SELECT id, count.n % :each + 1, 'user',
                'turn ' || count.n || ' of a long session'
                || CASE WHEN count.n % 2 = 0 THEN ' about the common weather' ELSE '' END
                || CASE WHEN count.n % :rare = 7 THEN ' and a zebra' ELSE '' END, 0, :now
            FROM count JOIN ids ON ids.n = count.n / :each
            """,
            {
                "first": first,
                "last": first + PIECE,
                "each": TURNS_PER_SESSION,
                "rare": size // 20,
                "now": now_ms(),
            },
        )
    file.execute("UPDATE sessions SET turns = :each", {"each": TURNS_PER_SESSION})
    file.close()
    return bench.closing.enter_context(store)


def _measure_append(conversation: Conversation, count: int = COUNT) -> Rates:
    return {"append": rate_of(conversation.append, count)}


def _measure_append_and_index(store: Corral, conversation: Conversation) -> Rates:
    start = time.perf_counter()
    for _ in range(2):
        for _ in range(COUNT):
            conversation.append()
    store.search.catch_up()
    return {"append": 2 * COUNT / (time.perf_counter() - start)}


def _measure_reads(store: Corral) -> Rates:
    (session,) = store.sessions.list(limit=1).items
    return {
        "the last 50": rate_of(lambda: store.sessions.last(session.id, 50), READS),
        "a page in the middle": rate_of(lambda: store.sessions.turns(session.id, after=500), READS),
        "append": rate_of(CorralConversation(store).append, READS),
    }


def _measure_search(store: Corral) -> Rates:
    return {
        "a rare word": rate_of(
            lambda: store._database.read(lambda tx: search.find(tx, "zebra", limit=20)), READS
        ),
        "a common word": rate_of(
            lambda: store._database.read(lambda tx: search.find(tx, "weather", limit=20)), READS
        ),
    }
