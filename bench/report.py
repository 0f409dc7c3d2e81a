"""The results as terminal text, as JSON, and as a page of the documentation."""

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
PAGE = ROOT / "docs" / "performance.md"
PICTURES = ROOT / "docs" / "pictures"
NOBODY_SAYS = "nobody has said why"
UNLIKE = ("as shipped (FULL)", "by hand")
"""In the names of those that are not at the same durability, or no peer; not drawn."""

HEAD = """\
<!-- Written by `make bench`. Do not edit: the next run writes it anew. -->

# Performance

{verdict}

All figures are ratios inside one run, so they say what Corral costs and not how fast a
machine is. To repeat them: `make bench`, `make bench-peers` for what is compared with
others, or `python -m bench CASE …` for some of them, which leaves the rest as they were measured
before; with `--quick` for a first look that writes nothing. The raw results are in
`bench/results.json`, from which `python -m bench --page` draws and writes this page.

**What is compared.** Corral is always called through its public library or its command, as users
call it. Its opponents do the same work: the raw driver, by hand, on the very same tables, shows
what Corral adds to the price of the database; other queues show what people would have used
instead.

**At which durability.** A SQLite store is at `normal` unless said otherwise: write-ahead log,
`synchronous = NORMAL`; what was accepted survives the death of any process, and a power cut may
take the last commits. At `full`, every commit waits for the disk. PostgreSQL always runs with
fsync. Both sides of a comparison have the same setting, unless it says "as shipped".

**How.** A base and its rivals take turns in one run, in an order that rotates from round to
round, and the base runs again after each rival; every sample is divided by the base runs on both
sides of it. Shown are the median and, in brackets, the lowest and highest ratio. What misses its
bar is measured once more before it is said to miss it; a bar is no test, and a busy machine can
miss one.
"""


class Results(msgspec.Struct, frozen=True):
    """The results of a run: facts of the machine, and the rows of each case by name."""

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

    Other cases keep their earlier results if the machine and the programs are the same.
    """
    before = msgspec.json.decode(RESULTS.read_bytes(), type=Results) if RESULTS.exists() else None
    cases = dict(before.cases) if before is not None and _alike(before.facts, facts) else {}
    cases[name] = rows
    results = Results(facts, {case.name: cases[case.name] for case in CASES if case.name in cases})
    RESULTS.write_text(as_json(results))
    publish(results)


def write_page() -> None:
    """Write the page again from earlier results."""
    publish(msgspec.json.decode(RESULTS.read_bytes(), type=Results))


def publish(results: Results) -> None:
    for plot in _plots(results):
        (PICTURES / plot.file).write_text(plot.svg)
    PAGE.write_text(as_page(results))


def _plots(results: Results) -> list[Plot]:
    """Return the plots of the page."""
    cases = results.cases
    peers = [row for rows in cases.values() for row in rows if row.over and row.measured]
    grown = cases.get("growth", [])
    result = []
    if alike := [row for row in peers if not any(word in row.over for word in UNLIKE)]:
        title = "Corral against what people use instead"
        result.append(Plot("peers.svg", title, plots.ratios(alike, title)))
    if grown:
        title = "How cost grows with the rows of a store"
        result.append(Plot("growth.svg", title, plots.growth(grown, title)))
    return result


def unexplained(rows: Iterable[Row]) -> list[Row]:
    """Return rows in which Corral is slower than a peer without a reason."""
    return [row for row in rows if not row.ahead and not row.why]


def _alike(before: dict[str, str], now: dict[str, str]) -> bool:
    """Return whether two environments agree in what both contain, ignoring patch releases."""
    return all(
        _but_mended(now[name]) == _but_mended(value)
        for name, value in before.items()
        if name in now
    )


def _but_mended(fact: str) -> str:
    """Return a version without its third number and what follows."""
    return ".".join(fact.split(".")[:2]) if fact[:1].isdigit() else fact


def as_text(case: Case, rows: Sequence[Row]) -> str:
    lines = [
        (_what(row), _measured(row), _bar(row.bar, row.unit), _verdict(row) if row.bar else "")
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = (
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
    reasons = dict.fromkeys(f"  {row.over}: {_reason(row)}" for row in rows if _reason(row))
    return "\n".join([f"\n{case.title}", *(f"  {line}" for line in padded), *reasons])


def in_words(rows: Iterable[Row]) -> str:
    return "; ".join(_what(row) for row in rows)


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
    shown = [f"![{plot.title}](pictures/{plot.file})\n" for plot in _plots(results)]
    parts = [HEAD.format(verdict=verdict), *shown, "## Bars\n"]
    for case in measured:
        if own := [row for row in results.cases[case.name] if not row.over]:
            parts += [f"### {case.title}\n", f"{_wrapped(case.about)}\n", _own_table(own)]
    parts += ["## Against peers\n", _standing(results)]
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


def _standing(results: Results) -> str:
    """Return in how many rows Corral is faster."""
    peers = [row for rows in results.cases.values() for row in rows if row.over and row.measured]
    ahead = sum(row.ahead for row in peers)
    return f"Corral is ahead in {ahead} of {len(peers)} rows; each of the others says why not.\n"


def _own_table(rows: Iterable[Row]) -> str:
    return _table(
        ("what", "bar", "measured (spread)", "holds?"),
        ((_what(row), _bar(row.bar, row.unit), _measured(row), _verdict(row)) for row in rows),
    )


def _peer_table(rows: Iterable[Row]) -> str:
    return _table(
        ("what", "peer", "bar", "Corral over the peer (spread)", "holds?", "why not ahead"),
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


def _what(row: Row) -> str:
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
    return row.why or ("" if row.ahead else NOBODY_SAYS)


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
    return f"{result}, at the second look (first: {_spread(row.first_look, row.unit)})"


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
