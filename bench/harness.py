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
"""The result of one sample: operations per second, by the name of the operation."""


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
    """None if it could not be measured; `why` has the reason."""
    bar: Bar | None = None
    unit: Literal["x", "ms", ""] = "x"
    over: str = ""
    """The peer whose speed is 1; empty without a comparison with a peer."""
    rows: int = 0
    """The number of rows in the store, for measurements of growth."""
    first_look: Spread | None = None
    """The first measurement, if it missed the bar."""
    why: str = ""
    """The reason why Corral is slower than the peer, or why nothing was measured."""

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

    def after_first_measurement(self, first: "Row") -> "Row":
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
        return list(dict.fromkeys(operation for _, operation in self._ratios))

    def add(self, rival: str, rates: Rates, before: Rates, after: Rates) -> None:
        for operation, rate in rates.items():
            if operation in before:
                base_rate = statistics.mean((before[operation], after[operation]))
                self._ratios[rival, operation].append(rate / base_rate)

    def speed_of(self, rival: str, operation: str) -> Spread:
        """Return the speed of the rival relative to the base."""
        return Spread.of(self._ratios[rival, operation])

    def speed_of_base_over(self, rival: str, operation: str) -> Spread:
        """Return the speed of the base relative to the rival."""
        return self.speed_of(rival, operation).inverse()


class Bench:
    """One run of the benchmark: its thoroughness, the location of its stores, and its progress."""

    def __init__(self, *, quick: bool, progress: Callable[[str], None]) -> None:
        self.quick = quick
        self.progress = progress
        """Called with a description of the current measurement, to show it."""
        self.closing = ExitStack()
        """Resources to close at the end of the run."""
        self._cached: dict[str, Any] = {}
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
        if name not in self._cached:
            self._cached[name] = make()
        result: T = self._cached[name]
        return result

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
                rates = rival.sample()
                after = base.sample()
                comparison.add(rival.name, rates, before, after)
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
    start = time.perf_counter()
    for _ in range(count):
        call()
    return count / (time.perf_counter() - start)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that `percent` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[math.ceil(len(ordered) * percent / 100) - 1]
