"""`corral node`: list the nodes that serve the store."""

import click

from corral.cli.click_classes import CommandGroup, paging_options
from corral.cli.context import App, pass_app
from corral.cli.render import format_age

COLUMNS = [
    ("ID", lambda node: node.id),
    ("NAME", lambda node: node.name),
    ("STATE", lambda node: node.state),
    ("SEEN", lambda node: format_age(node.seen_at)),
    ("SLOTS", lambda node: node.slots),
    ("LABELS", lambda node: " ".join(node.labels) or None),
    ("OWNER", lambda node: node.owner),
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
