"""`corral sender`: approve or block accounts on channels."""

import click

from corral.cli.click_classes import CommandGroup, paging_options
from corral.cli.columns import Column, Columns
from corral.cli.context import App, pass_app


def columns(app: App) -> Columns:
    """Return the columns of a sender, with names instead of ids."""
    return [
        Column("ID", lambda sender: sender.id),
        Column("STATE", lambda sender: sender.state, is_state=True),
        Column("PERSON", lambda sender: sender.person),
        Column("DISPLAY NAME", lambda sender: sender.name, drop=1),
        Column("CHANNEL", lambda sender: app.channel_name(sender.channel_id)),
        Column("PLATFORM ID", lambda sender: sender.platform_id, shrink="truncate"),
    ]


@click.group("sender", cls=CommandGroup, help="Approve or block accounts on channels.")
def command() -> None:
    pass


@command.command("list")
@paging_options
@pass_app
def list_(app: App, after: str | None, limit: int) -> None:
    """List accounts that have sent a message, oldest first."""
    page = app.store.senders.list(after=after, limit=limit)
    app.show_page(page, columns(app), empty="No senders yet.")


@command.command()
@click.argument("sender")
@click.option(
    "--person",
    metavar="NAME",
    help="Person behind the account (default: a new person). A person may have several accounts.",
)
@click.option(
    "--role",
    help="Role of the person: owner, admin or member (default: unchanged; of a new person: "
    "member).",
)
@pass_app
def approve(app: App, sender: str, person: str | None, role: str | None) -> None:
    """Approve SENDER (its id, or CHANNEL/PLATFORM-ID) and deliver its held messages."""
    approved = app.store.senders.approve(sender, person=person, role=role)
    app.report(f"Approved {approved.id} as {approved.person}.", approved)


@command.command()
@click.argument("sender")
@pass_app
def block(app: App, sender: str) -> None:
    """Block SENDER: its messages are refused."""
    blocked = app.store.senders.block(sender)
    app.report(f"Blocked {blocked.display_name}.", blocked)
