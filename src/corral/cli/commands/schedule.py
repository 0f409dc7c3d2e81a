import os
from collections.abc import Callable
from typing import Any

import click

from corral.cli.app import DURATION, MOMENT, App, Noun, paging, pass_app, read_body
from corral.cli.render import ago, moment
from corral.domain.mail.model import gist
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
    ("BODY", lambda schedule: gist(schedule.body)),
]

HISTORY = [
    ("ID", lambda past: past.id),
    ("MOMENT", lambda past: moment(past.moment) if past.moment else "by hand"),
    ("STATE", lambda past: past.state),
    ("TRIES", lambda past: past.tries or "-"),
    ("EXIT", lambda past: past.exit_code),
    ("LETTER", lambda past: past.letter_state),
    ("RUN", lambda past: past.run_id),
    ("REASON", lambda past: past.reason),
]


def _options(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a new schedule and a changed one have in common."""
    for option in (
        click.option("--name", help="For people."),
        click.option(
            "--misfire",
            type=click.Choice(["all", "latest", "skip"]),
            help="Moments missed while nobody looked (latest).",
        ),
        click.option(
            "--overlap",
            type=click.Choice(["allow", "skip", "replace"]),
            help="While the last letter is still open.",
        ),
        click.option(
            "--script",
            metavar="COMMAND",
            help="Run it first, by the shell: exit 0 puts the letter with what was printed, 77 "
            'does not; so does a last line {"wake": false}.',
        ),
        click.option("--script-timeout", "script_ms", type=DURATION, help="30s; up to 10m."),
    ):
        function = option(function)
    return function


def _rule(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--every", type=DURATION, help="5s to 365d."),
        click.option("--cron", help="Five fields: '30 9 * * mon-fri'."),
        click.option("--zone", "time_zone", help="For --cron; UTC."),
    ):
        function = option(function)
    return function


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


@click.group("schedule", cls=Noun, help="Send a letter again and again.")
def command() -> None:
    pass


@command.command()
@click.argument("mailbox")
@click.argument("body")
@_rule
@_options
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
        **_given(options),
    )
    assert schedule.next_at is not None
    app.say_later(f"{schedule.id} fires next at {moment(schedule.next_at)}.", schedule)


@command.command()
@click.argument("agent")
@click.argument("text")
@_rule
@click.option("--in", "delay", type=DURATION, help="Run once, after this time.")
@click.option("--at", type=MOMENT, help="Or once, at a moment like 2027-01-15T09:00.")
@click.option("--place", metavar="PLACE", help="Where it is answered: an id, or CHANNEL/ID.")
@click.option("--session", metavar="ID", help="Or the session that it goes on in.")
@_options
@click.option(
    "--project", metavar="ID|DIR", help="Where the agent works (default: its own folder)."
)
@click.option("--priority", type=int, default=0, help="Of its letters.")
@pass_app
def task(
    app: App,
    /,
    agent: str,
    text: str,
    every: int | None,
    delay: int | None,
    project: str | None,
    **options: Any,
) -> None:
    """Give AGENT something to do by the clock: a run is started with TEXT.

    A --script can spare it that: it is run first, and says whether there is something to do.
    """
    if delay is not None:
        options["delay_ms"] = delay
    made = app.store.schedules.task(
        agent, text, every_ms=every, project=app.project_id(project), **_given(options)
    )
    assert made.next_at is not None
    app.say_later(
        f"{made.id} wakes {agent} next at {moment(made.next_at)}, in {made.mailbox}.", made
    )


@command.command()
@click.argument("schedule")
@click.option("--text", help="What its letters say.")
@_rule
@_options
@click.option("--no-script", is_flag=True, help="Put its letters without asking a script.")
@pass_app
def edit(
    app: App, /, schedule: str, text: str | None, every: int | None, no_script: bool, **options: Any
) -> None:
    """Change a schedule that repeats; another rule counts from now on."""
    changes = _given({"every_ms": every, **options})
    if no_script:
        changes["script"] = None
    if text is not None:
        before = app.store.schedules.get(schedule).body
        is_task = isinstance(before, dict) and "text" in before
        changes["body"] = {**before, "text": text} if is_task else text
    edited = app.store.schedules.edit(schedule, **changes)
    when = f"fires next at {moment(edited.next_at)}" if edited.next_at else f"is {edited.state}"
    app.say(f"{edited.id} {when}.", edited)


@command.command()
@click.argument("schedule")
@paging
@pass_app
def history(app: App, schedule: str, after: str | None, limit: int) -> None:
    """What became of its moments, newest first: put, skipped by its script, or failed."""
    page = app.store.schedules.history(schedule, after=after, limit=limit)
    app.show_page(page, HISTORY, empty="None of its moments has come yet.")


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
    app.say_later(f"{resumed.id} fires next at {moment(resumed.next_at)}.", resumed)


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
    """Put the letters of all moments that have come, and run the scripts that are asked first."""
    from corral.cli.commands.mail import COLUMNS as LETTERS

    if not watch:
        letters = app.store.schedules.fire_due()
        owner = f"fire:{os.getpid()}"
        while (due := app.store.schedules.next_script()) and due <= app.store.now():
            if app.store.schedules.run_script(owner=owner) is None:
                break
        app.show_all(letters, LETTERS, empty="Nothing is due.")
        return
    from corral.daemon.scheduler import run_scheduler

    for letter in run_scheduler(app.store):
        app.say(f"{letter.id} went to {letter.mailbox}.", letter)
