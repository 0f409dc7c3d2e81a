import sys
from typing import Any

import click

from corral.cli import render
from corral.cli.app import DURATION, App, Verb, pass_app

COLUMNS = [
    ("CURSOR", lambda event: event.cursor),
    ("AT", lambda event: render.moment(event.at)),
    ("ACTOR", lambda event: event.actor),
    ("KIND", lambda event: event.kind),
    ("VERB", lambda event: event.verb),
    ("SUBJECT", lambda event: event.subject),
    ("DATA", lambda event: event.data),
]


@click.command("events", cls=Verb)
@click.option("-f", "--follow", is_flag=True, help="Show what happens, as it happens.")
@click.option("--after", metavar="CURSOR", help="From behind this event on, oldest first.")
@click.option("--subject", metavar="ID", help="Only what was done to this.")
@click.option("--project", metavar="ID", help="Only this project.")
@click.option("--limit", type=int, default=50, show_default=True, help="How many at the most.")
@click.option("--timeout", type=DURATION, help="With -f: end after a silence so long.")
@pass_app
def command(
    app: App, /, follow: bool, after: str | None, limit: int, timeout: int | None, **narrow: Any
) -> None:
    """The record of all changes; without --after, the latest."""
    events = app.store.events
    narrow["project"] = app.project_id(narrow["project"])
    page = (
        events.after(after, limit=limit, **narrow)
        if after
        else events.newest(limit=limit, **narrow)
    )
    if not follow:
        app.show_all(page.items, COLUMNS, empty="Nothing has happened yet.")
        return
    for event in page.items:
        _show_line(app, event)
    behind = page.next or "0-0"
    over = None if sys.stdout.isatty() else render.nobody_reads
    for event in events.follow(behind, timeout_ms=timeout, over=over, **narrow):
        _show_line(app, event)


def _show_line(app: App, event: Any) -> None:
    """One event on one line, at once: a feed is read by `tail`-like programs too."""
    if app.json:
        render.write_json(event)
    else:
        data = "" if event.data is None else f" {render.as_text(event.data)}"
        render.write_line(
            f"{render.moment(event.at)}  {event.actor}  {event.kind} {event.verb} "
            f"{event.subject}{data}"
        )
    sys.stdout.flush()
