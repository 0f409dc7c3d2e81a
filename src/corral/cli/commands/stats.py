import sys
from typing import Any

import click

from corral.cli.app import DURATION, App, Verb, pass_app
from corral.cli.render import write_line
from corral.kernel.clock import format_duration
from corral.kernel.money import format_usd
from corral.kernel.pagination import every

WIDTH = 20
LEGEND = "OK: completed of all not cancelled. P95: 95 of 100 took no longer. +: at least."
EIGHTHS = " ▏▎▍▌▋▊▉"


@click.command("stats", cls=Verb)
@click.option(
    "--by",
    type=click.Choice(["project", "agent", "model", "day", "provider"]),
    default="project",
    show_default=True,
    help="What runs are grouped by.",
)
@click.option("--since", type=DURATION, help="How far to look back, as 7d; without it, at all.")
@click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values.")
@pass_app
def command(app: App, by: str, since: int | None, as_csv: bool) -> None:
    """How runs went: success, failure and crash rates, durations, tokens and cost.

    OK is the share of completed runs among all that were not cancelled. P95: 95 of 100 runs took no
    longer. A + behind a cost: that of some runs is not known, so it was more.
    """
    rows = [*every(app.store.insights.stats, by=by, since_ms=since, limit=1_000)]
    if by != "day":
        rows.sort(key=lambda row: -row.runs)
    if as_csv:
        _write_csv(rows)
        return
    most = max((row.runs for row in rows), default=0)
    columns = _columns(by, most)
    if not any(row.interrupted for row in rows):
        columns = [column for column in columns if column[0] != "INTERRUPTED"]
    app.show_all(rows, columns, empty="No run has ended yet.")
    if rows and not app.json:
        write_line("")
        write_line(LEGEND)


def _write_csv(rows: list[Any]) -> None:
    import csv

    from corral.domain.insights.model import Stats

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(Stats.__struct_fields__)
    for row in rows:
        writer.writerow(_plain(getattr(row, name)) for name in row.__struct_fields__)


def _plain(value: Any) -> Any:
    """A cell that no spreadsheet takes for a formula: names may come from an agent."""
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return "" if value is None else value


def _columns(by: str, most: int) -> list[Any]:
    return [
        (by.upper(), lambda row: row.label or row.key or "-"),
        ("RUNS", lambda row: row.runs),
        ("SHARE", lambda row: bar(row.runs, most)),
        ("OK", lambda row: _percent(row.success_rate)),
        ("FAILED", lambda row: row.failed),
        ("CRASHED", lambda row: row.crashed),
        ("TIMED OUT", lambda row: row.timed_out),
        ("INTERRUPTED", lambda row: row.interrupted),
        ("CANCELLED", lambda row: row.cancelled),
        ("MEDIAN", lambda row: _duration(row.median_ms)),
        ("P95", lambda row: _duration(row.p95_ms)),
        ("TOKENS", lambda row: "-" if row.tokens is None else f"{row.tokens:,}"),
        ("COST", lambda row: _cost(row)),
    ]


def bar(count: int, most: int) -> str:
    """A bar of eighths of a block, as long as the count is among the most; never quite nothing."""
    if most <= 0 or count <= 0:
        return ""
    eighths = max(round(count * WIDTH * 8 / most), 1)
    full, rest = divmod(eighths, 8)
    return "█" * full + EIGHTHS[rest].strip()


def _percent(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.0%}"


def _duration(ms: int | None) -> str:
    if ms is None:
        return "-"
    return format_duration(ms if ms < 1_000 else ms // 1_000 * 1_000)


def _cost(row: Any) -> str:
    """What is known; with a sign behind it when that is not all."""
    return format_usd(row.cost_micros) + ("+" if row.unknown and row.cost_micros else "")
