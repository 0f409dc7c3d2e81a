"""The plan of faults: determined by the seed alone, so that it can be repeated."""

import random

import msgspec

MACHINES = ("one", "two")
WORKERS = 4
LEASE = 3.0
"""Seconds; what is stopped or cut off is so for longer than this, mostly."""

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
"""What can be done anywhere; the others need a server, a small disk, a network of one's own."""


class Fault(msgspec.Struct, frozen=True):
    at: float
    """Seconds from the beginning."""
    kind: str
    machine: str
    pick: float
    """Which one of those that there are then, from 0 to 1."""
    lasts: float
    """Seconds until it is undone, where it can be."""
    ms: int
    """How far a clock is moved."""

    def __str__(self) -> str:
        return f"{self.at:6.1f} s  {self.kind} ({self.machine}, {self.lasts:.1f} s, {self.ms} ms)"


def plan(seed: int, seconds: float, kinds: set[str]) -> list[Fault]:
    """Return all faults for so many seconds, of the kinds that are possible here."""
    draw = random.Random(seed)
    faults: list[Fault] = []
    at = 2.0
    names = sorted(kinds)
    while at < seconds:
        kind = draw.choices(names, [KINDS[name] for name in names])[0]
        faults.append(
            Fault(
                at=at,
                kind=kind,
                machine=draw.choice(MACHINES),
                pick=draw.random(),
                lasts=draw.choice((0.3, LEASE + 0.5, LEASE + 2, 2 * LEASE + 2)),
                ms=draw.choice((-20_000, -5_000, -500, 500, 5_000, 20_000)),
            )
        )
        at += draw.choice((0.05, 0.3, 0.8, 1.5, 2.5))
    return faults
