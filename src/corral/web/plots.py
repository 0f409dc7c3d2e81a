"""Data of plots. Pages also show the numbers as a table."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from corral.kernel.money import MICROS_PER_USD


class PlotSeries(msgspec.Struct, frozen=True):
    label: str
    values: list[float | None]


class Plot(msgspec.Struct, frozen=True):
    """Series over time, as lines or bars. `x` holds seconds since 1970."""

    title: str
    unit: str
    kind: str
    x: list[float]
    series: list[PlotSeries]

    def json(self) -> str:
        return msgspec.json.encode(self).decode()


class ChartBar(NamedTuple):
    """A bar of a small chart; position and height in percent."""

    label: str
    value: int
    x: float
    y: float
    height: float


def layout_bars(values: Sequence[tuple[str, int]]) -> list[ChartBar]:
    """Lay out labelled values as bars, in percent of the chart."""
    maximum = max((value for _, value in values), default=0) or 1
    width = 100 / max(len(values), 1)
    return [
        ChartBar(label, value, n * width, 100 - (height := 100 * value / maximum), height)
        for n, (label, value) in enumerate(values)
    ]


def to_dollars(micros: int | None) -> float | None:
    return None if micros is None else micros / MICROS_PER_USD
