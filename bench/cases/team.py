"""Fifty agent processes that claim, lock and post on one store: fairness and latency."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.support import team_workload
from tests.support.team_workload import Worker, WorkloadResult

from bench.harness import Bar, Bench, Row, Spread
from bench.opponents import open_store
from bench.worker_pool import Task, WorkerPool

TITLE = "50 agents on one store"
ABOUT = """
    Each agent is a process that claims the next task, locks one of twenty files, releases it,
    posts to the group of all fifty (a letter to each of the others) and submits, as fast as it
    can, and sometimes reads the posts. "Claimed or held twice" counts tasks, and locks that two
    agents held at once, detected by a file that only one of them can create. "Lost" counts
    posts that are not exactly once in the group and in every other member's mailbox, and
    submitted tasks that are not done. The wait is that of any call, including its own work and
    CPU scheduling.
"""
AGENTS = 50


def measure(bench: Bench) -> list[Row]:
    url = bench.server.new_database()
    return [
        *_measure_engine(bench, "SQLite", f"sqlite:///{bench.new_file()}"),
        *_measure_engine(bench, "PostgreSQL", url),
        Row("PostgreSQL: deadlocks", _single(_deadlocks(url)), Bar("=", 0), ""),
    ]


def _measure_engine(bench: Bench, engine: str, url: str) -> list[Row]:
    seconds = bench.pick(60.0, 10.0)
    bench.progress(f"{AGENTS} agents on {engine} for {seconds:.0f} s")
    folder = bench.new_file().parent
    witnesses = folder / "witnesses"
    witnesses.mkdir()
    with open_store(url) as store:
        project = team_workload.create_team(store, folder, AGENTS)
    with WorkerPool(AGENTS, make_worker, url, project, witnesses) as pool:
        results = pool.run_for(seconds)
    with open_store(url) as store:
        lost = team_workload.count_lost(store, results)
    for error in team_workload.errors(results)[:5]:
        print(error)
    slowest = team_workload.find_slowest(results)
    return [
        Row(
            f"{engine}: claimed or held twice",
            _single(team_workload.count_double_holds(results)),
            Bar("=", 0),
            "",
        ),
        Row(f"{engine}: lost or duplicated", _single(lost), Bar("=", 0), ""),
        Row(
            f"{engine}: errors that reached an agent",
            _single(len(team_workload.errors(results))),
            Bar("=", 0),
            "",
        ),
        Row(
            f"{engine}: longest wait of any call ({slowest.longest_of})",
            _single(slowest.longest_ms),
            Bar("<", 1_000),
            "ms",
        ),
        Row(
            f"{engine}: least served over most served",
            _single(team_workload.fairness(results)),
            Bar(">=", 0.3),
        ),
        Row(
            f"{engine}: tasks done in {seconds:.0f} s",
            _single(sum(len(result.taken) for result in results)),
            unit="",
        ),
    ]


def _deadlocks(url: str) -> int:
    """Return the deadlocks that the server resolved; Corral retries such transactions."""
    query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    with open_store(url) as store:
        return int(store.db.sql(query).rows[0][0])


@contextmanager
def make_worker(number: int, url: str, project: str, witnesses: Path) -> Iterator[Task]:
    with team_workload.run_worker(
        url, project, team_workload.names(AGENTS)[number], witnesses
    ) as worker:
        worker.round()  # imports and first connections do not count as waiting
        yield partial(_work, worker)


def _work(worker: Worker, end: float) -> WorkloadResult:
    while time.monotonic() < end:
        try:
            worker.round()
        except Exception as error:  # every error that reaches an agent is counted
            worker.result.errors.append(repr(error))
    return worker.result


def _single(value: float) -> Spread:
    return Spread.of([value])
