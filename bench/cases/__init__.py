"""The benchmark cases: each is a module with a `TITLE`, an `ABOUT` and `measure`."""

from collections.abc import Callable
from typing import NamedTuple

from bench.cases import (
    chat,
    frameworks,
    group_commit,
    growth,
    history,
    http,
    idle,
    locks,
    mail_on_postgres,
    mail_on_sqlite,
    mcp,
    node_stack,
    output,
    peers_on_sqlite,
    races,
    runs,
    saturation,
    sessions,
    start_up,
    tasks,
    team,
    wakeups,
    warm,
    web,
    worktrees,
)
from bench.harness import Bench, Row


class Case(NamedTuple):
    name: str
    title: str
    about: str
    measure: Callable[[Bench], list[Row]]


CASES = [
    Case(name, module.TITLE, " ".join(module.ABOUT.split()), module.measure)
    for name, module in {
        "sqlite": mail_on_sqlite,
        "postgres": mail_on_postgres,
        "peers": peers_on_sqlite,
        "node": node_stack,
        "saturation": saturation,
        "threads": group_commit,
        "wakeups": wakeups,
        "history": history,
        "growth": growth,
        "sessions": sessions,
        "frameworks": frameworks,
        "start-up": start_up,
        "runs": runs,
        "tasks": tasks,
        "locks": locks,
        "team": team,
        "output": output,
        "idle": idle,
        "http": http,
        "mcp": mcp,
        "web": web,
        "worktrees": worktrees,
        "races": races,
        "chat": chat,
        "warm": warm,
    }.items()
]

PEERS = ("postgres", "peers", "node", "frameworks")
"""The cases of `make bench-peers`, which compare Corral with other tools."""
