"""The results as terminal text, as JSON, and as a page."""

import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench import plots
from bench.cases import CASES, Case
from bench.harness import Bar, Row, Spread

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "bench" / "results.json"
PAGE = ROOT / "bench" / "RESULTS.md"
PICTURES = ROOT / "docs" / "pictures"
NO_REASON = "no reason given"
NOT_PLOTTED = ("as shipped (FULL)", "by hand")
"""Parts of names of rows that are not plotted: another durability, or not a peer."""

HEAD = """\
<!-- Written by `make bench`. Do not edit. -->

# Benchmark results

{verdict}

`docs/explanation/performance.md` explains the method and summarises these tables. `make bench`
measures all cases, `make bench-peers` the comparisons with other tools, `python -m bench CASE …`
single ones; the others keep their results. `python -m bench --page` writes this page from
`bench/results.json`.

A figure is the median of ratios within one run, with the lowest and the highest in brackets. A bar
is a target; a row that misses it is measured once more. "By hand" is the raw driver with prepared
statements on the same tables. SQLite is at NORMAL durability unless stated.
"""


class Results(msgspec.Struct, frozen=True):
    """The results of a run: facts about the machine, and the rows of each case by name."""

    facts: dict[str, str]
    cases: dict[str, list[Row]]

    @property
    def barred(self) -> list[Row]:
        return [row for rows in self.cases.values() for row in rows if row.bar is not None]


class Plot(NamedTuple):
    file: str
    title: str
    svg: str


def add(facts: dict[str, str], name: str, rows: list[Row]) -> None:
    """Add the rows of a case to the report.

    Results of other cases are kept if they come from the same kind of machine and programs.
    """
    before = msgspec.json.decode(RESULTS.read_bytes(), type=Results) if RESULTS.exists() else None
    cases = dict(before.cases) if before is not None and _is_comparable(before.facts, facts) else {}
    cases[name] = rows
    results = Results(facts, {case.name: cases[case.name] for case in CASES if case.name in cases})
    RESULTS.write_text(as_json(results))
    publish(results)


def write_page() -> None:
    """Write the page and the plots from the stored results."""
    publish(msgspec.json.decode(RESULTS.read_bytes(), type=Results))


def publish(results: Results) -> None:
    for plot in _plots(results):
        (PICTURES / plot.file).write_text(plot.svg)
    PAGE.write_text(as_page(results))


def _plots(results: Results) -> list[Plot]:
    """Return the plots for the available results."""
    cases = results.cases
    peers = [row for rows in cases.values() for row in rows if row.over and row.measured]
    growth_rows = cases.get("growth", [])
    result = []
    if plotted := [row for row in peers if not any(word in row.over for word in NOT_PLOTTED)]:
        title = "Corral beside other tools"
        result.append(Plot("peers.svg", title, plots.ratios(plotted, title)))
    if growth_rows:
        title = "Cost by number of rows in the store"
        result.append(Plot("growth.svg", title, plots.growth(growth_rows, title)))
    return result


def unexplained(rows: Iterable[Row]) -> list[Row]:
    """Return the rows in which Corral is slower than a peer without a reason."""
    return [row for row in rows if not row.ahead and not row.why]


def _is_comparable(before: dict[str, str], now: dict[str, str]) -> bool:
    """Return whether the facts that both runs have are equal, apart from patch versions."""
    return all(
        _without_patch_version(now[name]) == _without_patch_version(value)
        for name, value in before.items()
        if name in now
    )


def _without_patch_version(fact: str) -> str:
    """Return a version up to its minor number; other facts unchanged."""
    return ".".join(fact.split(".")[:2]) if fact[:1].isdigit() else fact


def as_text(case: Case, rows: Sequence[Row]) -> str:
    lines = [
        (_label(row), _measured(row), _bar(row.bar, row.unit), _verdict(row) if row.bar else "")
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = (
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
    reasons = dict.fromkeys(f"  {row.over}: {_reason(row)}" for row in rows if _reason(row))
    return "\n".join([f"\n{case.title}", *(f"  {line}" for line in padded), *reasons])


def join_labels(rows: Iterable[Row]) -> str:
    return "; ".join(_label(row) for row in rows)


def as_json(results: Results) -> str:
    def plain(row: Row) -> dict[str, Any]:
        return {**msgspec.to_builtins(row), "holds": row.holds}

    values = {
        "facts": results.facts,
        "cases": {name: [plain(row) for row in rows] for name, rows in results.cases.items()},
    }
    return msgspec.json.format(msgspec.json.encode(values), indent=2).decode() + "\n"


def as_page(results: Results) -> str:
    held = sum(row.holds for row in results.barred)
    every = len(results.barred)
    verdict = f"{'All' if held == every else f'{held} of'} {every} bars hold."
    measured = [case for case in CASES if case.name in results.cases]
    images = [f"![{plot.title}](../docs/pictures/{plot.file})\n" for plot in _plots(results)]
    parts = [HEAD.format(verdict=verdict), *images, "## Bars\n"]
    for case in measured:
        if own_rows := [row for row in results.cases[case.name] if not row.over]:
            parts += [f"### {case.title}\n", f"{_wrapped(case.about)}\n", _own_table(own_rows)]
    parts += ["## Against peers\n", _summary(results)]
    for case in measured:
        rows = results.cases[case.name]
        if peers := [row for row in rows if row.over]:
            if len(peers) == len(rows):
                parts += [f"### {case.title}\n", f"{_wrapped(case.about)}\n"]
            else:
                parts.append(f"### {case.title}, against peers\n")
            parts.append(_peer_table(peers))
    parts += ["## Measured with\n", _table(("", ""), results.facts.items())]
    return "\n".join(parts)


def _summary(results: Results) -> str:
    """Return the sentence about the number of rows in which Corral is ahead."""
    peers = [row for rows in results.cases.values() for row in rows if row.over and row.measured]
    ahead = sum(row.ahead for row in peers)
    return f"Corral is ahead in {ahead} of {len(peers)} rows; the other rows give the reason.\n"


def _own_table(rows: Iterable[Row]) -> str:
    return _table(
        ("what", "bar", "measured (spread)", "met?"),
        ((_label(row), _bar(row.bar, row.unit), _measured(row), _verdict(row)) for row in rows),
    )


def _peer_table(rows: Iterable[Row]) -> str:
    return _table(
        ("what", "peer", "bar", "Corral over the peer (spread)", "met?", "reason if slower"),
        (
            (
                *(row.what, row.over, _bar(row.bar, row.unit), _measured(row), _verdict(row)),
                _reason(row),
            )
            for row in rows
        ),
    )


def _table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, ["---"] * len(head), *lines))


def _label(row: Row) -> str:
    if row.rows:
        return f"{row.what}, {row.rows:,} rows"
    return f"{row.what}, over {row.over}" if row.over else row.what


def _bar(bar: Bar | None, unit: str) -> str:
    if bar is None:
        return ""
    sense = {">=": "≥", "<=": "≤"}.get(bar.sense, bar.sense)
    return f"{sense} {bar.value:,g}{_unit(unit)}"


def _measured(row: Row) -> str:
    return "not measured" if row.measured is None else _spread(row.measured, row.unit)


def _reason(row: Row) -> str:
    return row.why or ("" if row.ahead else NO_REASON)


def _spread(spread: Spread, unit: str) -> str:
    middle = f"{_number(spread.median)}{_unit(unit)}"
    if spread.low == spread.high:
        return middle
    return f"{middle} ({_number(spread.low)} to {_number(spread.high)})"


def _verdict(row: Row) -> str:
    if row.measured is None:
        return ""
    if row.bar is None:
        return "for information"
    result = "yes" if row.holds else "**no**"
    if row.first_look is None:
        return result
    return f"{result}, in the second measurement (first: {_spread(row.first_look, row.unit)})"


def _unit(unit: str) -> str:
    return {"x": "x", "ms": " ms"}.get(unit, "")


def _number(value: float) -> str:
    if float(value).is_integer():
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 100)
