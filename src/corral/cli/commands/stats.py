"""`corral stats`: success rates, durations, tokens and cost of runs."""

import sys
from typing import Any

import click

from corral.cli.click_classes import Command
from corral.cli.columns import Column, Columns
from corral.cli.context import App, pass_app
from corral.cli.parameters import DURATION
from corral.cli.render import write_line
from corral.kernel.clock import format_duration
from corral.kernel.money import format_usd
from corral.kernel.pagination import iter_all

BAR_WIDTH = 20
LEGEND = "OK: completed runs, without cancelled ones. P95: 95th percentile. +: at least."
EIGHTHS = " ▏▎▍▌▋▊▉"


@click.command(
    "stats", cls=Command, examples=["corral stats --since 7d", "corral stats --by model --csv"]
)
@click.option(
    "--by",
    type=click.Choice(["project", "agent", "model", "day", "provider"]),
    default="project",
    show_default=True,
    help="Group runs by this field.",
)
@click.option(
    "--since", type=DURATION, help="Only count runs within this time, such as 7d (default: all)."
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@pass_app
def command(app: App, by: str, since: int | None, as_csv: bool) -> None:
    """Show success, failure and crash rates, durations, tokens and cost of runs.

    OK is the share of completed runs among all runs that were not cancelled. P95 is the 95th
    percentile of the duration. A + after a cost means that the cost of some runs is unknown, so
    the total is higher.
    """
    rows = [*iter_all(app.store.insights.stats, by=by, since_ms=since, limit=1_000)]
    if by != "day":
        rows.sort(key=lambda row: -row.runs)
    if as_csv:
        _write_csv(rows)
        return
    highest = max((row.runs for row in rows), default=0)
    has_interrupted = any(row.interrupted for row in rows)
    columns = _columns(by, highest, has_interrupted=has_interrupted)
    app.show_list(rows, columns, empty="No runs have ended yet.")
    if rows and not app.json:
        write_line("")
        write_line(LEGEND)


def _write_csv(rows: list[Any]) -> None:
    import csv

    from corral.domain.insights.model import Stats

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(Stats.__struct_fields__)
    for row in rows:
        writer.writerow(_escape_formula(getattr(row, name)) for name in row.__struct_fields__)


def _escape_formula(value: Any) -> Any:
    """Quote text that a spreadsheet would evaluate as a formula: names may come from an agent."""
    if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{value}"
    return "" if value is None else value


def _columns(by: str, highest: int, *, has_interrupted: bool) -> Columns:
    interrupted = Column("INTERRUPTED", lambda row: row.interrupted, drop=3)
    return [
        Column(by.upper(), lambda row: row.label or row.key or "-"),
        Column("RUNS", lambda row: row.runs),
        Column("SHARE", lambda row: render_bar(row.runs, highest), drop=5),
        Column("OK", lambda row: _percent(row.success_rate)),
        Column("FAILED", lambda row: row.failed),
        Column("CRASHED", lambda row: row.crashed),
        Column("TIMED OUT", lambda row: row.timed_out, drop=4),
        *([interrupted] if has_interrupted else []),
        Column("CANCELLED", lambda row: row.cancelled, drop=2),
        Column("MEDIAN", lambda row: _duration(row.median_ms)),
        Column("P95", lambda row: _duration(row.p95_ms)),
        Column("TOKENS", lambda row: "-" if row.tokens is None else f"{row.tokens:,}"),
        Column("COST", lambda row: _cost(row), drop=1),
    ]


def render_bar(count: int, most: int) -> str:
    """Render `count` relative to `most` as a bar of block characters; at least one eighth."""
    if most <= 0 or count <= 0:
        return ""
    eighths = max(round(count * BAR_WIDTH * 8 / most), 1)
    full, rest = divmod(eighths, 8)
    return "█" * full + EIGHTHS[rest].strip()


def _percent(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.0%}"


def _duration(ms: int | None) -> str:
    if ms is None:
        return "-"
    return format_duration(ms if ms < 1_000 else ms // 1_000 * 1_000)


def _cost(row: Any) -> str:
    """Format the known cost, with + if the cost of some runs is unknown."""
    return format_usd(row.cost_micros) + ("+" if row.unpriced and row.cost_micros else "")
