"""Common calls of the concepts, against the stack of earlier tools."""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from bench.harness import Bar, Bench, Comparison, Rival, Row
from bench.opponents import BODY, MAILBOX, OWNER, open_store
from bench.opponents.node import IMPLEMENTATIONS, NodePeer, Workplace, missing
from bench.opponents.sessions import TEXT
from corral.api import Corral

TITLE = "Node.js: better-sqlite3, drizzle and kysely"
ABOUT = """
    The same work on the same tables, in a separate file with the same pragmas: with
    better-sqlite3 alone and prepared statements, or through drizzle or kysely with queries
    built at each call, as their users write them. Each measures its own time inside node. Every
    change of theirs also writes an event row and checks the fence. They do not validate input,
    queue with other writers, look for expired claims or for higher priorities that are not due,
    or maintain Corral's two deferred indexes.
"""
COUNTS = {
    "put a letter": 500,
    "claim + ack": 500,
    "the newest 50 letters": 200,
    "append a turn": 500,
    "the last 50 turns": 200,
    "the newest 50 events": 200,
    "acquire + release a lock": 200,
    "claim + release a task": 200,
    "add a note": 200,
    "record + finish a run": 200,
}
AT_FULL = {"put a letter": 100, "claim + ack": 100, "append a turn": 100}
AHEAD = Bar(">", 1)
DRIVER = """
    It is the driver itself with prepared statements: no records, no validation, no write queue. The
    code outside SQLite is compiled by node and interpreted by Python.
"""
WHY = {
    "acquire + release a lock": """
        Corral resolves path and project, checks every pattern that could overlap, counts the
        owner's locks and checks the wait queue; the peer compares three paths.
    """,
    "claim + release a task": """
        Corral looks up the agent and its role, expires old claims, prefers tasks that are assigned
        to the agent, and reads the dependencies: 17 statements; the peer executes five.
    """,
    "add a note": """
        Corral also looks up the project and its limits, and counts the existing notes.
    """,
    "record + finish a run": """
        Corral reads the process identity from the system, stores the launch, releases budgets and
        checks alerts: 16 statements; the peer executes six.
    """,
}
SLOWEST = "record + finish a run"
SAME = """
    The same statements; Python's overhead per call is larger than node's with this query builder.
"""
WAITS = "Both wait for the disk once for each commit, which is nearly all of the time."


def measure(bench: Bench) -> list[Row]:
    if result := missing():
        return [Row("all operations", None, over=peer, why=result) for peer in IMPLEMENTATIONS]
    return [*_measure_level(bench, COUNTS, full=False), *_measure_level(bench, AT_FULL, full=True)]


def _measure_level(bench: Bench, counts: dict[str, int], *, full: bool) -> list[Row]:
    with ExitStack() as closing:
        workplace = Workplace(bench.new_file())
        store = closing.enter_context(open_store(f"sqlite:///{workplace.path}"))
        if full:
            store.db.durability("full")
        jobs = _jobs(store, workplace)
        rivals = []
        for way in IMPLEMENTATIONS:
            peer = NodePeer(way, Workplace(bench.new_file()), full=full)
            closing.callback(peer.close)
            rivals.append(Rival(way, partial(peer.sample, counts)))
        corral = Rival("Corral", lambda: {job: _rate(jobs[job], counts[job]) for job in counts})
        result = bench.compare(corral, rivals, rounds=bench.pick(9, 3))
    return [row for way in IMPLEMENTATIONS for row in _rows(result, way, full=full)]


def _rows(comparison: Comparison, way: str, *, full: bool) -> list[Row]:
    raw = way == "better-sqlite3"
    level = " at FULL" if full else ""
    return [
        Row(
            f"{job}{level}",
            comparison.speed_of_base_over(way, job),
            None if raw or full or job == SLOWEST else AHEAD,
            over=way,
        ).unless_ahead(WAITS if full else WHY.get(job, DRIVER if raw else SAME))
        for job in comparison.measured
    ]


def _jobs(store: Corral, workplace: Workplace) -> dict[str, Callable[[int], Any]]:
    """The jobs of the node programs, as users of Corral do them."""
    mail, session, project = store.mail, workplace.session, workplace.project

    def claim_and_ack(_: int) -> None:
        (letter,) = mail.claim(MAILBOX, owner=OWNER)
        mail.ack(letter)

    return {
        "put a letter": lambda _: mail.put(MAILBOX, BODY),
        "claim + ack": claim_and_ack,
        "the newest 50 letters": lambda _: mail.list(all=True, limit=50),
        "append a turn": lambda _: store.sessions.append(session, "user", TEXT),
        "the last 50 turns": lambda _: store.sessions.last(session, 50),
        "the newest 50 events": lambda _: store.events.newest(limit=50),
        "acquire + release a lock": lambda number: store.locks.release(
            store.locks.acquire(project, f"src/{number}.py", "ada")
        ),
        "claim + release a task": lambda _: store.tasks.release(store.tasks.claim(project, "ada")),
        "add a note": lambda _: store.notes.add(
            TEXT, project=project, key="bench", category="pattern"
        ),
        "record + finish a run": lambda _: store.runs.finish(
            store.runs.record(project=project, pid=os.getpid(), args=["x"]).id, exit_code=0
        ),
    }


def _rate(job: Callable[[int], Any], count: int) -> float:
    start = time.perf_counter()
    for number in range(count):
        job(number)
    return count / (time.perf_counter() - start)
