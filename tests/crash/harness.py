"""Kill a process at every commit of a scenario, and check the store after recovery.

A scenario is a function that uses a store. The harness runs it once undisturbed and records the
moments before and after each commit. For each of these moments it runs the scenario again, on a
fresh store, in a process that is killed at that moment. Then it opens the store, runs the recovery
step, and checks the scenario's own `check` and the invariants of every store
(`tests.support.invariants`).

    def test_no_letter_is_lost(fresh_url: FreshUrl, tmp_path: Path) -> None:
        crash_at_every_commit(
            fresh_url, tmp_path, Scenario(run=put_three, recover=deliver_all, check=all_delivered)
        )

Each of the four steps is a function of the open store and of the world around it. On SQLite
`prepare` runs once and its files are copied for each process that is killed.

For a long scenario `make test` selects some moments, fewer on PostgreSQL, where a kill takes more
time. `make torture` uses all moments, on both engines.
"""

import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import corral
from corral import config
from corral.api import Corral
from corral.kernel.clock import HOUR
from tests.support.invariants import check_rows, check_store
from tests.support.processes import Child
from tests.support.shared_clock import SharedClock
from tests.support.store_urls import wait_until_alone
from tests.torture.ledger import Batch, append_batch

FreshUrl = Callable[[], str]

ALL = os.environ.get("CORRAL_CRASH") == "all"
KILLS = os.environ.get("CORRAL_KILLS")  # read at import: tests run without these variables
MAX_KILLS, MAX_KILLS_ON_POSTGRES = 4, 2


class World:
    """State outside of the store that survives a crash: the clock and the recorded effects."""

    def __init__(self, file: Path, clock: SharedClock) -> None:
        self._file = file
        self.clock = clock

    def record(self, effect: str) -> None:
        """Record an effect that cannot be undone, such as a sent message."""
        with self._file.open("a") as file:
            file.write(effect + "\n")

    @property
    def folder(self) -> Path:
        """A folder for files of the scenario."""
        return self._file.with_name(f"{self._file.name}-folder")

    @property
    def records(self) -> list[str]:
        return self._file.read_text().splitlines() if self._file.exists() else []


Step = Callable[[Corral, World], None]


def do_nothing(store: Corral, world: World) -> None:
    pass


@dataclass(frozen=True)
class Scenario:
    run: Step
    """The work of the process that is killed."""

    recover: Step
    """The recovery by another process, through the public API."""

    check: Step
    """The assertions after the recovery. They may use `world.records`."""

    prepare: Step = do_nothing
    """The initial state, created without a crash."""

    later_ms: int = HOUR
    """Time between crash and recovery. By default all leases have expired."""


class Probe:
    """Records the moments before and after commits; kills its process at one of them."""

    def __init__(self, kill_at: int | None = None) -> None:
        self.moments: list[str] = []
        self._kill_at = kill_at

    def __call__(self, moment: str) -> None:
        if len(self.moments) == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.moments.append(moment)


def crash_at_every_commit(fresh_url: FreshUrl, folder: Path, scenario: Scenario) -> None:
    first = Trial(fresh_url(), folder / "trial", scenario)
    first.prepare()
    on_sqlite = first.url.startswith("sqlite")
    prepared = PreparedFiles(first, folder) if on_sqlite else None
    moments = first.run_undisturbed()
    assert moments == ["before commit", "after commit"] * (len(moments) // 2), moments
    assert moments, "the scenario has no commit"
    max_kills = MAX_KILLS if on_sqlite else MAX_KILLS_ON_POSTGRES
    # Odd, so that moments before and after a commit alternate.
    stride = 1 if ALL else -(-len(moments) // max_kills) | 1
    start, killed, wrong = time.monotonic(), 0, 0
    try:
        for number, moment in enumerate(moments):
            if number % stride and number + 1 < len(moments):
                continue
            killed += 1
            try:
                url = fresh_url()
                if prepared is not None:
                    trial = prepared.copy_to(url)
                else:
                    trial = Trial(url, folder / f"trial-{number}", scenario)
                    trial.prepare()
                trial.run_and_kill(number)
            except BaseException as error:
                wrong += 1
                error.add_note(f"killed {moment} {number // 2 + 1} of {len(moments) // 2}")
                raise
    finally:
        engine = "sqlite" if on_sqlite else "postgres"
        kills, seconds = {"at a commit": killed}, time.monotonic() - start
        append_batch(KILLS, Batch(engine, "commits", None, kills, seconds, wrong))


class Trial:
    """One run of a scenario, on one store."""

    def __init__(self, url: str, folder: Path, scenario: Scenario) -> None:
        folder.mkdir(exist_ok=True)
        self.url = url
        self.folder = folder
        self.scenario = scenario
        self.clock = SharedClock()
        self._world = World(folder / "records", self.clock)

    def prepare(self) -> None:
        with corral.open(self.url, clock=self.clock) as store:
            self.scenario.prepare(store, self._world)

    def run_undisturbed(self) -> list[str]:
        """Run the scenario without a kill and return the moments of its commits."""
        with Child(lambda: self._run(Probe())) as child:
            moments = child.result()
        self._recover_and_check()
        return moments

    def run_and_kill(self, moment: int) -> None:
        with Child(lambda: self._run(Probe(kill_at=moment))) as child:
            assert child.ended_by() is signal.SIGKILL, "the process was not killed"
        self._recover_and_check()

    def _run(self, probe: Probe) -> list[str]:
        with corral.open(self.url, clock=self.clock, probe=probe) as store:
            self.scenario.run(store, self._world)
        return probe.moments

    def _recover_and_check(self) -> None:
        wait_until_alone(self.url)
        self.clock.advance(self.scenario.later_ms)
        with corral.open(self.url, clock=self.clock) as store:
            check_rows(store)  # before the recovery changes anything
            self.scenario.recover(store, self._world)
            self.scenario.check(store, self._world)
            check_store(store)


class PreparedFiles:
    """The files of a trial after `prepare`: its SQLite store, its folder, and the home.

    Each copy has the same paths, because rows of the store and git worktrees contain them.
    """

    def __init__(self, trial: Trial, folder: Path) -> None:
        self._trial = trial
        self._time = trial.clock.now()
        self._store = shutil.copyfile(_store_path(trial.url), folder / "prepared.db")
        self._copies = {
            path: shutil.copytree(path, folder / f"prepared-{path.name}", symlinks=True)
            for path in (trial.folder, config.home())
            if path.exists()
        }

    def copy_to(self, url: str) -> Trial:
        """Make a trial on a new store."""
        shutil.copyfile(self._store, _store_path(url))
        for path in (self._trial.folder, config.home()):
            if path.exists():
                shutil.rmtree(path)
        for path, copy in self._copies.items():
            shutil.copytree(copy, path, symlinks=True)
        trial = Trial(url, self._trial.folder, self._trial.scenario)
        trial.clock.at = self._time
        return trial


def _store_path(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))
