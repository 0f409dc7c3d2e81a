"""The plots of the page, drawn from the results: SVG templates, like those of the dashboard.

They have their own background and follow the reader's light or dark mode, so they are readable
wherever the page is shown.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from jinja2 import Environment

from bench.harness import Row, Spread

STYLE = """<style>
  svg { font: 12px system-ui, "Segoe UI", "Helvetica Neue", "Noto Sans", Arial, sans-serif; }
  .paper { fill: #fffefc; } text { fill: #22201c; } .soft { fill: #67625a; }
  .title { font-size: 15px; font-weight: 600; } .peer { font-weight: 600; }
  .back { text-anchor: end; } .mid { text-anchor: middle; }
  .tick { stroke: #e5e0d8; } .one { stroke: #67625a; }
  .bar { stroke: #b0322b; stroke-dasharray: 2 3; }
  .ahead { fill: #44658c; } .behind { fill: #a8602f; } .reach { stroke: #22201c; opacity: 0.55; }
  .first { stroke: #44658c; fill: #44658c; } .second { stroke: #a8602f; fill: #a8602f; }
  polyline { fill: none !important; stroke-width: 2; } .second polyline { stroke-dasharray: 5 3; }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #1b1d20; } text { fill: #e8e6e1; } .soft { fill: #a09c94; }
    .tick { stroke: #2c2f34; } .one { stroke: #a09c94; } .bar { stroke: #f08b80; }
    .ahead { fill: #8db0d8; } .behind { fill: #dd9c6f; } .reach { stroke: #e8e6e1; }
    .first { stroke: #8db0d8; fill: #8db0d8; } .second { stroke: #dd9c6f; fill: #dd9c6f; }
  }
</style>
"""

FRAME = (
    """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{ width }} {{ height }}" role="img" \
aria-label="{{ title }}; the numbers are in the tables">
"""
    + STYLE
    + """\
<rect class="paper" width="{{ width }}" height="{{ height }}" rx="8"/>
<text class="title" x="16" y="26">{{ title }}</text>
<text class="soft" x="16" y="44">{{ about }}</text>
"""
)

BARS = (
    FRAME
    + """\
{% for tick in ticks %}
<line class="{{ 'one' if tick.value == 1 else 'tick' }}" x1="{{ tick.x }}" x2="{{ tick.x }}" \
y1="{{ top }}" y2="{{ height - 24 }}"/>
<text class="soft mid" x="{{ tick.x }}" y="{{ height - 8 }}">{{ tick.label }}</text>
{% endfor %}
{% for peer in peers %}
<text class="peer" x="16" y="{{ peer.y }}">{{ peer.name }}</text>
{% for bar in peer.bars %}
<text class="soft back" x="{{ left - 8 }}" y="{{ bar.y + 4 }}">{{ bar.label }}</text>
<rect class="{{ 'ahead' if bar.ahead else 'behind' }}" x="{{ bar.x }}" y="{{ bar.y - 5 }}" \
width="{{ bar.width }}" height="10" rx="2"/>
<line class="reach" x1="{{ bar.low }}" x2="{{ bar.high }}" y1="{{ bar.y }}" y2="{{ bar.y }}"/>
<text x="{{ bar.end + 6 }}" y="{{ bar.y + 4 }}">{{ bar.value }}</text>
{% endfor %}
{% endfor %}
</svg>
"""
)

PANELS = (
    FRAME
    + """\
{% for engine in engines %}
<g class="{{ engine.style }}"><polyline points="{{ engine.x }},58 {{ engine.x + 26 }},58"/></g>
<text x="{{ engine.x + 32 }}" y="62">{{ engine.name }}</text>
{% endfor %}
{% for panel in panels %}
<g transform="translate({{ panel.x }} {{ panel.y }})">
<text x="0" y="-8">{{ panel.name }}</text>
{% for tick in ticks %}
<line class="{{ tick.style }}" x1="0" x2="{{ inner }}" y1="{{ tick.y }}" y2="{{ tick.y }}"/>
<text class="soft back" x="-6" y="{{ tick.y + 4 }}">{{ tick.label }}</text>
{% endfor %}
{% for size in sizes %}
<text class="soft mid" x="{{ size.x }}" y="{{ tall + 16 }}">10{{ size.power }}</text>
{% endfor %}
{% for line in panel.lines %}
<g class="{{ line.style }}"><polyline points="{{ line.points }}"/>
{% for x, y in line.dots %}
<circle cx="{{ x }}" cy="{{ y }}" r="3"/>
{% endfor %}
</g>
{% endfor %}
</g>
{% endfor %}
</svg>
"""
)

_environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)

WIDTH = 860
LEFT, RIGHT, TOP = 330, 780, 58
LINE, HEAD = 16, 24
ACROSS, INNER, TALL = 4, 168, 96
POWERS = {3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸"}
STYLES = ("first", "second")


FIRST = 10_000
"""The number of rows in the store that all others are compared with."""


class Curve(NamedTuple):
    """The cost of one call on one engine: rows of history, and the relative time."""

    engine: str
    what: str
    points: list[tuple[int, float]]


def ratios(rows: Sequence[Row], title: str) -> str:
    """Draw bars by peer, on a logarithmic scale around 1."""
    measured = [(row, row.measured) for row in rows if row.measured is not None]
    highest = max(max(spread.high, 1 / spread.low) for _, spread in measured)
    lowest = min(0.5, *(spread.low for _, spread in measured))
    scale = _Scale(math.log10(lowest), math.log10(highest), LEFT, RIGHT - 40)
    peers, y = [], TOP + 4
    for name, group in groupby(measured, key=lambda pair: pair[0].over):
        y += HEAD
        top = y
        bars = []
        for row, spread in group:
            y += LINE
            bars.append(_bar(row, spread, scale, y))
        peers.append({"name": name, "y": top + 4, "bars": bars})
    values = [
        value for value in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if lowest <= value <= highest
    ]
    return _environment.from_string(BARS).render(
        title=title,
        about="Speed of Corral over the peer's, at equal durability; to the right of 1 Corral is"
        " ahead. The thin line is the spread.",
        width=WIDTH,
        height=y + 44,
        top=TOP,
        left=LEFT,
        ticks=[{"value": item, "x": scale.at(item), "label": f"{item:g}"} for item in values],
        peers=peers,
    )


def growth(rows: Iterable[Row], title: str) -> str:
    """Draw a panel for each call: its relative time by rows of history."""
    curves = list(_curves(rows))
    engines = list(dict.fromkeys(curve.engine for curve in curves))
    calls = list(dict.fromkeys(curve.what for curve in curves))
    sizes = sorted({size for curve in curves for size, _ in curve.points})
    most = max(2.0, *(value for curve in curves for _, value in curve.points))
    least = min(0.5, *(value for curve in curves for _, value in curve.points))
    across = _Scale(math.log10(sizes[0]), math.log10(sizes[-1]), 0, INNER)
    up = _Scale(math.log10(least), math.log10(most), TALL, 0)
    panels = [
        {
            "name": call,
            "x": 44 + (number % ACROSS) * (INNER + 40),
            "y": 104 + (number // ACROSS) * (TALL + 56),
            "lines": [
                _line(curve, STYLES[engines.index(curve.engine)], across, up)
                for curve in curves
                if curve.what == call
            ],
        }
        for number, call in enumerate(calls)
    ]
    marks = {0.5: "tick", 1.0: "one", 1.5: "bar", 2.0: "tick", 5.0: "tick", 10.0: "tick"}
    return _environment.from_string(PANELS).render(
        title=title,
        about="Time of a call over its time after 10,000 rows, by rows of the past;"
        " the dotted line is the bar.",
        width=WIDTH,
        height=104 + ((len(calls) + ACROSS - 1) // ACROSS) * (TALL + 56) - 16,
        inner=INNER,
        tall=TALL,
        engines=[
            {"name": name, "style": style, "x": 16 + 110 * number}
            for number, (name, style) in enumerate(zip(engines, STYLES, strict=False))
        ],
        ticks=[
            {"y": up.at(value), "label": f"{value:g}x", "style": style}
            for value, style in marks.items()
            if least <= value <= most
        ],
        sizes=[{"x": across.at(size), "power": POWERS[round(math.log10(size))]} for size in sizes],
        panels=panels,
    )


class _Scale:
    """The position of a value on a logarithmic scale."""

    def __init__(self, low: float, high: float, first: float, last: float) -> None:
        self._low, self._high = low, high
        self._first, self._last = first, last

    def at(self, value: float) -> float:
        part = (math.log10(value) - self._low) / (self._high - self._low)
        return round(self._first + part * (self._last - self._first), 1)


def _bar(row: Row, spread: Spread, scale: _Scale, y: float) -> dict[str, object]:
    unit_x, end = scale.at(1), scale.at(spread.median)
    return {
        "label": row.what,
        "y": y,
        "ahead": row.ahead,
        "x": min(unit_x, end),
        "width": round(max(abs(end - unit_x), 1), 1),
        "low": scale.at(spread.low),
        "high": scale.at(spread.high),
        "end": max(unit_x, scale.at(spread.high), end),
        "value": f"{spread.median:.3g}x",
    }


def _line(curve: Curve, style: str, across: _Scale, up: _Scale) -> dict[str, object]:
    dots = [(across.at(size), up.at(value)) for size, value in curve.points]
    return {"style": style, "dots": dots, "points": " ".join(f"{x},{y}" for x, y in dots)}


def _curves(rows: Iterable[Row]) -> Iterator[Curve]:
    for what, group in groupby(rows, key=lambda row: row.what):
        engine, _, call = what.partition(": ")
        points = [(row.rows, row.measured.median) for row in group if row.measured is not None]
        yield Curve(engine, call, [(FIRST, 1.0), *points])
