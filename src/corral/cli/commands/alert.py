"""`corral alert`: send alerts when runs crash, fail, wait or finish."""

from collections.abc import Sequence
from typing import Any

import click

from corral.cli.click_classes import CommandGroup, paging_options
from corral.cli.columns import Column
from corral.cli.context import App, pass_app
from corral.cli.render import format_age
from corral.kernel.errors import Invalid

COLUMNS = [
    Column("ID", lambda alert: alert.id),
    Column("STATE", lambda alert: alert.state, is_state=True),
    Column("ON", lambda alert: " ".join(alert.kinds)),
    Column("PROJECT", lambda alert: alert.project_id, drop=2),
    Column("AGENT", lambda alert: alert.agent_id, drop=1),
    Column("BY", lambda alert: alert.target_kind),
    Column("TARGET", lambda alert: alert.target, shrink="truncate"),
    Column("SIGNED WITH", lambda alert: alert.secret, drop=3),
]

DELIVERIES = [
    Column("ALERT", lambda delivery: delivery.alert_id),
    Column("LETTER", lambda delivery: delivery.letter_id),
    Column("STATE", lambda delivery: delivery.state, is_state=True),
    Column(
        "NEXT ATTEMPT", lambda delivery: format_age(delivery.due_at) if delivery.due_at else None
    ),
    Column("LAST ERROR", lambda delivery: delivery.error, shrink="truncate"),
]


@click.group("alert", cls=CommandGroup, help="Send alerts when runs crash, fail, wait or finish.")
def command() -> None:
    pass


@command.command(
    examples=[
        "corral alert add --on crashed,failed --desktop",
        "corral alert add --on needs_input --webhook https://example.org/hook --secret hook-key",
    ]
)
@click.option(
    "--on",
    "kinds",
    required=True,
    metavar="KINDS",
    help="Comma-separated kinds: crashed, failed, stuck, needs_input, budget, finished, "
    "undelivered.",
)
@click.option(
    "--webhook", metavar="URL", help="POST to this URL, or to the URL in a secret (secret:NAME)."
)
@click.option(
    "--command",
    "run",
    metavar="CMD",
    help="Run this program with the alert as JSON on standard input. It is not run by a shell; "
    "use \"sh -c 'cat >>FILE'\" if you need one.",
)
@click.option("--desktop", is_flag=True, help="Show a desktop notification on this machine.")
@click.option("--mailbox", metavar="BOX", help="Put a letter into this mailbox, such as agent:ada.")
@click.option("--secret", metavar="NAME", help="Sign webhook requests with this secret.")
@click.option("--project", metavar="ID|DIR", help="Only alert about this project.")
@click.option("--agent", metavar="NAME", help="Only alert about this agent, by name or id.")
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
    """Add an alert with one target: --webhook, --command, --desktop or --mailbox."""
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
        raise Invalid("Give exactly one of --webhook, --command, --desktop or --mailbox.")
    target_kind, target = targets[0]
    alert = app.store.alerts.add(
        [kind.strip() for kind in kinds.split(",") if kind.strip()],
        target_kind=target_kind,
        target=target,
        project=app.project_id(project),
        agent=agent,
        secret=secret,
    )
    app.report(
        f"Added {alert.id} for {', '.join(alert.kinds)}. Test it with `corral alert test "
        f"{alert.id}`.",
        alert,
    )


@command.command("list")
@click.option("--all", "all_", is_flag=True, help="Include removed alerts.")
@paging_options
@pass_app
def list_(app: App, all_: bool, after: str | None, limit: int) -> None:
    """List alerts."""
    page = app.store.alerts.list(all=all_, after=after, limit=limit)
    app.show_page(page, COLUMNS, empty="No alerts. Add one with `corral alert add`.")


@command.command()
@click.argument("alert")
@pass_app
def remove(app: App, alert: str) -> None:
    """Remove an alert and drop its undelivered notifications."""
    removed = app.store.alerts.remove(alert)
    app.report(f"Removed {removed.id}.", removed)


@command.command()
@click.argument("alert")
@pass_app
def test(app: App, alert: str) -> int:
    """Send a test notification now; exit with 1 if it fails."""
    from corral.api.alert_delivery import deliver_test

    letter = app.store.alerts.test(alert)
    if not letter.mailbox.startswith("hook:"):
        app.report(f"Put {letter.id} into {letter.mailbox}.", letter)
        return 0
    delivery = deliver_test(app.store, _owner(), letter)
    app.show_list(
        [delivery] if delivery else [],
        DELIVERIES,
        empty="Another process is delivering the notification.",
    )
    return 0 if delivery is None or delivery.state == "done" else 1


@command.command()
@click.option("--watch", is_flag=True, help="Continue until interrupted.")
@pass_app
def deliver(app: App, watch: bool) -> None:
    """Deliver pending notifications; failures are retried, see `corral mail dead`.

    A daemon does this by itself.
    """
    from corral.api.alert_delivery import deliver_once, list_waiting, run_alert_sender

    if not watch:
        deliveries = deliver_once(app.store, _owner())
        pending = [] if deliveries or app.json else list_waiting(app.store)
        app.show_list(
            deliveries, DELIVERIES, empty=_pending_text(pending) or "No pending notifications."
        )
        return
    for delivery in run_alert_sender(app.store, _owner()):
        error = f": {delivery.error}" if delivery.error else ""
        app.report(
            f"{delivery.letter_id} of {delivery.alert_id} is {delivery.state}{error}.", delivery
        )


def _pending_text(deliveries: Sequence[Any]) -> str:
    """Describe notifications that are not due yet, or that another process is delivering."""
    parts = [
        f"{delivery.letter_id} of {delivery.alert_id} is due {format_age(delivery.due_at)}"
        + (f" (last error: {delivery.error})" if delivery.error else "")
        for delivery in deliveries
    ]
    return f"Nothing is due now: {'; '.join(parts)}." if parts else ""


def _owner() -> str:
    from corral.adapters.processes import process

    return process.identify_self().as_owner("alert_sender")
