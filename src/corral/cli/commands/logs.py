"""`corral logs`: show the output of a run."""

import sys
from typing import TYPE_CHECKING

import click

from corral.cli.click_classes import Command
from corral.cli.columns import Column
from corral.cli.context import App, pass_app
from corral.cli.render import format_age
from corral.cli.run_refresh import refresh_run

if TYPE_CHECKING:
    from corral.domain.runs.model import Run

LEVELS = ("debug", "info", "warn", "error")


@click.command(
    "logs",
    cls=Command,
    examples=[
        "corral logs server",
        "corral logs -f --tail 20 server",
        "corral logs --raw run_01abc",
    ],
)
@click.argument("run")
@click.option("-f", "--follow", is_flag=True, help="Follow the output until the run ends.")
@click.option("--tail", type=click.IntRange(1), metavar="N", help="Only show the last N lines.")
@click.option("--raw", is_flag=True, help="Show the bytes unchanged, with escape sequences.")
@click.option(
    "--stderr",
    "errors",
    is_flag=True,
    help="Show standard error instead, if it was recorded separately.",
)
@click.option("--log", is_flag=True, help="Show Corral's log entries about the run instead.")
@click.option(
    "--level",
    type=click.Choice(LEVELS),
    default="debug",
    show_default=True,
    help="Minimum level of log entries.",
)
@pass_app
def command(
    app: App,
    run: str,
    follow: bool,
    tail: int | None,
    raw: bool,
    errors: bool,
    log: bool,
    level: str,
) -> None:
    """Show the output of a run as text that is safe to print.

    The structured stream of an agent is shown as a transcript, the output of a terminal as it was
    displayed. With --json, show the log entries about the run, as with --log.
    """
    from corral.cli.output_view import OutputPrinter

    record = refresh_run(app.store, run)
    if log or app.json:
        _show_log(app, record, level)
        return
    printer = OutputPrinter(app.store, record, stream="stderr" if errors else "output", raw=raw)
    for data in printer.tail(tail) if tail is not None else printer.read(follow=follow):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    if tail is not None and follow:
        for data in printer.follow_tail():
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()


def _show_log(app: App, run: "Run", level: str) -> None:
    page = app.store.outputs.log_lines(run.id, level=level, limit=1_000)
    app.show_list(
        page.items,
        [
            Column("AT", lambda entry: format_age(entry.at)),
            Column("LEVEL", lambda entry: entry.level),
            Column("MESSAGE", lambda entry: entry.message, shrink="truncate"),
            Column("DATA", lambda entry: entry.metadata, shrink="truncate"),
        ],
        empty="No log entries.",
    )
