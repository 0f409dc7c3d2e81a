"""`corral destination`: choose which chats an agent may send to."""

import click

from corral.cli.click_classes import CommandGroup, paging_options
from corral.cli.columns import Column, Columns
from corral.cli.context import App, pass_app


def columns(app: App) -> Columns:
    """Return the columns of a destination, with names instead of ids."""
    return [
        Column("ID", lambda destination: destination.id),
        Column("STATE", lambda destination: destination.state, is_state=True),
        Column("WHO", lambda destination: app.agent_name(destination.agent_id)),
        Column("NAME", lambda destination: destination.name),
        Column(
            "PLACE", lambda destination: app.place_name(destination.place_id), shrink="truncate"
        ),
    ]


@click.group("destination", cls=CommandGroup, help="Choose which chats an agent may send to.")
def command() -> None:
    pass


@command.command()
@click.argument("agent")
@click.argument("place")
@click.option("--name", help="Name of the destination for the agent (default: from the place).")
@pass_app
def grant(app: App, agent: str, place: str, name: str | None) -> None:
    """Allow AGENT to send to PLACE."""
    granted = app.store.destinations.grant(agent, place, name=name)
    app.report(
        f"{agent} may send to {app.place_name(granted.place_id)} as {granted.name}.", granted
    )


@command.command("list")
@click.option("--agent", metavar="NAME", help="Only list current destinations of this agent.")
@paging_options
@pass_app
def list_(app: App, agent: str | None, after: str | None, limit: int) -> None:
    """List destinations."""
    page = app.store.destinations.list(agent=agent, after=after, limit=limit)
    app.show_page(
        page, columns(app), empty="No destinations. Grant one with `corral destination grant`."
    )


@command.command()
@click.argument("agent")
@click.argument("destination")
@pass_app
def revoke(app: App, agent: str, destination: str) -> None:
    """Forbid AGENT to send to DESTINATION; undelivered messages are refused."""
    revoked = app.store.destinations.revoke(agent, destination)
    app.report(f"{agent} may no longer send to {app.place_name(revoked.place_id)}.", revoked)
