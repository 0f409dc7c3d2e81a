"""Run many commands at once on one PostgreSQL server with stock settings, and count connections.

    python -m tests.torture --runs [--count 200] [--seconds 60]

Each run has a supervisor process of its own. The server allows 100 connections. Every run must be
running at the same moment, keep its lease, and end with its own exit code.
"""

import argparse
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

import corral
from corral.adapters.supervisor_process import StartingSupervisor
from corral.api import Corral
from corral.domain.runs.model import RunState
from tests.support.postgres_server import PostgresServer
from tests.torture.workspace import folder_for

STOCK = "max_connections=100"
_COUNT = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> %s"


class ConnectionMeter(threading.Thread):
    """Counts the connections to a database continuously, over its own connection."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._server = psycopg.connect(url, autocommit=True)
        self._own = self._server.info.backend_pid
        self.over = threading.Event()
        self.counts: list[int] = []

    def run(self) -> None:
        while not self.over.wait(0.1):
            row = self._server.execute(_COUNT, (self._own,)).fetchone()
            assert row is not None
            self.counts.append(int(row[0]))
        self._server.close()

    def summarize(self, since: int) -> str:
        counts = sorted(self.counts[since:]) or [0]
        mean = sum(counts) / len(counts)
        return f"mean {mean:.1f}, median {counts[len(counts) // 2]}, most {counts[-1]}"


def start(store: Corral, project: Path, release: Path) -> str:
    """Start a run that waits until a file exists."""
    script = f"while ! test -e {release}; do sleep 2; done; exit 7"
    run = store.runs.start(command=["sh", "-c", script], project=str(project), terminal=False)
    StartingSupervisor().start(store=store.address, run=run.id)
    return run.id


@contextmanager
def measure_connections(url: str) -> Iterator[ConnectionMeter]:
    meter = ConnectionMeter(url)
    meter.start()
    try:
        yield meter
    finally:
        meter.over.set()
        meter.join()


def run(folder: Path, url: str, count: int, seconds: float) -> int:
    os.environ["CORRAL_HOME"] = str(folder / "home")
    (folder / "work").mkdir()
    release, wrong = folder / "release", []
    with measure_connections(url) as meter, corral.open(url, actor="torture") as store:
        store.settings.set("runs.max_concurrent", count + 10)
        start_time = time.monotonic()
        ids = [start(store, folder / "work", release) for _ in range(count)]
        print(f"started    {count} runs in {time.monotonic() - start_time:.0f} s", flush=True)
        since = len(meter.counts)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            time.sleep(1)
        live = [store.runs.get(id) for id in ids]
        now = store.now()
        running = sum(item.state is RunState.RUNNING for item in live)
        leased = sum((item.lease_until or 0) > now for item in live)
        print(
            f"running    {running} of {count}, {leased} with a valid lease, after {seconds:.0f} s"
        )
        print(f"connections while all run: {meter.summarize(since)}")
        wrong += [f"{count - running} do not run"] if running < count else []
        wrong += [f"{count - leased} lost their lease"] if leased < count else []
        since = len(meter.counts)
        release.touch()
        deadline = time.monotonic() + 300
        while any(store.runs.get(id).is_live for id in ids) and time.monotonic() < deadline:
            time.sleep(0.5)
        ended = [store.runs.get(id) for id in ids]
        right = sum((item.state, item.exit_code) == (RunState.FAILED, 7) for item in ended)
        print(f"ended      {right} of {count} as expected (exit 7)")
        print(f"connections while all end: {meter.summarize(since)}")
        wrong += [f"{count - right} ended differently"] if right < count else []
    errors = sorted((folder / "home" / "runs").glob("*/supervisor.error"))
    wrong += [f"{path.parent.name}: {path.read_text().splitlines()[-1]}" for path in errors[:5]]
    for text in wrong:
        print(f"  ! {text}")
    return 1 if wrong else 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=200, help="how many runs at once")
    parser.add_argument("--seconds", type=float, default=90, help="how long all of them run")
    parser.add_argument("--keep", action="store_true", help="keep the folder")
    wanted = parser.parse_args(arguments)
    server = PostgresServer(STOCK)
    try:
        with folder_for("runs", keep=wanted.keep) as folder:
            return run(folder, server.new_database(), wanted.count, wanted.seconds)
    finally:
        server.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
