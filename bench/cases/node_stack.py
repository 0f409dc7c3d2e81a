"""Common calls of the concepts, against the stack of earlier tools."""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from bench.harness import Bar, Bench, Comparison, Rival, Row
from bench.opponents import BODY, MAILBOX, OWNER, open_store
from bench.opponents.node import WAYS, NodePeer, Workplace, missing
from bench.opponents.sessions import WORDS
from corral.api import Corral

TITLE = "The rooms against better-sqlite3, drizzle and kysely in node"
ABOUT = """
    The same work on the same tables, in a file of their own with the same pragmas: what a tool in
    node would do with better-sqlite3 alone, its statements prepared, or through drizzle or kysely,
    their queries built at each call, as their users write them. Each times itself inside of node.
    Every change of theirs writes its event row too and asks for the fence; what they do not do is
    check input, stand in line with other writers, look for claims that ran out or for what is not
    due yet at a higher priority, or fill Corral's two indexes behind the writer.
"""
COUNTS = {
    "put a letter": 500,
    "claim + ack": 500,
    "the newest 50 letters": 200,
    "append a turn": 500,
    "the last 50 turns": 200,
    "the newest 50 events": 200,
    "acquire + release a lock": 200,
    "claim + give back a task": 200,
    "note something anew": 200,
    "record + finish a run": 200,
}
AT_FULL = {"put a letter": 100, "claim + ack": 100, "append a turn": 100}
AHEAD = Bar(">", 1)
DRIVER = """
    It is the driver itself, with prepared statements: no records, no checks of input, no line of
    writers; and what is left beside SQLite is compiled by node and interpreted by Python.
"""
WHY = {
    "acquire + release a lock": """
        Corral resolves the path and the project, looks for every pattern that could meet it, counts
        what its owner holds and asks for waiting ones; the peer compares three paths.
    """,
    "claim + give back a task": """
        Corral looks up the agent and its role, lets lapsed claims go, prefers what is assigned to
        the agent, lets held tasks go and reads the edges: 17 statements; the peer runs five.
    """,
    "note something anew": """
        Corral also looks up the project and its limits and counts what it remembers already.
    """,
    "record + finish a run": """
        Corral reads who the process is from the system, writes what it was launched with, releases
        budgets and asks for alerts: 16 statements; the peer takes its own word and runs six.
    """,
}
SLOWEST = "record + finish a run"
SAME = """
    The same statements, and Python's own share of the call is larger than node's with this builder.
"""
WAITS = "Both wait for the disk once for each commit, which is nearly all of the time."


def measure(bench: Bench) -> list[Row]:
    if result := missing():
        return [Row("all rooms", None, over=peer, why=result) for peer in WAYS]
    return [*_at(bench, COUNTS, full=False), *_at(bench, AT_FULL, full=True)]


def _at(bench: Bench, counts: dict[str, int], *, full: bool) -> list[Row]:
    with ExitStack() as closing:
        place = Workplace(bench.new_file())
        store = closing.enter_context(open_store(f"sqlite:///{place.path}"))
        if full:
            store.db.durability("full")
        jobs = _jobs(store, place)
        rivals = []
        for way in WAYS:
            peer = NodePeer(way, Workplace(bench.new_file()), full=full)
            closing.callback(peer.close)
            rivals.append(Rival(way, partial(peer.sample, counts)))
        corral = Rival("Corral", lambda: {job: _rate(jobs[job], counts[job]) for job in counts})
        result = bench.compare(corral, rivals, rounds=bench.pick(9, 3))
    return [row for way in WAYS for row in _rows(result, way, full=full)]


def _rows(found: Comparison, way: str, *, full: bool) -> list[Row]:
    raw = way == "better-sqlite3"
    level = " at FULL" if full else ""
    return [
        Row(
            f"{job}{level}",
            found.speed_of_base_over(way, job),
            None if raw or full or job == SLOWEST else AHEAD,
            over=way,
        ).unless_ahead(WAITS if full else WHY.get(job, DRIVER if raw else SAME))
        for job in found.measured
    ]


def _jobs(store: Corral, place: Workplace) -> dict[str, Callable[[int], Any]]:
    """The jobs of the node programs, as users of Corral do them."""
    mail, session, project = store.mail, place.session, place.project

    def claim_and_ack(_: int) -> None:
        (letter,) = mail.claim(MAILBOX, owner=OWNER)
        mail.ack(letter)

    return {
        "put a letter": lambda _: mail.put(MAILBOX, BODY),
        "claim + ack": claim_and_ack,
        "the newest 50 letters": lambda _: mail.list(all=True, limit=50),
        "append a turn": lambda _: store.sessions.append(session, "user", WORDS),
        "the last 50 turns": lambda _: store.sessions.last(session, 50),
        "the newest 50 events": lambda _: store.events.newest(limit=50),
        "acquire + release a lock": lambda number: store.locks.release(
            store.locks.acquire(project, f"src/{number}.py", "ada")
        ),
        "claim + give back a task": lambda _: store.tasks.release(
            store.tasks.claim(project, "ada")
        ),
        "note something anew": lambda _: store.notes.add(
            WORDS, project=project, key="bench", category="pattern"
        ),
        "record + finish a run": lambda _: store.runs.finish(
            store.runs.record(project=project, pid=os.getpid(), args=["x"]).id, exit_code=0
        ),
    }


def _rate(job: Callable[[int], Any], count: int) -> float:
    began = time.perf_counter()
    for number in range(count):
        job(number)
    return count / (time.perf_counter() - began)
