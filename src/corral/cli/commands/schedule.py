"""`corral schedule`: send letters on a recurring schedule."""

import os
from collections.abc import Callable
from typing import Any

import click

from corral.cli.click_classes import CommandGroup, option, paging_options
from corral.cli.context import App, pass_app
from corral.cli.parameters import DURATION, TIMESTAMP, read_body
from corral.cli.render import format_age, format_time
from corral.domain.mail.model import summarize_body
from corral.kernel.clock import format_duration


def format_rule(schedule: Any) -> str:
    """Format the recurrence rule of a schedule."""
    if schedule.kind == "every":
        return f"every {format_duration(int(schedule.rule))}"
    return f"{schedule.rule} {schedule.time_zone}" if schedule.kind == "cron" else "once"


COLUMNS = [
    ("ID", lambda schedule: schedule.id),
    ("NAME", lambda schedule: schedule.name),
    ("MAILBOX", lambda schedule: schedule.mailbox),
    ("STATE", lambda schedule: schedule.state),
    ("RULE", format_rule),
    ("NEXT", lambda schedule: format_age(schedule.next_at) if schedule.next_at else "-"),
    ("LAST", lambda schedule: format_age(schedule.last_at) if schedule.last_at else "never"),
    ("BODY", lambda schedule: summarize_body(schedule.body)),
]

HISTORY = [
    ("ID", lambda occurrence: occurrence.id),
    (
        "DUE",
        lambda occurrence: (
            format_time(occurrence.scheduled_at) if occurrence.scheduled_at else "manual"
        ),
    ),
    ("STATE", lambda occurrence: occurrence.state),
    ("ATTEMPTS", lambda occurrence: occurrence.attempts or "-"),
    ("EXIT", lambda occurrence: occurrence.exit_code),
    ("LETTER", lambda occurrence: occurrence.letter_state),
    ("RUN", lambda occurrence: occurrence.run_id),
    ("REASON", lambda occurrence: occurrence.reason),
]


def schedule_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options shared by new and edited schedules."""
    for add_option in (
        click.option("--name", help="Name of the schedule."),
        click.option(
            "--misfire",
            type=click.Choice(["all", "latest", "skip"]),
            help="Which missed occurrences to make up for (default: latest).",
        ),
        click.option(
            "--overlap",
            type=click.Choice(["allow", "skip", "replace"]),
            help="What to do while the previous letter is still open (default: allow; for `task`: "
            "skip).",
        ),
        click.option(
            "--script",
            metavar="COMMAND",
            help="Shell command to run first. Exit status 0 puts the letter with the command's "
            'output; 77, or a last line {"wake": false}, skips it.',
        ),
        click.option(
            "--script-timeout",
            "script_timeout_ms",
            type=DURATION,
            help="Maximum time for the script, up to 10m (default: 30s).",
        ),
    ):
        function = add_option(function)
    return function


def rule_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the recurrence rule."""
    for add_option in (
        click.option("--every", type=DURATION, help="Interval, 5s to 365d."),
        click.option("--cron", help="Cron rule with five fields, such as '30 9 * * mon-fri'."),
        option(
            "--timezone",
            "time_zone",
            aliases=["--zone"],
            help="Time zone for --cron, such as Europe/Berlin (default: UTC).",
        ),
    ):
        function = add_option(function)
    return function


def _without_none(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


@click.group("schedule", cls=CommandGroup, help="Send letters on a recurring schedule.")
def command() -> None:
    pass


@command.command(
    examples=[
        'corral schedule create queue:builds nightly --cron "0 3 * * *" --timezone Europe/Berlin',
        'corral schedule create agent:ada "check the inbox" --every 1h',
    ]
)
@click.argument("mailbox")
@click.argument("body")
@rule_options
@schedule_options
@click.option("--project", metavar="ID", help="Project of the schedule.")
@click.option("--priority", type=int, default=0, show_default=True, help="Priority of the letters.")
@click.option("--as-json", is_flag=True, help="Parse BODY as JSON.")
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
    """Put letters with BODY into MAILBOX by a rule: --every or --cron."""
    schedule = app.store.schedules.create(
        mailbox,
        read_body(body, as_json),
        every_ms=every,
        project=app.project_id(project),
        **_without_none(options),
    )
    assert schedule.next_at is not None
    app.report_deferred(f"{schedule.id} fires next at {format_time(schedule.next_at)}.", schedule)


@command.command(
    examples=[
        'corral schedule task ada "write the stand-up notes" --cron "0 9 * * mon-fri"',
        'corral schedule task ada "summarise new mail" --every 15m --script ./new-mail.sh',
    ]
)
@click.argument("agent")
@click.argument("text")
@rule_options
@click.option("--in", "delay", type=DURATION, help="Run once, after this delay.")
@click.option("--at", type=TIMESTAMP, help="Run once, at a time such as 2027-01-15T09:00.")
@click.option("--place", metavar="PLACE", help="Place that gets the answer: an id, or CHANNEL/ID.")
@click.option("--session", metavar="ID", help="Session to continue.")
@schedule_options
@click.option(
    "--project", metavar="ID|DIR", help="Project to run in (default: the agent's own folder)."
)
@click.option("--priority", type=int, default=0, show_default=True, help="Priority of the letters.")
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
    """Run AGENT with the prompt TEXT at the scheduled times.

    With --script the agent is only started when the script finds something to do.
    """
    if delay is not None:
        options["delay_ms"] = delay
    schedule = app.store.schedules.task(
        agent, text, every_ms=every, project=app.project_id(project), **_without_none(options)
    )
    assert schedule.next_at is not None
    app.report_deferred(
        f"{schedule.id} starts {agent} next at {format_time(schedule.next_at)}, in "
        f"{schedule.mailbox}.",
        schedule,
    )


@command.command()
@click.argument("schedule")
@click.option("--text", help="New text of the letters.")
@rule_options
@schedule_options
@click.option("--no-script", is_flag=True, help="Remove the script.")
@pass_app
def edit(
    app: App, /, schedule: str, text: str | None, every: int | None, no_script: bool, **options: Any
) -> None:
    """Change a recurring schedule; a new rule applies from now on."""
    changes = _without_none({"every_ms": every, **options})
    if no_script:
        changes["script"] = None
    if text is not None:
        before = app.store.schedules.get(schedule).body
        is_task = isinstance(before, dict) and "text" in before
        changes["body"] = {**before, "text": text} if is_task else text
    edited = app.store.schedules.edit(schedule, **changes)
    next_at = edited.next_at
    when = f"fires next at {format_time(next_at)}" if next_at else f"is {edited.state}"
    app.report(f"{edited.id} {when}.", edited)


@command.command()
@click.argument("schedule")
@paging_options
@pass_app
def history(app: App, schedule: str, after: str | None, limit: int) -> None:
    """List the occurrences of a schedule, newest first: put, skipped or failed."""
    page = app.store.schedules.history(schedule, after=after, limit=limit)
    app.show_page(page, HISTORY, empty="The schedule has not fired yet.")


@command.command("list")
@click.option("--all", "all_", is_flag=True, help="Include schedules that have ended.")
@paging_options
@pass_app
def list_(app: App, all_: bool, after: str | None, limit: int) -> None:
    """List schedules, newest first."""
    page = app.store.schedules.list(all=all_, after=after, limit=limit)
    app.show_page(page, COLUMNS, empty="No schedules. Create one with `corral schedule create`.")


@command.command()
@click.argument("schedule")
@pass_app
def show(app: App, schedule: str) -> None:
    """Show a schedule."""
    app.show(app.store.schedules.get(schedule))


@command.command()
@click.argument("schedule")
@pass_app
def pause(app: App, schedule: str) -> None:
    """Pause a schedule until it is resumed."""
    paused = app.store.schedules.pause(schedule)
    app.report(f"Paused {paused.id}.", paused)


@command.command()
@click.argument("schedule")
@pass_app
def resume(app: App, schedule: str) -> None:
    """Resume a paused schedule with its next occurrence from now."""
    resumed = app.store.schedules.resume(schedule)
    assert resumed.next_at is not None
    app.report_deferred(f"{resumed.id} fires next at {format_time(resumed.next_at)}.", resumed)


@command.command()
@click.argument("schedule")
@pass_app
def run(app: App, schedule: str) -> None:
    """Put one letter now; the rule is not affected."""
    letter = app.store.schedules.run(schedule)
    app.report(f"Put {letter.id} into {letter.mailbox}.", letter)


@command.command()
@click.argument("schedule")
@pass_app
def delete(app: App, schedule: str) -> None:
    """Delete a schedule; letters that were already put are kept."""
    deleted = app.store.schedules.delete(schedule)
    app.report(f"Cancelled {deleted.id}.", deleted)


@command.command()
@click.option("--watch", is_flag=True, help="Continue until interrupted.")
@pass_app
def fire(app: App, watch: bool) -> None:
    """Put the letters of all due occurrences, and run their scripts.

    A daemon does this by itself.
    """
    from corral.cli.commands.mail import COLUMNS as LETTERS

    if not watch:
        letters = app.store.schedules.fire_due()
        owner = f"fire:{os.getpid()}"
        while (due := app.store.schedules.next_script()) and due <= app.store.now():
            if app.store.schedules.run_script(owner=owner) is None:
                break
        app.show_list(letters, LETTERS, empty="Nothing is due.")
        return
    from corral.api.scheduler import run_scheduler

    for letter in run_scheduler(app.store):
        app.report(f"Put {letter.id} into {letter.mailbox}.", letter)
