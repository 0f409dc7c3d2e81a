"""What a plot is made from; its numbers are shown as a table beside it."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from corral.kernel.money import MICROS


class Line(msgspec.Struct, frozen=True):
    label: str
    values: list[float | None]


class Plot(msgspec.Struct, frozen=True):
    """Lines or bars over time. `x` holds seconds since 1970."""

    title: str
    unit: str
    kind: str
    x: list[float]
    lines: list[Line]

    def json(self) -> str:
        return msgspec.json.encode(self).decode()


class Bar(NamedTuple):
    label: str
    value: int
    x: float
    y: float
    height: float


def bars(values: Sequence[tuple[str, int]]) -> list[Bar]:
    """A few bars, in percent of the room that they have."""
    most = max((value for _, value in values), default=0) or 1
    width = 100 / max(len(values), 1)
    return [
        Bar(label, value, n * width, 100 - (height := 100 * value / most), height)
        for n, (label, value) in enumerate(values)
    ]


def dollars(micros: int | None) -> float | None:
    return None if micros is None else micros / MICROS
