"""`corral request`: manage agents' requests to the host."""

import click

from corral.cli.click_classes import CommandGroup, paging_options
from corral.cli.columns import Column, Columns
from corral.cli.context import App, pass_app
from corral.cli.parameters import parse_pairs, read_body
from corral.cli.render import format_age


def columns(app: App) -> Columns:
    """Return the columns of a request, with names instead of ids."""
    return [
        Column("ID", lambda request: request.id),
        Column("STATE", lambda request: request.state, is_state=True),
        Column("WHO", lambda request: app.agent_name(request.agent_id)),
        Column("ACTION", lambda request: request.action),
        Column("ASKED", lambda request: format_age(request.created_at), drop=2),
        Column("QUESTION", lambda request: request.question_id, drop=1),
        Column("EFFECT", lambda request: request.effect, shrink="truncate"),
    ]


@click.group(
    "request",
    cls=CommandGroup,
    help="Show the actions that agents have requested.",
)
def command() -> None:
    pass


@command.command()
@click.argument("action")
@click.argument("arguments", nargs=-1, metavar="NAME=VALUE…")
@click.option("--agent", metavar="NAME", help="Agent to act as (default: $CORRAL_AGENT).")
@click.option("--key", help="Idempotency key: a repeated key returns the same request.")
@pass_app
def ask(
    app: App, action: str, arguments: tuple[str, ...], agent: str | None, key: str | None
) -> None:
    """Request ACTION from the host, as an agent.

    ACTION is create_agent, schedule_prompt, change_prompt, destination or secret. A VALUE may be
    @FILE. The action is performed at once if the agent has a grant for it (`corral agent grant
    NAME host:ACTION`), else after a person has approved it.
    """
    values = {
        name: read_body(value, False) for name, value in parse_pairs(arguments, "argument").items()
    }
    request = app.store.host_requests.ask(
        app.require_agent(agent),
        action,
        values,
        run=app.caller.run,
        session=app.caller.session,
        key=key,
    )
    if request.state == "done":
        sentence = f"{request.id} is done."
    else:
        sentence = (
            f"{request.id} waits for approval ({request.question_id}). You will be notified of "
            "the outcome."
        )
    app.report(sentence, request)


@command.command("list")
@click.option("--agent", metavar="NAME", help="Only list requests of this agent.")
@paging_options
@pass_app
def list_(app: App, agent: str | None, after: str | None, limit: int) -> None:
    """List requests, newest first. Decide them with `corral question answer`."""
    page = app.store.host_requests.list(agent=agent, after=after, limit=limit)
    app.show_page(page, columns(app), empty="No requests.")


@command.command()
@click.argument("request")
@pass_app
def show(app: App, request: str) -> None:
    """Show a request."""
    app.show(app.store.host_requests.get(request))


@command.command()
@click.argument("request")
@pass_app
def withdraw(app: App, request: str) -> None:
    """Withdraw a pending request."""
    withdrawn = app.store.host_requests.withdraw(request)
    app.report(f"Withdrew {withdrawn.id}.", withdrawn)
