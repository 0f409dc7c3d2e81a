"""Sixteen concurrent attempts: correct records, and Corral's own cost."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.home import CORRAL, Home
from tests.support.invariants import check_store
from tests.support.race_helpers import git, make_repository

from bench.harness import Bar, Bench, Row, Spread
from corral.api import Corral
from corral.domain.races.model import Attempt

TITLE = "A race of 16 attempts"
ABOUT = """
    One race with sixteen concurrent attempts of the scripted agent: each computes for five
    seconds of one core, prints 200 lines and writes a file; its check computes for one second.
    The total is the CPU time of all processes: the command that drives the race, supervisors,
    guards, git, agents and checks. Agents and checks report their own time; everything else
    counts as Corral's, including git and the start of Python for each supervisor, so the figure
    is an upper bound.
"""
ATTEMPTS = 16
AGENT_SECONDS = 5.0
CHECK_SECONDS = 1.0
LINES = 200

COMPUTE = """\
#!{python}
import atexit, os, resource, runpy, sys

def report():
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    with open(os.path.join({folder!r}, "{kind}-" + os.environ["CORRAL_ATTEMPT"]), "w") as file:
        file.write(repr(sum(usage.ru_utime + usage.ru_stime for usage in usages)))

atexit.register(report)
while sum(os.times()[:2]) < {seconds}:
    sum(number * number for number in range(10_000))
"""
AGENT = """\
sys.argv = sys.argv[2:]  # without the interpreter's -m
runpy.run_module("corral.demo.agent", run_name="__main__", alter_sys=True)
"""
CHECK = 'sys.exit(not os.path.exists("made"))\n'
# Orphans are reparented to this process, so that the CPU times add up here.
RUN_WITH_CPU_TIME = """\
import os, resource, subprocess, sys
from contextlib import suppress
from corral.adapters.processes import process

process.become_subreaper()
subprocess.run(sys.argv[1:], check=True)
with suppress(ChildProcessError):
    while True:
        os.wait()
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print("\\n" + repr(usage.ru_utime + usage.ru_stime))
"""


class RaceHome(Home):
    """A home with a repository, an agent and a check that compute."""

    def __init__(self, folder: Path) -> None:
        os.environ["CORRAL_HOME"] = str(folder / "home")
        super().__init__(folder, f"sqlite:///{folder}/store.db")
        self.work = make_repository(folder / "repository")
        self._reports = folder / "reports"
        self._reports.mkdir()
        self._write("agent", AGENT_SECONDS, AGENT)
        self._write("check", CHECK_SECONDS, CHECK)
        with self.store() as store:
            store.settings.set("races.max_attempts", ATTEMPTS)
            store.agents.create("worker", provider="scripted", command=str(folder / "agent"))

    def _write(self, kind: str, seconds: float, rest: str) -> None:
        file = self.folder / kind
        values = {"python": sys.executable, "folder": str(self._reports), "kind": kind}
        file.write_text(COMPUTE.format(**values, seconds=seconds) + rest)
        file.chmod(0o755)

    def race(self) -> tuple[str, float]:
        """Run a race until it waits for a selection; return its id and the seconds."""
        variations = (f"write made {number}; spend 1000 500" for number in range(1, ATTEMPTS + 1))
        arguments = ["race", "start", f"lines {LINES}", "--agents", f"worker:{ATTEMPTS}"]
        arguments += [word for variation in variations for word in ("--variation", variation)]
        arguments += ["--check", str(self.folder / "check"), "--wait", "--json"]
        value = subprocess.run(
            [sys.executable, "-c", RUN_WITH_CPU_TIME, *CORRAL, *arguments],
            cwd=self.work,
            env=self.env,
            capture_output=True,
            check=True,
        )
        result, _, seconds = value.stdout.decode().rstrip().rpartition("\n")
        return json.loads(result)["id"], float(seconds)

    def reported_seconds(self) -> float:
        """Return the time that agents and checks reported."""
        results = [float(file.read_text()) for file in self._reports.iterdir()]
        assert len(results) == 2 * ATTEMPTS, len(results)
        return sum(results)


def measure(bench: Bench) -> list[Row]:
    wrong_counts: list[int] = []
    shares: list[float] = []
    results: list[float] = []
    for number in range(bench.pick(3, 1)):
        bench.progress(f"race {number + 1}")
        home = RaceHome(bench.new_file().parent)
        try:
            id, total = home.race()
            overhead = total - home.reported_seconds()
            with home.store() as store:
                wrong_counts.append(_count_wrong(store, home, id))
        finally:
            home.kill_processes()
        shares.append(100 * overhead / total)
        results.append(1_000 * overhead / ATTEMPTS)
    return [
        Row("attempts recorded wrongly", Spread.of(wrong_counts), Bar("=", 0), unit=""),
        Row("Corral and git, percent of total CPU time", Spread.of(shares), Bar("<=", 10), unit=""),
        Row("Corral and git, CPU time per attempt", Spread.of(results), unit="ms"),
    ]


def _count_wrong(store: Corral, home: RaceHome, id: str) -> int:
    check_store(store)
    attempts = store.races.get(id).latest.attempts
    assert len(attempts) == ATTEMPTS
    return sum(not _is_correct(store, home, attempt) for attempt in attempts)


def _is_correct(store: Corral, home: RaceHome, attempt: Attempt) -> bool:
    """Return whether state, check, cost, commit and output belong to this attempt."""
    assert attempt.run_id is not None
    text = bytes(store.outputs.open(attempt.run_id).bytes(0, 1 << 20)).decode()
    return (
        (attempt.state, attempt.passed, attempt.files) == ("completed", True, 1)
        and attempt.cost_micros == (1_000 * 3 + 500 * 15)
        and git(home.work, "show", f"{attempt.commit}:made") == str(attempt.number)
        and all(f"line {number}" in text for number in range(1, LINES + 1))
    )
