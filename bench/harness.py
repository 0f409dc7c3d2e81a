"""The measurement method, which tolerates a noisy machine.

No figure is compared with another run. A base and its rivals alternate in one run; the base runs
again after every rival, and each sample is divided by the base runs on both sides of it, so a slow
phase of the machine affects both. The order of the rivals rotates from round to round. The report
shows the median of these ratios, and the lowest and the highest.
"""

import math
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from tests.support.postgres_server import PostgresServer

T = TypeVar("T")
Rates = Mapping[str, float]
"""What one sample found: how many a second, by the name of what was done."""


class Spread(msgspec.Struct, frozen=True):
    """The median of several measurements, and their range."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        return cls(statistics.median(values), min(values), max(values))

    def inverse(self) -> "Spread":
        return Spread(1 / self.median, 1 / self.high, 1 / self.low)


class Bar(msgspec.Struct, frozen=True):
    """The target of a measurement."""

    sense: Literal[">=", "<=", ">", "<", "="]
    value: float

    def holds(self, measured: float) -> bool:
        match self.sense:
            case ">=":
                return measured >= self.value
            case "<=":
                return measured <= self.value
            case ">":
                return measured > self.value
            case "<":
                return measured < self.value
            case "=":
                return measured == self.value


class Row(msgspec.Struct, frozen=True):
    """One line of the report: a measurement and its target, if any."""

    what: str
    measured: Spread | None
    """Nothing, where it could not be measured; `why` says what is missing."""
    bar: Bar | None = None
    unit: Literal["x", "ms", ""] = "x"
    over: str = ""
    """The peer whose speed is 1; empty where Corral is not compared with a peer."""
    rows: int = 0
    """How many rows of the past there were, where cost is followed as they grow."""
    first_look: Spread | None = None
    """What was measured first, when that missed the bar."""
    why: str = ""
    """Why Corral is not ahead of the peer, where it is not; or why nothing was measured."""

    @property
    def holds(self) -> bool:
        return self.bar is None or self.measured is None or self.bar.holds(self.measured.median)

    @property
    def ahead(self) -> bool:
        """Whether Corral is faster than the peer, or is not compared with one."""
        return not self.over or (self.measured is not None and self.measured.median > 1)

    def unless_ahead(self, why: str) -> "Row":
        """Return the row with the reason for a slower result, if it is slower."""
        return self if self.ahead else msgspec.structs.replace(self, why=" ".join(why.split()))

    def after_a_first_look(self, first: "Row") -> "Row":
        return msgspec.structs.replace(self, first_look=first.measured)


class Rival(msgspec.Struct, frozen=True):
    """One implementation: each call of `sample` does a batch of work and returns its speed."""

    name: str
    sample: Callable[[], Rates]


class Comparison:
    """The alternating samples of a base and its rivals."""

    def __init__(self) -> None:
        self._ratios: dict[tuple[str, str], list[float]] = defaultdict(list)

    @property
    def measured(self) -> list[str]:
        """The names that were compared, in order."""
        return list(dict.fromkeys(what for _, what in self._ratios))

    def add(self, rival: str, got: Rates, before: Rates, after: Rates) -> None:
        for what, rate in got.items():
            if what in before:
                around = statistics.mean((before[what], after[what]))
                self._ratios[rival, what].append(rate / around)

    def speed_of(self, rival: str, what: str) -> Spread:
        """Return the speed of the rival relative to the base."""
        return Spread.of(self._ratios[rival, what])

    def speed_of_base_over(self, rival: str, what: str) -> Spread:
        """Return the speed of the base relative to the rival."""
        return self.speed_of(rival, what).inverse()


class Bench:
    """One run of the benchmark: its thoroughness, the location of its stores, and its progress."""

    def __init__(self, *, quick: bool, progress: Callable[[str], None]) -> None:
        self.quick = quick
        self.progress = progress
        """Told what is being measured; shown to whoever waits."""
        self.closing = ExitStack()
        """Whatever is to be closed at the end of the run."""
        self._kept: dict[str, Any] = {}
        self._stores = 0

    @cached_property
    def folder(self) -> Path:
        folder = tempfile.TemporaryDirectory(prefix="corral-bench-")
        return Path(self.closing.enter_context(folder))

    @cached_property
    def server(self) -> PostgresServer:
        """A PostgreSQL server with fsync."""
        server = PostgresServer(durable=True)
        self.closing.callback(server.close)
        return server

    def pick(self, thorough: T, quick: T) -> T:
        """Return the size or the number of rounds for a thorough or a quick run."""
        return quick if self.quick else thorough

    def new_file(self) -> Path:
        """Return the path of a new SQLite file in its own folder."""
        self._stores += 1
        folder = self.folder / str(self._stores)
        folder.mkdir()
        return folder / "store.db"

    def once(self, name: str, make: Callable[[], T]) -> T:
        """Create a named object once; a repeated measurement reuses it."""
        if name not in self._kept:
            self._kept[name] = make()
        kept: T = self._kept[name]
        return kept

    def compare(self, base: Rival, rivals: Sequence[Rival], *, rounds: int) -> Comparison:
        """Alternate the base and its rivals; the warm-up of each is dropped."""
        comparison = Comparison()
        self.progress("warming up")
        for rival in (base, *rivals):
            rival.sample()
        for number in range(rounds):
            before = base.sample()
            for rival in _rotated(rivals, number):
                self.progress(f"round {number + 1} of {rounds}, {rival.name}")
                got = rival.sample()
                after = base.sample()
                comparison.add(rival.name, got, before, after)
                before = after
        return comparison

    def close(self) -> None:
        self.closing.close()


def _rotated(rivals: Sequence[Rival], by: int) -> Iterator[Rival]:
    start = by % len(rivals)
    yield from rivals[start:]
    yield from rivals[:start]


def rate_of(call: Callable[[], Any], count: int) -> float:
    """Return the calls per second."""
    began = time.perf_counter()
    for _ in range(count):
        call()
    return count / (time.perf_counter() - began)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that `percent` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[math.ceil(len(ordered) * percent / 100) - 1]
