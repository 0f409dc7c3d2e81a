import click

from corral.cli.app import App, Noun, paging, pass_app
from corral.cli.render import ago

COLUMNS = [
    ("ID", lambda node: node.id),
    ("NAME", lambda node: node.name),
    ("STATE", lambda node: node.state),
    ("SEEN", lambda node: ago(node.seen_at)),
    ("SLOTS", lambda node: node.slots),
    ("LABELS", lambda node: " ".join(node.labels) or None),
    ("OWNER", lambda node: node.owner),
]


@click.group("node", cls=Noun, help="Machines that serve this store.")
def command() -> None:
    pass


@command.command("list")
@paging
@pass_app
def list_(app: App, after: str | None, limit: int) -> None:
    """Machines that ever served this store, newest first."""
    page = app.store.nodes.list(after=after, limit=limit)
    app.show_page(page, COLUMNS, empty="No machine has joined yet.")
