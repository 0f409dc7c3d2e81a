"""Tasks: a large graph declared in one call, and claims of the next ready task."""

import time
from functools import partial
from typing import Any

from bench.cases.history import ENGINES, Engine
from bench.harness import Bar, Bench, Rates, Rival, Row, Spread
from bench.opponents import open_store
from corral.api import Corral

TITLE = "Tasks"
ABOUT = """
    Declare a graph of 10,000 tasks, each but the first hundred with two dependencies, in one
    call. Then the time to claim the next ready task of this graph and to release it, over the
    time in a graph of 100 tasks.
"""
LARGE, SMALL = 10_000, 100
READY = 100  # ready tasks in the large graph
CLAIMS = 50


def measure(bench: Bench) -> list[Row]:
    return [row for engine in ENGINES for row in _on(bench, engine)]


def _on(bench: Bench, engine: Engine) -> list[Row]:
    store = bench.closing.enter_context(open_store(_new_url(bench, engine)))
    store.agents.create("ada", role="builder")
    durations = [_declare(bench, store, LARGE)[1] for _ in range(bench.pick(5, 2))]
    large, _ = _declare(bench, store, LARGE)
    small, _ = _declare(bench, store, SMALL)
    result = bench.compare(
        Rival("small", partial(_claim, store, small)),
        [Rival("large", partial(_claim, store, large))],
        rounds=bench.pick(15, 4),
    )
    name = ENGINES[engine]
    longer = result.speed_of_base_over("large", "claim + give back")
    return [
        Row(f"{name}, {LARGE:,} tasks declared", Spread.of(durations), Bar("<", 2_000), "ms"),
        Row(f"{name}, claim among {LARGE:,} over {SMALL}", longer, Bar("<=", 1.5)),
    ]


def _new_url(bench: Bench, engine: Engine) -> str:
    if engine == "sqlite":
        return f"sqlite:///{bench.new_file()}"
    return bench.server.new_database()


def _declare(bench: Bench, store: Corral, size: int) -> tuple[str, float]:
    """Declare a graph of so many tasks; return its project and the milliseconds."""
    folder = bench.new_file().parent
    project = store.projects.register(folder).id
    tasks = [_task(number) for number in range(size)]
    start = time.perf_counter()
    store.tasks.declare(project, tasks)
    return project, (time.perf_counter() - start) * 1_000


def _task(number: int) -> dict[str, Any]:
    after = [number - READY, number - READY // 2 - 1] if number >= READY else []
    return {
        "key": f"task-{number}",
        "role": "builder",
        "title": f"Do the part {number}",
        "files": [f"src/{number}.py"],
        "depends_on": [f"task-{earlier}" for earlier in after],
    }


def _claim(store: Corral, project: str) -> Rates:
    start = time.perf_counter()
    for _ in range(CLAIMS):
        task = store.tasks.claim(project, "ada")
        assert task is not None
        store.tasks.release(task)
    return {"claim + give back": CLAIMS / (time.perf_counter() - start)}
