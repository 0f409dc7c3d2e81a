"""Crash at every commit.

A scenario is something that a process does with a store. It runs once undisturbed, to see at which
moments it commits. Then it runs again for each of those moments, on a fresh store, in a process
that is killed there: just before the commit, or just after it. What is left is opened again, the
recovery runs, and everything that must hold is checked: the scenario's own `check`, and what holds
for every store (`tests.support.invariants`).

    def test_no_letter_is_lost(fresh_url: FreshUrl, tmp_path: Path) -> None:
        crash_at_every_commit(
            fresh_url, tmp_path, Scenario(run=put_three, recover=deliver_all, check=all_delivered)
        )

Each of the four steps is a plain function of the open store and of the world around it. On SQLite
`prepare` runs once and its files are copied for each process that is killed.

Of a long scenario `make test` takes some moments, fewer on PostgreSQL, where a death costs more
time; `make torture` takes them all, on both engines.
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
from tests.torture.ledger import Batch, note

FreshUrl = Callable[[], str]

ALL = os.environ.get("CORRAL_CRASH") == "all"
KILLS = os.environ.get("CORRAL_KILLS")  # read now: a test sees none of these
MOST, MOST_ON_POSTGRES = 4, 2


class World:
    """What is outside of the store and stays when a process dies: the time, and its deeds."""

    def __init__(self, diary: Path, clock: SharedClock) -> None:
        self._diary = diary
        self.clock = clock

    def note(self, deed: str) -> None:
        """Do something that cannot be taken back: send it, print it, tell the caller."""
        with self._diary.open("a") as diary:
            diary.write(deed + "\n")

    @property
    def folder(self) -> Path:
        """A place of its own for what is on disk."""
        return self._diary.with_name(f"{self._diary.name}-folder")

    @property
    def deeds(self) -> list[str]:
        return self._diary.read_text().splitlines() if self._diary.exists() else []


Step = Callable[[Corral, World], None]


def nothing(store: Corral, world: World) -> None:
    pass


@dataclass(frozen=True)
class Scenario:
    run: Step
    """What the process does that is killed."""

    recover: Step
    """What others do afterwards, with the ordinary means of the library."""

    check: Step
    """What must hold then. It may trust `world.deeds`."""

    prepare: Step = nothing
    """What was there before, put there in peace."""

    later_ms: int = HOUR
    """How long after the death the recovery comes; by default every lease has run out."""


class Probe:
    """Told of every commit; kills its process at one of these moments."""

    def __init__(self, kill_at: int | None = None) -> None:
        self.told: list[str] = []
        self._kill_at = kill_at

    def __call__(self, moment: str) -> None:
        if len(self.told) == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        self.told.append(moment)


def crash_at_every_commit(fresh_url: FreshUrl, folder: Path, scenario: Scenario) -> None:
    first = Trial(fresh_url(), folder / "trial", scenario)
    first.prepare()
    on_sqlite = first.url.startswith("sqlite")
    prepared = Prepared(first, folder) if on_sqlite else None
    moments = first.in_peace()
    assert moments == ["before commit", "after commit"] * (len(moments) // 2), moments
    assert moments, "the scenario commits nothing, so it shows nothing"
    most = MOST if on_sqlite else MOST_ON_POSTGRES
    # Odd, so that it is now before a commit and now after one.
    stride = 1 if ALL else -(-len(moments) // most) | 1
    began, killed, wrong = time.monotonic(), 0, 0
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
                trial.killed_at(number)
            except BaseException as error:
                wrong += 1
                error.add_note(f"killed {moment} {number // 2 + 1} of {len(moments) // 2}")
                raise
    finally:
        engine = "sqlite" if on_sqlite else "postgres"
        kills, seconds = {"at a commit": killed}, time.monotonic() - began
        note(KILLS, Batch(engine, "commits", None, kills, seconds, wrong))


class Trial:
    """One run of a scenario, on one store."""

    def __init__(self, url: str, folder: Path, scenario: Scenario) -> None:
        folder.mkdir(exist_ok=True)
        self.url = url
        self.folder = folder
        self.scenario = scenario
        self.clock = SharedClock()
        self._world = World(folder / "diary", self.clock)

    def prepare(self) -> None:
        with corral.open(self.url, clock=self.clock) as store:
            self.scenario.prepare(store, self._world)

    def in_peace(self) -> list[str]:
        """Nobody is killed; gives back the moments at which somebody could have been."""
        with Child(lambda: self._run(Probe())) as child:
            moments = child.result()
        self._recover_and_check()
        return moments

    def killed_at(self, moment: int) -> None:
        with Child(lambda: self._run(Probe(kill_at=moment))) as child:
            assert child.ended_by() is signal.SIGKILL, "the process got away"
        self._recover_and_check()

    def _run(self, probe: Probe) -> list[str]:
        with corral.open(self.url, clock=self.clock, probe=probe) as store:
            self.scenario.run(store, self._world)
        return probe.told

    def _recover_and_check(self) -> None:
        wait_until_alone(self.url)
        self.clock.advance(self.scenario.later_ms)
        with corral.open(self.url, clock=self.clock) as store:
            check_rows(store)  # before the recovery changes anything
            self.scenario.recover(store, self._world)
            self.scenario.check(store, self._world)
            check_store(store)


class Prepared:
    """The files of a trial after `prepare`: its SQLite store, its folder, and the home.

    Each copy has the same paths, because rows of the store and git worktrees contain them.
    """

    def __init__(self, trial: Trial, folder: Path) -> None:
        self._trial = trial
        self._time = trial.clock.now()
        self._store = shutil.copyfile(_file(trial.url), folder / "prepared.db")
        self._copies = {
            path: shutil.copytree(path, folder / f"prepared-{path.name}", symlinks=True)
            for path in (trial.folder, config.home())
            if path.exists()
        }

    def copy_to(self, url: str) -> Trial:
        """Make a trial on a new store."""
        shutil.copyfile(self._store, _file(url))
        for path in (self._trial.folder, config.home()):
            if path.exists():
                shutil.rmtree(path)
        for path, copy in self._copies.items():
            shutil.copytree(copy, path, symlinks=True)
        trial = Trial(url, self._trial.folder, self._trial.scenario)
        trial.clock.at = self._time
        return trial


def _file(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))
