import os
from collections.abc import Sequence
from typing import Any

import click

from corral.cli.app import App, Noun, paging, pass_app
from corral.cli.render import ago
from corral.kernel.errors import Invalid

COLUMNS = [
    ("ID", lambda alert: alert.id),
    ("STATE", lambda alert: alert.state),
    ("ON", lambda alert: " ".join(alert.kinds)),
    ("PROJECT", lambda alert: alert.project_id),
    ("AGENT", lambda alert: alert.agent_id),
    ("BY", lambda alert: alert.target_kind),
    ("TARGET", lambda alert: alert.target),
    ("SIGNED WITH", lambda alert: alert.secret),
]

DELIVERIES = [
    ("ALERT", lambda told: told.alert_id),
    ("LETTER", lambda told: told.letter_id),
    ("STATE", lambda told: told.state),
    ("NEXT TRY", lambda told: ago(told.due_at) if told.due_at else None),
    ("LAST ERROR", lambda told: told.error),
]


@click.group("alert", cls=Noun, help="Be told when runs crash, fail, wait or finish.")
def command() -> None:
    pass


@command.command()
@click.option(
    "--on",
    "kinds",
    required=True,
    metavar="KINDS",
    help="crashed, failed, stuck, needs_input, budget, finished, undelivered; several with commas.",
)
@click.option("--webhook", metavar="URL", help="POST it there; secret:NAME for a secret URL.")
@click.option(
    "--command",
    "run",
    metavar="CMD",
    help="Run this program with the JSON on its input; no shell reads it, so write "
    "\"sh -c 'cat >>FILE'\" where you need one.",
)
@click.option("--desktop", is_flag=True, help="Show a notification on this machine.")
@click.option("--mailbox", metavar="BOX", help="Put a letter there, as agent:ada.")
@click.option("--secret", metavar="NAME", help="Sign the webhook with this secret.")
@click.option("--project", metavar="ID", help="Only of this project.")
@click.option("--agent", metavar="ID", help="Only of this agent.")
@pass_app
def add(
    app: App,
    kinds: str,
    webhook: str | None,
    run: str | None,
    desktop: bool,
    mailbox: str | None,
    secret: str | None,
    project: str | None,
    agent: str | None,
) -> None:
    """Be told, by one of --webhook, --command, --desktop or --mailbox."""
    targets = [
        (kind, target)
        for kind, target in (
            ("webhook", webhook),
            ("command", run),
            ("desktop", "" if desktop else None),
            ("mailbox", mailbox),
        )
        if target is not None
    ]
    if len(targets) != 1:
        raise Invalid("Say how: give one of --webhook, --command, --desktop or --mailbox.")
    target_kind, target = targets[0]
    alert = app.store.alerts.add(
        [kind.strip() for kind in kinds.split(",") if kind.strip()],
        target_kind=target_kind,
        target=target,
        project=app.project_id(project),
        agent=agent,
        secret=secret,
    )
    app.say(
        f"{alert.id} tells of {', '.join(alert.kinds)}; "
        f"try it with `corral alert test {alert.id}`.",
        alert,
    )


@command.command("list")
@click.option("--all", "all_", is_flag=True, help="Also those that were removed.")
@paging
@pass_app
def list_(app: App, all_: bool, after: str | None, limit: int) -> None:
    """Who is told of what."""
    page = app.store.alerts.list(all=all_, after=after, limit=limit)
    app.show_page(page, COLUMNS, empty="Nobody is told of anything; `corral alert add` does it.")


@command.command()
@click.argument("alert")
@pass_app
def remove(app: App, alert: str) -> None:
    """Tell nothing any more; what waits to be told is dropped."""
    removed = app.store.alerts.remove(alert)
    app.say(f"{removed.id} is removed.", removed)


@command.command()
@click.argument("alert")
@pass_app
def test(app: App, alert: str) -> int:
    """Put a letter that says that the alert works, and deliver it now, ahead of what waits."""
    from corral.daemon.alert_sender import deliver_test

    letter = app.store.alerts.test(alert)
    if not letter.mailbox.startswith("hook:"):
        app.say(f"{letter.id} is in {letter.mailbox}.", letter)
        return 0
    told = deliver_test(app.store, _owner(), letter)
    app.show_all([told] if told else [], DELIVERIES, empty="Another courier is telling it.")
    return 0 if told is None or told.state == "done" else 1


@command.command()
@click.option("--watch", is_flag=True, help="Go on until stopped.")
@pass_app
def deliver(app: App, watch: bool) -> None:
    """Send what alerts have to tell; failures are tried again, see `corral mail dead`."""
    from corral.daemon.alert_sender import deliver_once, run_courier, waiting

    if not watch:
        told = deliver_once(app.store, _owner())
        later = [] if told or app.json else waiting(app.store)
        app.show_all(told, DELIVERIES, empty=_later(later) or "Nothing is to be told.")
        return
    for one in run_courier(app.store, _owner()):
        error = f": {one.error}" if one.error else ""
        app.say(f"{one.letter_id} of {one.alert_id} is {one.state}{error}.", one)


def _later(letters: Sequence[Any]) -> str:
    """What is not due yet, or is with another courier."""
    parts = [
        f"{one.letter_id} of {one.alert_id} comes next {ago(one.due_at)}"
        + (f" (last time: {one.error})" if one.error else "")
        for one in letters
    ]
    return f"Nothing is due now: {'; '.join(parts)}." if parts else ""


def _owner() -> str:
    return f"courier:{os.getpid()}"
