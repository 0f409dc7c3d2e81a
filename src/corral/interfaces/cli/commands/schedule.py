from typing import Any

import click

from corral.interfaces.cli.app import DURATION, App, Noun, paging, pass_app, read_body
from corral.interfaces.cli.render import ago, moment
from corral.kernel.clock import format_duration


def rule_of(schedule: Any) -> str:
    if schedule.kind == "every":
        return f"every {format_duration(int(schedule.rule))}"
    return f"{schedule.rule} {schedule.time_zone}" if schedule.kind == "cron" else "once"


COLUMNS = [
    ("ID", lambda schedule: schedule.id),
    ("NAME", lambda schedule: schedule.name),
    ("MAILBOX", lambda schedule: schedule.mailbox),
    ("STATE", lambda schedule: schedule.state),
    ("RULE", rule_of),
    ("NEXT", lambda schedule: ago(schedule.next_at) if schedule.next_at else "-"),
    ("LAST", lambda schedule: ago(schedule.last_at) if schedule.last_at else "never"),
    ("BODY", lambda schedule: schedule.body),
]


@click.group("schedule", cls=Noun, help="Send a letter again and again.")
def command() -> None:
    pass


@command.command()
@click.argument("mailbox")
@click.argument("body")
@click.option("--every", type=DURATION, help="5s to 365d.")
@click.option("--cron", help="Five fields: '30 9 * * mon-fri'.")
@click.option("--zone", "time_zone", default="UTC", show_default=True, help="For --cron.")
@click.option("--name", help="For people.")
@click.option(
    "--misfire",
    type=click.Choice(["all", "latest", "skip"]),
    default="latest",
    show_default=True,
    help="Moments missed while nobody looked.",
)
@click.option(
    "--overlap",
    type=click.Choice(["allow", "skip", "replace"]),
    default="allow",
    show_default=True,
    help="While the last letter is still open.",
)
@click.option("--project", metavar="ID", help="The project that it belongs to.")
@click.option("--priority", type=int, default=0, help="Of the letters.")
@click.option("--as-json", is_flag=True, help="The body is JSON, not plain text.")
@pass_app
def create(
    app: App,
    /,
    mailbox: str,
    body: str,
    every: int | None,
    project: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Put BODY into MAILBOX by a rule: --every or --cron."""
    schedule = app.store.schedules.create(
        mailbox,
        read_body(body, as_json),
        every_ms=every,
        project=app.project_id(project),
        **options,
    )
    assert schedule.next_at is not None
    app.say(f"{schedule.id} fires next at {moment(schedule.next_at)}.", schedule)


@command.command("list")
@click.option("--all", "all_", is_flag=True, help="Also those that have ended.")
@paging
@pass_app
def list_(app: App, all_: bool, after: str | None, limit: int) -> None:
    """Schedules, newest first."""
    page = app.store.schedules.list(all=all_, after=after, limit=limit)
    app.show_page(page, COLUMNS, empty="No schedule yet.")


@command.command()
@click.argument("schedule")
@pass_app
def show(app: App, schedule: str) -> None:
    """One schedule, whole."""
    app.show(app.store.schedules.get(schedule))


@command.command()
@click.argument("schedule")
@pass_app
def pause(app: App, schedule: str) -> None:
    """Put nothing until it is resumed."""
    paused = app.store.schedules.pause(schedule)
    app.say(f"{paused.id} is paused.", paused)


@command.command()
@click.argument("schedule")
@pass_app
def resume(app: App, schedule: str) -> None:
    """Go on with the next moment from now."""
    resumed = app.store.schedules.resume(schedule)
    assert resumed.next_at is not None
    app.say(f"{resumed.id} fires next at {moment(resumed.next_at)}.", resumed)


@command.command()
@click.argument("schedule")
@pass_app
def run(app: App, schedule: str) -> None:
    """Put one letter now; the rule goes on as it was."""
    letter = app.store.schedules.run(schedule)
    app.say(f"{letter.id} is in {letter.mailbox}.", letter)


@command.command()
@click.argument("schedule")
@pass_app
def delete(app: App, schedule: str) -> None:
    """Take a schedule back; the letters that it has put stay."""
    gone = app.store.schedules.delete(schedule)
    app.say(f"{gone.id} is cancelled.", gone)


@command.command()
@click.option("--watch", is_flag=True, help="Go on until stopped.")
@pass_app
def fire(app: App, watch: bool) -> None:
    """Put the letters of all moments that have come."""
    from corral.interfaces.cli.commands.mail import COLUMNS as LETTERS

    if not watch:
        letters = app.store.schedules.fire_due()
        app.show_all(letters, LETTERS, empty="Nothing is due.")
        return
    from corral.daemon.scheduler import run_scheduler

    for letter in run_scheduler(app.store):
        app.say(f"{letter.id} went to {letter.mailbox}.", letter)
