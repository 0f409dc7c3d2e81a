"""`corral node`: list the nodes that serve the store."""

import click

from corral.cli.click_classes import CommandGroup, paging_options
from corral.cli.columns import Column
from corral.cli.context import App, pass_app
from corral.cli.render import format_age

COLUMNS = [
    Column("ID", lambda node: node.id),
    Column("NAME", lambda node: node.name),
    Column("STATE", lambda node: node.state, is_state=True),
    Column("SEEN", lambda node: format_age(node.seen_at)),
    Column("SLOTS", lambda node: node.slots),
    Column("LABELS", lambda node: " ".join(node.labels) or None, shrink="truncate"),
    Column("OWNER", lambda node: node.owner, drop=1),
]


@click.group("node", cls=CommandGroup, help="List the nodes that serve the store.")
def command() -> None:
    pass


@command.command("list")
@paging_options
@pass_app
def list_(app: App, after: str | None, limit: int) -> None:
    """List nodes, newest first."""
    page = app.store.nodes.list(after=after, limit=limit)
    app.show_page(page, COLUMNS, empty="No nodes.")
