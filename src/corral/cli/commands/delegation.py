"""`corral delegation`: delegate work to an agent and collect the result."""

import click

from corral.cli.click_classes import CommandGroup, paging_options
from corral.cli.columns import Column, Columns
from corral.cli.context import App, pass_app
from corral.cli.parameters import DURATION, read_body
from corral.cli.render import format_age
from corral.cli.task_view import agent_option, reason_option


def _columns(app: App) -> Columns:
    return [
        Column("ID", lambda delegation: delegation.id),
        Column("STATE", lambda delegation: delegation.state, is_state=True),
        Column("FROM", lambda delegation: delegation.from_mailbox, drop=3),
        Column("TO", lambda delegation: delegation.to_mailbox),
        Column("SINCE", lambda delegation: format_age(delegation.created_at)),
        Column("TASK", lambda delegation: app.task_key(delegation.task_id)),
        Column("WHAT", lambda delegation: delegation.text, shrink="truncate", drop=1),
        Column("REASON", lambda delegation: delegation.reason, shrink="truncate", drop=2),
    ]


@click.group(
    "delegation", cls=CommandGroup, help="Delegate work to an agent and collect the result."
)
def command() -> None:
    pass


@command.command()
@click.argument("to")
@click.argument("text")
@click.option("--context", metavar="TEXT|@FILE", help="Additional context for the agent.")
@click.option(
    "--deadline",
    "within",
    type=DURATION,
    help="Time until the delegation expires.",
)
@click.option(
    "--parent",
    metavar="ID",
    help="Delegation that this one belongs to.",
)
@click.option("--project", metavar="ID|DIR", help="Project of the delegation.")
@agent_option
@pass_app
def create(
    app: App,
    to: str,
    text: str,
    context: str | None,
    within: int | None,
    parent: str | None,
    project: str | None,
    agent: str | None,
) -> None:
    """Delegate the work described by TEXT to the agent TO.

    The result is sent back as a letter. Delegate a task with `corral task delegate`.
    """
    delegation = app.store.delegations.delegate(
        to,
        read_body(text, False),
        context=read_body(context, False) if context else None,
        deadline_at=None if within is None else app.store.now() + within,
        parent=parent,
        project_id=app.project_id(project),
        agent=app.acting_agent(agent),
    )
    app.report(f"Delegated to {delegation.to_mailbox} ({delegation.id}).", delegation)


@command.command("list")
@click.option("--to", metavar="AGENT", help="Only list delegations to this agent.")
@click.option(
    "--from", "sender", metavar="MAILBOX", help="Only list delegations from this mailbox."
)
@click.option(
    "--parent",
    metavar="ID",
    help="Only list delegations that belong to this one.",
)
@click.option("--all", "all_", is_flag=True, help="Include delegations that have ended.")
@paging_options
@pass_app
def list_(
    app: App,
    to: str | None,
    sender: str | None,
    parent: str | None,
    all_: bool,
    after: str | None,
    limit: int,
) -> None:
    """List open delegations, newest first."""
    app.store.try_write_before_read("delegation.expire_due", app.store.delegations.expire_due)
    page = app.store.delegations.list(
        to=to, sender=sender, parent=parent, all=all_, after=after, limit=limit
    )
    app.show_page(page, _columns(app), empty="No delegations.")


@command.command()
@click.argument("delegation")
@pass_app
def show(app: App, delegation: str) -> None:
    """Show a delegation."""
    app.show(app.store.delegations.get(delegation))


@command.command()
@click.argument("delegation")
@click.argument("result")
@click.option("--as-json", is_flag=True, help="Parse RESULT as JSON.")
@agent_option
@pass_app
def finish(app: App, delegation: str, result: str, as_json: bool, agent: str | None) -> None:
    """Return the RESULT of DELEGATION; `-` reads standard input, `@FILE` a file."""
    finished = app.store.delegations.finish(
        delegation, read_body(result, as_json), agent=app.acting_agent(agent)
    )
    app.report(f"{finished.id} is {finished.state}; notified {finished.from_mailbox}.", finished)


@command.command()
@click.argument("delegation")
@click.argument("reason")
@agent_option
@pass_app
def fail(app: App, delegation: str, reason: str, agent: str | None) -> None:
    """Mark a delegation as failed, with a reason."""
    failed = app.store.delegations.fail(delegation, reason, agent=app.acting_agent(agent))
    app.report(f"{failed.id} failed; notified {failed.from_mailbox}.", failed)


@command.command()
@click.argument("delegation")
@reason_option
@agent_option
@pass_app
def cancel(app: App, delegation: str, reason: str | None, agent: str | None) -> None:
    """Cancel a delegation and all delegations that belong to it."""
    cancelled = app.store.delegations.cancel(
        delegation, reason=reason, agent=app.acting_agent(agent)
    )
    app.report(f"Cancelled {', '.join(delegation.id for delegation in cancelled)}.", cancelled)
