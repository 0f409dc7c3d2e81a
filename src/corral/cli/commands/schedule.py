"""`corral schedule`: send letters on a recurring schedule."""

import os
from collections.abc import Callable, Iterable
from typing import Any

import click

from corral.cli.click_classes import CommandGroup, paging_options
from corral.cli.columns import Column
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
    Column("ID", lambda schedule: schedule.id),
    Column("NAME", lambda schedule: schedule.name),
    Column("MAILBOX", lambda schedule: schedule.mailbox),
    Column("STATE", lambda schedule: schedule.state, is_state=True),
    Column("RULE", format_rule),
    Column("NEXT", lambda schedule: format_age(schedule.next_at) if schedule.next_at else "-"),
    Column("LAST", lambda schedule: format_age(schedule.last_at) if schedule.last_at else "never"),
    Column("BODY", lambda schedule: summarize_body(schedule.body), shrink="truncate"),
]

HISTORY = [
    Column("ID", lambda occurrence: occurrence.id),
    Column(
        "DUE",
        lambda occurrence: (
            format_time(occurrence.scheduled_at) if occurrence.scheduled_at else "manual"
        ),
    ),
    Column("STATE", lambda occurrence: occurrence.state, is_state=True),
    Column("ATTEMPTS", lambda occurrence: occurrence.attempts or "-"),
    Column("EXIT", lambda occurrence: occurrence.exit_code),
    Column("LETTER", lambda occurrence: occurrence.letter_state),
    Column("RUN", lambda occurrence: occurrence.run_id),
    Column("REASON", lambda occurrence: occurrence.reason, shrink="truncate", drop=1),
]


def schedule_options(*, misfire: str, overlap: str, timeout: str) -> Callable[..., Any]:
    """Add the options shared by new and edited schedules, with the defaults that help shows."""
    options = (
        click.option("--name", help="Name of the schedule."),
        click.option(
            "--misfire",
            type=click.Choice(["all", "latest", "skip"]),
            help=f"Missed occurrences to catch up on: all, latest or skip (default: {misfire}).",
        ),
        click.option("--overlap", type=click.Choice(["allow", "skip", "replace"]), help=overlap),
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
            help=f"Timeout of the script, up to 10m (default: {timeout}).",
        ),
    )
    return lambda function: add_options(function, options)


def rule_options(*, time_zone: str = "UTC") -> Callable[..., Any]:
    """Add the options of the recurrence rule, with the default that help shows."""
    options = (
        click.option("--every", type=DURATION, help="Interval, 5s to 365d."),
        click.option("--cron", help="Cron rule with five fields, such as '30 9 * * mon-fri'."),
        click.option(
            "--timezone",
            "time_zone",
            help=f"Time zone for --cron, such as Europe/Berlin (default: {time_zone}).",
        ),
    )
    return lambda function: add_options(function, options)


def add_options(function: Any, options: Iterable[Callable[..., Any]]) -> Any:
    for add_option in options:
        function = add_option(function)
    return function


LETTER_IS_OPEN = "What to do while the previous letter is still open"
RUN_IS_LIVE = "What to do while the previous run is not finished"
SCRIPT_TIMEOUT = "schedules.script_timeout_ms, 30s"


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
@rule_options()
@schedule_options(
    misfire="latest", overlap=f"{LETTER_IS_OPEN} (default: allow).", timeout=SCRIPT_TIMEOUT
)
@click.option("--project", metavar="ID|DIR", help="Project of the schedule.")
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
        'corral schedule prompt ada "write the stand-up notes" --cron "0 9 * * mon-fri"',
        'corral schedule prompt ada "summarize new mail" --every 15m --script ./new-mails.sh',
    ]
)
@click.argument("agent")
@click.argument("text")
@rule_options()
@click.option("--in", "delay", type=DURATION, help="Run once, after this delay.")
@click.option("--at", type=TIMESTAMP, help="Run once, at a time such as 2027-01-15T09:00.")
@click.option("--place", metavar="PLACE", help="Place that gets the answer: an id, or CHANNEL/ID.")
@click.option("--session", metavar="ID", help="Session to continue.")
@schedule_options(
    misfire="latest", overlap=f"{RUN_IS_LIVE} (default: skip).", timeout=SCRIPT_TIMEOUT
)
@click.option(
    "--project", metavar="ID|DIR", help="Project to run in (default: the agent's own directory)."
)
@click.option("--priority", type=int, default=0, show_default=True, help="Priority of the letters.")
@pass_app
def prompt(
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
    schedule = app.store.schedules.prompt(
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
@rule_options(time_zone="unchanged")
@schedule_options(
    misfire="unchanged",
    overlap=f"{LETTER_IS_OPEN} (default: unchanged).",
    timeout="unchanged",
)
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
        is_prompt = isinstance(before, dict) and "text" in before
        changes["body"] = {**before, "text": text} if is_prompt else text
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
    """Delete a schedule. Letters that are already in mailboxes are kept."""
    deleted = app.store.schedules.delete(schedule)
    app.report(f"Deleted {deleted.id}.", deleted)


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
