"""Session stores of agent frameworks, compared with Corral's integrations."""

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from bench.harness import Bar, Bench, Rates, Rival, Row, rate_of
from bench.opponents import open_store
from bench.opponents.sessions import (
    Conversation,
    CorralCheckpoints,
    CorralConversation,
    CorralSessionConversation,
    Framework,
    LangGraph,
    LangGraphOnPostgres,
    OpenAiAgents,
    OpenAiAgentsOnPostgres,
)
from corral.api import Corral

TITLE = "Stores of openai-agents and langgraph, beside Corral's"
ABOUT = """
    Append one message through the framework, durable when the call returns, at the same
    durability on both sides. `CorralSession` and `CorralSaver` do this in a Corral store;
    "append a turn" is Corral's own call without a framework. The peers store no count, author
    or key. langgraph passes the whole conversation (20 messages here) at every step. Loading
    reads the last 50 messages, or the latest state of a thread. At FULL, and on PostgreSQL,
    each message waits for the disk once.
"""
COUNT = 100
APPEND, LOAD = "append", "load"
WHY_LOADING = {
    "CorralSession": """
        A turn has seventeen columns, becomes a record, and is filtered if it was undone or cleared;
        the peer reads one column of JSON.
    """,
    "CorralSaver": """
        Both read the checkpoint and its writes with one statement; Corral converts them to records
        first.
    """,
}
WAITS = "Both wait for the disk once for each message, which is nearly all of the time."
VALIDATES = "Corral also numbers and validates each message; the peer only inserts it."


class Pair(NamedTuple):
    """A framework with its own store and with Corral's."""

    peer: str
    module: str
    own: Callable[[], Framework]
    kind: str
    through: type[CorralSessionConversation] | type[CorralCheckpoints]


def measure(bench: Bench) -> list[Row]:
    return [
        *_on_sqlite(bench, normal=True),
        *_on_sqlite(bench, normal=False),
        *_on_postgres(bench),
    ]


def _on_sqlite(bench: Bench, *, normal: bool) -> list[Row]:
    level = "NORMAL" if normal else "FULL"
    pairs = [
        Pair(
            f"SQLiteSession of openai-agents at {level}",
            "agents",
            lambda: OpenAiAgents(bench.new_file(), normal=normal),
            "CorralSession",
            CorralSessionConversation,
        ),
        Pair(
            f"SqliteSaver of langgraph at {level}",
            "langgraph.checkpoint.sqlite",
            lambda: LangGraph(bench.new_file(), normal=normal),
            "CorralSaver",
            CorralCheckpoints,
        ),
    ]
    with open_store(f"sqlite:///{bench.new_file()}") as store:
        if not normal:
            store.db.durability("full")
        return [row for pair in pairs for row in _compare_pair(bench, store, pair, full=not normal)]


def _on_postgres(bench: Bench) -> list[Row]:
    pairs = [
        Pair(
            "SQLAlchemySession of openai-agents, PostgreSQL",
            "agents",
            lambda: OpenAiAgentsOnPostgres(bench.server.new_database()),
            "CorralSession",
            CorralSessionConversation,
        ),
        Pair(
            "PostgresSaver of langgraph",
            "langgraph.checkpoint.postgres",
            lambda: LangGraphOnPostgres(bench.server.new_database()),
            "CorralSaver",
            CorralCheckpoints,
        ),
    ]
    with open_store(bench.server.new_database()) as store:
        return [row for pair in pairs for row in _compare_pair(bench, store, pair, full=True)]


def _compare_pair(bench: Bench, store: Corral, pair: Pair, *, full: bool) -> list[Row]:
    """Measure the framework with its own store, with Corral's, and Corral without it."""
    if not _installed(pair.module):
        return [
            Row(
                pair.kind,
                None,
                over=pair.peer,
                why=f"Not measured: {pair.module} is not installed.",
            )
        ]
    own_store = Rival(pair.peer, partial(_measure_framework, pair.own()))
    corral = Rival("Corral", partial(_measure_append, CorralConversation(store)))
    through = Rival("through", partial(_measure_framework, pair.through(store)))
    for rival in (own_store, corral, through) if full else ():
        for _ in range(5):
            rival.sample()  # until the WAL has its final size, because growing it is slower
    result = bench.compare(own_store, [corral, through], rounds=bench.pick(7, 3))
    rows = {
        "append a turn": result.speed_of("Corral", APPEND),
        f"{pair.kind}, append": result.speed_of("through", APPEND),
        f"{pair.kind}, load": result.speed_of("through", LOAD),
    }
    return [
        Row(name, spread, None if LOAD in name else Bar(">", 1), over=pair.peer).unless_ahead(
            WHY_LOADING[pair.kind] if LOAD in name else WAITS if full else VALIDATES
        )
        for name, spread in rows.items()
    ]


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False


def _measure_append(conversation: Conversation) -> Rates:
    return {APPEND: rate_of(conversation.append, COUNT)}


def _measure_framework(framework: Framework) -> Rates:
    return {APPEND: rate_of(framework.append, COUNT), LOAD: rate_of(framework.load, COUNT)}
