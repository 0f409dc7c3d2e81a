"""The plan of faults: determined by the seed alone, so that it can be repeated."""

import random

import msgspec

MACHINES = ("one", "two")
WORKERS = 4
LEASE = 3.0
"""Seconds. Most stops and cuts last longer than this."""

# The relative frequency of each fault.
KINDS = {
    "kill supervisor": 6,
    "kill guard": 3,
    "kill agent": 4,
    "kill worker": 5,
    "kill daemon": 3,
    "power": 1,
    "down": 2,
    "stop supervisor": 3,
    "stop worker": 4,
    "stop daemon": 2,
    "stop machine": 1,
    "clock": 3,
    "restart": 3,
    "fill": 2,
    "cut": 3,
}
BOTH = {*KINDS} - {"restart", "fill", "cut"}
"""Kinds that need no server, small disk or private network."""


class Fault(msgspec.Struct, frozen=True):
    at: float
    """Seconds from the start."""
    kind: str
    machine: str
    pick: float
    """Selects one of the candidates, from 0 to 1."""
    lasts: float
    """Seconds until the fault is undone, if possible."""
    ms: int
    """The offset of the clock, in milliseconds."""

    def __str__(self) -> str:
        return f"{self.at:6.1f} s  {self.kind} ({self.machine}, {self.lasts:.1f} s, {self.ms} ms)"


def plan(seed: int, seconds: float, kinds: set[str]) -> list[Fault]:
    """Return all faults for so many seconds, of the kinds that are possible here."""
    rng = random.Random(seed)
    faults: list[Fault] = []
    time = 2.0
    names = sorted(kinds)
    while time < seconds:
        kind = rng.choices(names, [KINDS[name] for name in names])[0]
        faults.append(
            Fault(
                at=time,
                kind=kind,
                machine=rng.choice(MACHINES),
                pick=rng.random(),
                lasts=rng.choice((0.3, LEASE + 0.5, LEASE + 2, 2 * LEASE + 2)),
                ms=rng.choice((-20_000, -5_000, -500, 500, 5_000, 20_000)),
            )
        )
        time += rng.choice((0.05, 0.3, 0.8, 1.5, 2.5))
    return faults
