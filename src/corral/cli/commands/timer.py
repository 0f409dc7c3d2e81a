"""`corral timer`: send a letter once, later."""

import click

from corral.cli.click_classes import CommandGroup, paging_options
from corral.cli.columns import Column
from corral.cli.context import App, pass_app
from corral.cli.parameters import DURATION, TIMESTAMP, read_body
from corral.cli.render import format_age, format_time
from corral.domain.mail.model import summarize_body

COLUMNS = [
    Column("ID", lambda timer: timer.id),
    Column("MAILBOX", lambda timer: timer.mailbox),
    Column("STATE", lambda timer: timer.state, is_state=True),
    Column("AT", lambda timer: format_time(timer.anchor_at)),
    Column("DUE", lambda timer: format_age(timer.anchor_at)),
    Column("BODY", lambda timer: summarize_body(timer.body), shrink="truncate"),
]


@click.group("timer", cls=CommandGroup, help="Send a letter at a later time.")
def command() -> None:
    pass


@command.command(
    "set",
    examples=[
        'corral timer set agent:ada "check the build" --in 10m',
        'corral timer set user:mia "stand-up" --at 2027-01-15T09:00',
    ],
)
@click.argument("mailbox")
@click.argument("body")
@click.option("--in", "delay", type=DURATION, help="Delay from now, 5s to 365d.")
@click.option("--at", type=TIMESTAMP, help="Time, such as 2027-01-15T09:00.")
@click.option("--project", metavar="ID|DIR", help="Project of the timer.")
@click.option("--as-json", is_flag=True, help="Parse BODY as JSON.")
@pass_app
def set_(
    app: App,
    mailbox: str,
    body: str,
    delay: int | None,
    at: int | None,
    project: str | None,
    as_json: bool,
) -> None:
    """Put a letter with BODY into MAILBOX at a later time: --in or --at."""
    timer = app.store.timers.set(
        mailbox, read_body(body, as_json), delay_ms=delay, at=at, project=app.project_id(project)
    )
    due = timer.anchor_at
    app.report_deferred(f"{timer.id} fires at {format_time(due)} ({format_age(due)}).", timer)


@command.command("list")
@click.option(
    "--all", "all_", is_flag=True, help="Include timers that have fired or were cancelled."
)
@paging_options
@pass_app
def list_(app: App, all_: bool, after: str | None, limit: int) -> None:
    """List active timers, newest first."""
    page = app.store.timers.list(all=all_, after=after, limit=limit)
    app.show_page(page, COLUMNS, empty="No active timers.")


@command.command()
@click.argument("timer")
@pass_app
def show(app: App, timer: str) -> None:
    """Show a timer."""
    app.show(app.store.timers.get(timer))


@command.command()
@click.argument("timer")
@pass_app
def cancel(app: App, timer: str) -> None:
    """Cancel a timer."""
    cancelled = app.store.timers.cancel(timer)
    app.report(f"Cancelled {cancelled.id}.", cancelled)
