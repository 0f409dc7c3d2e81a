import click

from corral.cli.app import DURATION, MOMENT, App, Noun, paging, pass_app, read_body
from corral.cli.render import ago, moment
from corral.domain.mail.model import gist

COLUMNS = [
    ("ID", lambda timer: timer.id),
    ("MAILBOX", lambda timer: timer.mailbox),
    ("STATE", lambda timer: timer.state),
    ("AT", lambda timer: moment(timer.anchor_at)),
    ("DUE", lambda timer: ago(timer.anchor_at)),
    ("BODY", lambda timer: gist(timer.body)),
]


@click.group("timer", cls=Noun, help="Send a letter later, once.")
def command() -> None:
    pass


@command.command("set")
@click.argument("mailbox")
@click.argument("body")
@click.option("--in", "delay", type=DURATION, help="5s to 365d from now.")
@click.option("--at", type=MOMENT, help="Or a moment, like 2027-01-15T09:00.")
@click.option("--project", metavar="ID", help="The project that it belongs to.")
@click.option("--as-json", is_flag=True, help="The body is JSON, not plain text.")
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
    """Put BODY into MAILBOX when the time has come."""
    timer = app.store.timers.set(
        mailbox, read_body(body, as_json), delay_ms=delay, at=at, project=app.project_id(project)
    )
    app.say_later(f"{timer.id} fires at {moment(timer.anchor_at)} ({ago(timer.anchor_at)}).", timer)


@command.command("list")
@click.option("--all", "all_", is_flag=True, help="Also those that have fired or were cancelled.")
@paging
@pass_app
def list_(app: App, all_: bool, after: str | None, limit: int) -> None:
    """Timers that are set, newest first."""
    page = app.store.timers.list(all=all_, after=after, limit=limit)
    app.show_page(page, COLUMNS, empty="No timer is set.")


@command.command()
@click.argument("timer")
@pass_app
def show(app: App, timer: str) -> None:
    """One timer, whole."""
    app.show(app.store.timers.get(timer))


@command.command()
@click.argument("timer")
@pass_app
def cancel(app: App, timer: str) -> None:
    """Take a timer back."""
    cancelled = app.store.timers.cancel(timer)
    app.say(f"{cancelled.id} is cancelled.", cancelled)
