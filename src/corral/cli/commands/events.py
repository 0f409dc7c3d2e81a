"""`corral events`: show the event log."""

import sys
from typing import Any

import click

from corral.cli import render
from corral.cli.click_classes import Command
from corral.cli.columns import Column
from corral.cli.context import App, pass_app
from corral.cli.parameters import DURATION

COLUMNS = [
    Column("CURSOR", lambda event: event.cursor),
    Column("AT", lambda event: render.format_time(event.at)),
    Column("ACTOR", lambda event: event.actor),
    Column("KIND", lambda event: event.kind),
    Column("VERB", lambda event: event.verb),
    Column("SUBJECT", lambda event: event.subject),
    Column("DATA", lambda event: event.data, shrink="truncate"),
]


@click.command(
    "events",
    cls=Command,
    examples=["corral events -f", "corral events --subject run_01abc --json"],
)
@click.option("-f", "--follow", is_flag=True, help="Print new events as they happen.")
@click.option(
    "--after", metavar="CURSOR", help="Start after this cursor, oldest first (default: the latest)."
)
@click.option("--subject", metavar="ID", help="Only show events of this record.")
@click.option("--project", metavar="ID|DIR", help="Only show events of this project.")
@click.option("--limit", type=int, default=50, show_default=True, help="Maximum number of events.")
@click.option(
    "--timeout", type=DURATION, help="With -f: stop when no event happened for this time."
)
@pass_app
def command(
    app: App, /, follow: bool, after: str | None, limit: int, timeout: int | None, **filters: Any
) -> None:
    """Show the latest events of the event log, or those after a cursor."""
    events = app.store.events
    filters["project"] = app.project_id(filters["project"])
    page = (
        events.after(after, limit=limit, **filters)
        if after
        else events.newest(limit=limit, **filters)
    )
    if not follow:
        app.show_list(page.items, COLUMNS, empty="No events.")
        return
    for event in page.items:
        _show_line(app, event)
    cursor = page.next or "0-0"
    is_finished = None if sys.stdout.isatty() else render.is_output_closed
    for event in events.follow(cursor, timeout_ms=timeout, is_finished=is_finished, **filters):
        _show_line(app, event)


def _show_line(app: App, event: Any) -> None:
    """Print one event on one line and flush, for programs that read the feed from a pipe."""
    if app.json:
        render.write_json(event)
    else:
        data = "" if event.data is None else f" {render.to_text(event.data)}"
        render.write_line(
            f"{render.format_time(event.at)}  {event.actor}  {event.kind} {event.verb} "
            f"{event.subject}{data}"
        )
    sys.stdout.flush()
