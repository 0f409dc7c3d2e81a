"""`corral place`: manage places, the chats on channels."""

import click

from corral.cli.click_classes import CommandGroup, paging_options
from corral.cli.columns import Column, Columns
from corral.cli.context import App, pass_app


def columns(app: App) -> Columns:
    """Return the columns of a place, with names instead of ids."""
    return [
        Column("ID", lambda place: place.id),
        Column("NAME", lambda place: place.display_name),
        Column("CHANNEL", lambda place: app.channel_name(place.channel_id)),
        Column("STATE", lambda place: place.state, is_state=True),
        Column("DIRECT", lambda place: "yes" if place.direct else "no", drop=1),
        Column("POLICY", lambda place: place.policy or "channel", drop=2),
        Column("PLATFORM ID", lambda place: place.platform_id, shrink="truncate"),
    ]


@click.group("place", cls=CommandGroup, help="Manage places: the chats on channels.")
def command() -> None:
    pass


@command.command("list")
@click.option("--channel", metavar="NAME", help="Only list places of this channel.")
@paging_options
@pass_app
def list_(app: App, channel: str | None, after: str | None, limit: int) -> None:
    """List known places."""
    page = app.store.places.list(channel=channel, after=after, limit=limit)
    app.show_page(page, columns(app), empty="No places yet.")


@command.command()
@click.argument("place")
@pass_app
def show(app: App, place: str) -> None:
    """Show a place, by its id or CHANNEL/PLATFORM-ID."""
    app.show(app.store.places.get(place))


@command.command("policy")
@click.argument("place")
@click.argument("policy")
@pass_app
def set_policy(app: App, place: str, policy: str) -> None:
    """Set the policy for unknown senders in PLACE: strict, ask, public, or channel (default)."""
    record = app.store.places.set_policy(place, None if policy == "channel" else policy)
    app.report(
        f"Policy for unknown senders in {record.display_name}: "
        f"{record.policy or 'as its channel'}.",
        record,
    )


@command.command()
@click.argument("place")
@pass_app
def block(app: App, place: str) -> None:
    """Block PLACE: messages are neither received nor sent there."""
    blocked = app.store.places.block(place)
    app.report(f"Blocked {blocked.display_name}.", blocked)


@command.command()
@click.argument("place")
@pass_app
def unblock(app: App, place: str) -> None:
    """Unblock PLACE."""
    unblocked = app.store.places.unblock(place)
    app.report(f"Unblocked {unblocked.display_name}.", unblocked)
