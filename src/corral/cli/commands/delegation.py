import click

from corral.cli import identity
from corral.cli.app import DURATION, App, Columns, Noun, paging, pass_app, read_body
from corral.cli.render import ago
from corral.cli.task_view import as_agent, with_reason


def _columns(app: App) -> Columns:
    return [
        ("ID", lambda each: each.id),
        ("STATE", lambda each: each.state),
        ("FROM", lambda each: each.from_mailbox),
        ("TO", lambda each: each.to_mailbox),
        ("SINCE", lambda each: ago(each.created_at)),
        ("TASK", lambda each: app.task_key(each.task_id)),
        ("WHAT", lambda each: each.text),
        ("REASON", lambda each: each.reason),
    ]


@click.group("delegation", cls=Noun, help="Work that one handed to another.")
def command() -> None:
    pass


@command.command()
@click.argument("to")
@click.argument("text")
@click.option("--context", metavar="TEXT|@FILE", help="What else the agent should know.")
@click.option("--within", type=DURATION, help="How long it may take.")
@click.option("--part-of", "parent", metavar="ID", help="The delegation that it is a part of.")
@click.option("--project", metavar="ID|DIR", help="The project that it belongs to.")
@as_agent
@pass_app
def delegate(
    app: App,
    to: str,
    text: str,
    context: str | None,
    within: int | None,
    parent: str | None,
    project: str | None,
    agent: str | None,
) -> None:
    """Hand TEXT to the agent TO; the result comes back as a letter. Tasks: `corral task
    delegate`."""
    made = app.store.delegations.delegate(
        to,
        read_body(text, False),
        context=read_body(context, False) if context else None,
        deadline_at=None if within is None else app.store.now() + within,
        parent=parent,
        project_id=app.project_id(project),
        agent=identity.agent(agent),
    )
    app.say(f"{made.id} went to {made.to_mailbox}.", made)


@command.command("list")
@click.option("--to", metavar="AGENT", help="Only those to an agent.")
@click.option("--from", "sender", metavar="MAILBOX", help="Only those from a mailbox.")
@click.option("--part-of", "parent", metavar="ID", help="Only the parts of one.")
@click.option("--all", "all_", is_flag=True, help="Also those that have ended.")
@paging
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
    """Delegations without a result yet, newest first."""
    app.store.try_upkeep("delegation.expire_due", app.store.delegations.expire_due)
    page = app.store.delegations.list(
        to=to, sender=sender, parent=parent, all=all_, after=after, limit=limit
    )
    app.show_page(page, _columns(app), empty="Nothing is delegated.")


@command.command()
@click.argument("delegation")
@pass_app
def show(app: App, delegation: str) -> None:
    """One delegation, whole."""
    app.show(app.store.delegations.get(delegation))


@command.command()
@click.argument("delegation")
@click.argument("result")
@click.option("--as-json", is_flag=True, help="The result is JSON, not plain text.")
@as_agent
@pass_app
def finish(app: App, delegation: str, result: str, as_json: bool, agent: str | None) -> None:
    """Hand the result of DELEGATION back; RESULT `-` reads it, @FILE takes a file."""
    done = app.store.delegations.finish(
        delegation, read_body(result, as_json), agent=identity.agent(agent)
    )
    app.say(f"{done.id} is {done.state}; {done.from_mailbox} is told.", done)


@command.command()
@click.argument("delegation")
@click.argument("reason")
@as_agent
@pass_app
def fail(app: App, delegation: str, reason: str, agent: str | None) -> None:
    """Say that it cannot be done, and why."""
    failed = app.store.delegations.fail(delegation, reason, agent=identity.agent(agent))
    app.say(f"{failed.id} has failed; {failed.from_mailbox} is told.", failed)


@command.command()
@click.argument("delegation")
@with_reason
@as_agent
@pass_app
def cancel(app: App, delegation: str, reason: str | None, agent: str | None) -> None:
    """Take a delegation back, with all that are parts of it."""
    gone = app.store.delegations.cancel(delegation, reason=reason, agent=identity.agent(agent))
    app.say(f"{', '.join(each.id for each in gone)} cancelled.", gone)
