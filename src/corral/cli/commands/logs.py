import sys
from typing import TYPE_CHECKING

import click

from corral.cli.app import App, Verb, pass_app, run_as_it_is
from corral.cli.render import ago

if TYPE_CHECKING:
    from corral.domain.runs.model import Run

LEVELS = ("debug", "info", "warn", "error")


@click.command("logs", cls=Verb)
@click.argument("run")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run is over.")
@click.option("--tail", type=click.IntRange(1), metavar="N", help="Only the last N lines.")
@click.option("--raw", is_flag=True, help="The bytes as they were written, escapes and all.")
@click.option("--errors", is_flag=True, help="What it wrote to standard error, where kept apart.")
@click.option("--log", is_flag=True, help="What was noticed about it, line by line, instead.")
@click.option("--level", type=click.Choice(LEVELS), default="debug", help="With --log: from here.")
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
    """Show what a run wrote, as text that is safe to look at.

    An agent's structured stream is shown as its words, a terminal's output as it looked. With
    --json it is the run's log, as with --log.
    """
    from corral.cli.output_view import Reading

    found = run_as_it_is(app.store, run)
    if log or app.json:
        _show_log(app, found, level)
        return
    reading = Reading(app.store, found, stream="errors" if errors else "output", raw=raw)
    for data in reading.tail(tail) if tail is not None else reading.all(follow=follow):
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    if tail is not None and follow:
        for data in reading.rest():
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()


def _show_log(app: App, run: "Run", level: str) -> None:
    page = app.store.outputs.log_lines(run.id, level=level, limit=1_000)
    app.show_all(
        page.items,
        [
            ("AT", lambda line: ago(line.at)),
            ("LEVEL", lambda line: line.level),
            ("MESSAGE", lambda line: line.message),
            ("DATA", lambda line: line.metadata),
        ],
        empty="Nothing was noticed about it.",
    )
